"""Strategies side by side, at the same time, on one machine and one clock."""
