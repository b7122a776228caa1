"""A small n-gram model to hold our conventions against those of KenLM, which reads models and builds none."""

from __future__ import annotations

from pathlib import Path

# A bigram model with back-off: every history's probabilities, those it backs off to included, sum to one or less.
ARPA = """\\data\\
ngram 1=6
ngram 2=6

\\1-grams:
-1.2041200\t<unk>
-99\t<s>\t-0.3010300
-0.6020600\t</s>
-0.7269987\ta\t-0.2218487
-0.8239087\tmodel\t-0.1760913
-0.9208188\twas\t-0.3979400

\\2-grams:
-0.3979400\t<s> a
-0.3010300\ta model
-0.5228787\tmodel was
-0.9208188\tmodel </s>
-0.6020600\twas a
-0.4771213\twas </s>

\\end\\
"""
# Words of it, an unknown one, a line of unknown ones alone, an empty line, letters that are not ASCII.
LINES = ["a model was", "was a model", "model model a zebra was", "zebra yak", "", "ä model", "a"]


def write_arpa(directory: Path) -> Path:
    """Write the model where KenLM can read it."""
    path = directory / "small.arpa"
    path.write_text(ARPA, encoding="utf-8")
    return path
