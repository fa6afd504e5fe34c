"""The record of a run: events, the trace that they make, what it says, and its export."""
