"""How gradients become steps."""
