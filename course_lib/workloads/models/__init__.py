"""Models that layers as data do not describe, written out for each framework."""
