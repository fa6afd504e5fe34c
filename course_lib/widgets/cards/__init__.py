"""Cards: what a learner reads, and where one guesses."""
