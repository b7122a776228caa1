"""A 5-gram of a corpus that is too large for `bnce ngram`, by KenLM's lmplz, which works on disk.

    python benchmarks/lmplz.py CORPUS --lmplz lmplz --out 5-gram.arpa

lmplz is KenLM's estimator: build it from the source of KenLM's Python package (cmake, Boost). It takes the corpus's
training text, in which words outside the vocabulary are a word of their own, and that word becomes <unk>, as in
`bnce ngram`. The model is interpolated modified Kneser-Ney as there; 3-grams to 5-grams that occur once are dropped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bnce.corpus.store import Corpus
from bnce.corpus.vocabulary import END, UNK
from bnce.ngrams.arpa import NORMALISER_COMMENT

STAND_IN = "\x02unk"  # lmplz refuses <unk> in a text
BLOCK = 10_000_000


def lines(corpus: Corpus) -> Iterator[bytes]:
    """Write the training text again, one sentence per line."""
    shown = [f"{word} " for word in corpus.vocabulary.words]
    shown[END], shown[UNK] = "\n", f"{STAND_IN} "
    ids = corpus.split("train")
    for begin in range(0, len(ids), BLOCK):
        yield "".join(map(shown.__getitem__, np.asarray(ids[begin : begin + BLOCK]).tolist())).encode()


def rename(arpa: Path, out: Path, corpus: Corpus) -> None:
    """Give the stand-in its name, in place of the <unk> that lmplz adds, and say how the text was cut into words."""
    partial = out.with_suffix(".partial")
    with open(arpa, encoding="utf-8") as given, open(partial, "w", encoding="utf-8") as file:
        file.write(f"{NORMALISER_COMMENT}{json.dumps(corpus.normaliser.to_dict())}\n")
        for line in given:
            if line.startswith("ngram 1="):
                line = f"ngram 1={int(line[8:]) - 1}\n"
            if "\t<unk>\t" in line:
                continue
            file.write(line.replace(STAND_IN, "<unk>"))
    partial.rename(out)


def main() -> None:
    """Estimate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path, help="corpus directory")
    parser.add_argument("--lmplz", default="lmplz", help="the program")
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--prune", default="0 0 1 1 1", help="drop n-grams that occur so often or less, by order")
    parser.add_argument("--memory", default="40%", help="memory for sorting")
    parser.add_argument("--out", type=Path, required=True, help="ARPA file to write")
    given = parser.parse_args()
    arpa = given.out.with_suffix(".lmplz")
    options = ["-o", str(given.order), "--prune", *given.prune.split(), "-S", given.memory, "-T", str(given.out.parent)]
    corpus = Corpus.open(given.corpus)
    with subprocess.Popen([given.lmplz, *options, "--arpa", str(arpa)], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for block in lines(corpus):
            process.stdin.write(block)
        process.stdin.close()
    if process.returncode:
        raise SystemExit(process.returncode)
    rename(arpa, given.out, corpus)
    arpa.unlink()


if __name__ == "__main__":
    main()
