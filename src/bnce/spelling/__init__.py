"""How unknown words are spelt: a byte n-gram model that gives every string a probability."""
