"""Kernels that were measured on a GPU, kept until their successors in `bnce.kernels` have been measured, too.

Nothing in the package uses them.
"""
