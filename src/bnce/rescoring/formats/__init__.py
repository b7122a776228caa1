"""Readers of n-best lists, one file per format; `bnce.rescoring.nbest_formats` lists them."""
