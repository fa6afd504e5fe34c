"""The spec of a run: `RunSpec`, its fields, and what they are made of."""
