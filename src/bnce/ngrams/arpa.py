"""ARPA files: n-gram models as text, with logarithms to the base 10."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnce import files
from bnce.corpus.vocabulary import SPECIALS, Vocabulary
from bnce.errors import UserError
from bnce.files import parse_object
from bnce.text.normalise import Normaliser
from bnce.text.sources import read_chunks
from bnce.text.unpack import PACKED

if TYPE_CHECKING:
    from bnce.corpus.meter import Progress
    from bnce.ngrams.kneser_ney import Order

# An n-gram model of another tool does not say how its text was cut: it takes words as they stand.
AS_IT_STANDS = Normaliser(lowercase=False, tokens="whitespace", sentences="lines")
START_WORD = "<s>"
LOG10_ZERO = -99.0  # how ARPA files write the probability of <s>, which is never predicted

NORMALISER_COMMENT = "# bnce normaliser: "
_MAX_HEAD_BYTES = 2**16
_BLOCK_NGRAMS = 2**16


def write_arpa(
    path: str | Path,
    words: Sequence[str],
    orders: Sequence[Order],
    normaliser: Normaliser | None = None,
    progress: Progress = lambda done, total: None,
) -> None:
    """Write a model where KenLM can read it; a normaliser goes into a comment, where `open_ngram` finds it.

    `progress` is told how many n-grams of how many are written.
    """
    path = Path(path)
    num_ngrams = sum(one.num_kept for one in orders)
    num_written = 0
    with files.atomic_file(path) as partial, open(partial, "w", encoding="utf-8") as file:
        if normaliser is not None:
            file.write(f"{NORMALISER_COMMENT}{json.dumps(normaliser.to_dict())}\n")
        file.write("\\data\\\n")
        file.writelines(f"ngram {number}={one.num_kept}\n" for number, one in enumerate(orders, 1))
        for number, one in enumerate(orders, 1):
            file.write(f"\n\\{number}-grams:\n")
            (kept,) = np.nonzero(one.kept_N)
            for first in range(0, len(kept), _BLOCK_NGRAMS):
                block = kept[first : first + _BLOCK_NGRAMS]
                file.write(_lines(orders[:number], block, [*words, START_WORD], is_last=number == len(orders)))
                num_written += len(block)
                progress(num_written, num_ngrams)
        file.write("\n\\end\\\n")


def _lines(orders: Sequence[Order], place_N: Any, spelt: list[str], is_last: bool) -> str:
    """Spell n-grams of the last of the orders; the places of their contexts lead through the ones before it."""
    one = orders[-1]
    with np.errstate(divide="ignore"):
        log10_N = np.maximum(np.log10(one.prob_N[place_N]), LOG10_ZERO).tolist()
    backoffs = np.log10(one.backoff_N[place_N]).tolist()
    tails = [""] * len(place_N) if is_last else [f"\t{value:.6f}" for value in backoffs]
    columns: list[list[str]] = []
    for before in reversed(orders):
        place_N, word_N = np.divmod(before.key_N[place_N], len(spelt))
        columns.append([spelt[word] for word in word_N.tolist()])
    ngrams = map(" ".join, zip(*reversed(columns), strict=True))
    lines = zip(log10_N, ngrams, tails, strict=True)
    return "".join(f"{log10_prob:.6f}\t{ngram}{tail}\n" for log10_prob, ngram, tail in lines)


def read_words(path: Path) -> Vocabulary:
    """Read the words that an ARPA file has probabilities of."""
    with open(path, "rb") as head:
        is_arpa = b"\\data\\" in head.read(_MAX_HEAD_BYTES)
    if not is_arpa:
        raise UserError(f"'{path}' does not list its words: give the ARPA file it was made from, or mix it with a run.")
    words: list[str] = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("\\1-grams:"):
                break
        for line in file:
            if not line.strip():
                break
            words.append(line.split("\t")[1].strip())
    return Vocabulary([*SPECIALS, *(word for word in words if word not in (*SPECIALS, START_WORD))], f"'{path}'")


def stored_normaliser(path: Path) -> Normaliser | None:
    """Read how the text of a model was cut into words, where 'bnce ngram' has written it; None if nobody knows.

    It stands in the first line of an ARPA file, packed or not. A KenLM binary has no place for it: then the ARPA file
    of the same name that lies beside it is asked, such as m.arpa or m.arpa.gz for m.bin.
    """
    stem = path.name.removesuffix("".join(path.suffixes[-2:]) if path.suffix in PACKED else path.suffix)
    beside = [path.with_name(f"{stem}.arpa{ending}") for ending in ("", *PACKED)]
    for file in [path, *(one for one in beside if one != path and one.is_file())]:
        line = next(read_chunks(str(file)), b"").partition(b"\n")[0].decode("utf-8", "replace")
        if line.startswith(NORMALISER_COMMENT):
            try:
                return Normaliser.from_dict(parse_object(line.removeprefix(NORMALISER_COMMENT)))
            except ValueError as error:
                raise UserError(
                    f"The first line of '{file}' does not say how its text was cut into words ({error}): make the file "
                    "again, or remove the line and give text that is already cut into words."
                ) from error
    return None
