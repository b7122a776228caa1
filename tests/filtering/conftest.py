"""The command line and a small run, as the tests of commands have them."""

from tests.cli.conftest import bnce, corpus, place, refused, texts, trained

__all__ = ["bnce", "corpus", "place", "refused", "texts", "trained"]
