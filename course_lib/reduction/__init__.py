"""All-reduce by hand: carry out an algorithm between real processes, time it, and predict its time."""
