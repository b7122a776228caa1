"""From a corpus and settings to a trained run."""
