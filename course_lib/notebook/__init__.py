"""What a notebook needs beyond widgets: completion, names that are missing, tracebacks, output."""
