"""One record per loss, body and optimiser: what it is called, what it can do and where it is built.

Code that needs to know something about a kind reads its record and never compares names. Nothing here loads PyTorch.
"""
