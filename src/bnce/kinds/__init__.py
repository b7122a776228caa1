"""One record per loss, body and optimiser: what it is called, what it can do and where it is built.

Whoever wants to know something about a kind reads its record; nobody compares names. Nothing here loads PyTorch.
"""
