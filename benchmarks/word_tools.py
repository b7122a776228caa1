"""Which tool numbers the words of a text fastest: each gives a block's distinct words and a number for every word.

    python benchmarks/word_tools.py TEXT               # words apart by spaces, as `bnce prepare` cuts them

Tools that are not installed are left out. CPU seconds of one thread, medians of rounds in which each has its turn.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

# Before they are loaded: what is compared is work, not threads.
os.environ.update(POLARS_MAX_THREADS="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")

import numpy as np
import pyarrow
import pyarrow.compute

from bnce.corpus.numbering import cut_words

Number = Callable[[str], int]


def plain_dictionary(text: str) -> int:
    """Python: a dictionary that gives each new word the next number."""
    number_of: collections.defaultdict[str, int] = collections.defaultdict(itertools.count().__next__)
    return len(np.fromiter(map(number_of.__getitem__, text.split()), dtype=np.int32))


def counter_and_get(text: str) -> int:
    """Python: Counter, then dict.get."""
    counts = collections.Counter(text.split())
    ids = {word: number for number, word in enumerate(counts)}
    return len(np.fromiter((ids.get(word, 1) for word in text.split()), dtype=np.int32))


def numpy_sort(text: str) -> int:
    """NumPy: np.unique over fixed-width words."""
    return len(np.unique(np.array(text.split()), return_inverse=True)[1])


def arrow_split(text: str) -> int:
    """pyarrow: utf8_split_whitespace, then dictionary_encode."""
    return len(pyarrow.compute.utf8_split_whitespace(pyarrow.array([text])).flatten().dictionary_encode().indices)


def numpy_and_arrow(text: str) -> int:
    """NumPy finds the spaces, pyarrow's dictionary_encode numbers the words (used by `bnce`)."""
    return len(cut_words(text).dictionary_encode().indices)


def polars_categories(text: str) -> int:
    """polars: str.split, explode, cast to Categorical."""
    import polars

    return len(polars.Series([text]).str.split(" ").explode().cast(polars.Categorical).to_physical())


def polars_counts(text: str) -> int:
    """polars: str.split, explode, value_counts, then a join for the numbers."""
    import polars

    words = polars.Series("word", [text]).str.split(" ").explode().to_frame()
    numbers = words["word"].value_counts().with_row_index("number").select("word", "number")
    return words.join(numbers, on="word", how="left", maintain_order="left").height


def hugging_face(text: str) -> int:
    """tokenizers: WhitespaceSplit and WordLevel, its vocabulary given beforehand and not timed."""
    return len(_word_level(text).encode(text, add_special_tokens=False).ids)


_MODELS: dict[int, object] = {}


def _word_level(text: str):
    import tokenizers

    key = hash(text)
    if key not in _MODELS:
        ids = {word: number for number, word in enumerate(dict.fromkeys(["<unk>", *text.split()]))}
        model = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
        model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        _MODELS[key] = model
    return _MODELS[key]


TOOLS: dict[Number, str | None] = {
    counter_and_get: None,
    plain_dictionary: None,
    numpy_sort: None,
    arrow_split: None,
    numpy_and_arrow: None,
    polars_categories: "polars",
    polars_counts: "polars",
    hugging_face: "tokenizers",
}


def main() -> None:
    """Read the command line, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--block-characters", type=int, default=2**22)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with open(options.text, encoding="utf-8") as file:
        texts = [file.read(options.block_characters) for _ in range(options.blocks)]
    num_words = sum(len(text.split()) for text in texts)
    pyarrow.set_cpu_count(1)
    tools = [tool for tool, package in TOOLS.items() if package is None or importlib.util.find_spec(package)]
    seconds: dict[Number, list[float]] = {tool: [] for tool in tools}
    for tool in tools:
        tool(texts[0][:1000])
        if tool is hugging_face:
            for text in texts:
                _word_level(text)
    for _ in range(options.rounds):
        for tool in tools:
            start = time.process_time()
            for text in texts:
                tool(text)
            seconds[tool].append(time.process_time() - start)
    print(f"{num_words:,} words in {options.blocks} blocks, {options.rounds} rounds")
    print("| tool | CPU s (median, min–max) | million words/s |")
    print("|---|---|---|")
    for tool, measured in seconds.items():
        median = statistics.median(measured)
        span = f"{median:.2f} ({min(measured):.2f}–{max(measured):.2f})"
        print(f"| {tool.__doc__} | {span} | {num_words / median / 1e6:.1f} |")


if __name__ == "__main__":
    main()
