"""Runs whose tasks are placed on the nodes of a Ray cluster."""
