"""Timeline: what each task did, and what each wait was for."""
