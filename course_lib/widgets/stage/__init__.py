"""AllReduceStage: algorithms side by side on one clock, from their simulation or from a run."""
