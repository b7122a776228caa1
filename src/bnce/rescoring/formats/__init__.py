"""Readers of n-best lists, one file per format; `bnce.kinds.nbest_formats` lists them."""
