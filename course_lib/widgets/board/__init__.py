"""RaceBoard and TrainingBoard: runs as they happen."""
