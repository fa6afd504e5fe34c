"""Help in a notebook, beyond widgets: completion, missing names, tracebacks, output."""
