"""A recogniser's n-best lists: read, scored, weighed, tuned, written."""
