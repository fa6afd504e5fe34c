"""All-reduce by hand: an algorithm carried out between real processes, timed and predicted."""
