"""What is true of each strategy: one file each."""
