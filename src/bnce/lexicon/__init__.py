"""Adding and dropping words of a trained run."""
