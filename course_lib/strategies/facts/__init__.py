"""The strategies, by kind, found by `catalog`."""
