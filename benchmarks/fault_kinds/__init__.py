"""What `benchmarks/faults.py` does to the program: a file a kind of fault."""
