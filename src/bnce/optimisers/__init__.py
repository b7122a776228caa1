"""How gradients become steps: added up over groups and processes, clipped, and applied row by row."""
