"""N-gram models: counted, smoothed, written as ARPA files."""
