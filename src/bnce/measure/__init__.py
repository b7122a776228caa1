"""Speed, memory, and whether this machine and these files are sound."""
