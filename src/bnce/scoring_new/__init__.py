"""Probabilities of words and texts, from a run, an n-gram model or a mixture."""
