"""The losses: one file each, a function from a batch to the loss of every position."""
