"""Engines other than this machine, a folder each, found by name."""
