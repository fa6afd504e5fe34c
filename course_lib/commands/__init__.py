"""The commands of `lockstep`, a file each: thin shells over the functions that notebooks call."""
