"""A small n-gram model to hold our conventions against those of KenLM, which reads models and builds none."""

from __future__ import annotations

import math
from collections.abc import Mapping
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


def write_unigrams(path: Path, probs: Mapping[str, float]) -> Path:
    """Write a model in which words have fixed probabilities, and `<unk>` what is left."""
    every = {"<unk>": 1 - sum(probs.values()), **probs}
    lines = ["-99\t<s>\t0", *(f"{math.log10(prob):.7f}\t{word}\t0" for word, prob in every.items())]
    # KenLM insists on a bigram: it says what the unigram does.
    word, prob = next(iter(probs.items()))
    head = f"\\data\\\nngram 1={len(lines)}\nngram 2=1\n\n\\1-grams:\n"
    body = "\n".join(lines) + f"\n\n\\2-grams:\n{math.log10(prob):.7f}\t<s> {word}\n\n\\end\\\n"
    path.write_text(head + body, encoding="utf-8")
    return path
