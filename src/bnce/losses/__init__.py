"""The losses: one file each, a function from a batch and the record of a loss to the loss of every position."""
