"""What is asked for: `RunSpec`, its fields, and what they are made of."""
