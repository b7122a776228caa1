"""What can be done to a trained run: refit what its scores are divided by, add words to it, start another from it."""
