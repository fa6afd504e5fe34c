"""The commands of `lockstep`, by subject: thin shells over the functions that notebooks call."""
