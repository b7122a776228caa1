"""A model behind HTTP: questions from many clients at once, answered in shared passes through the network."""
