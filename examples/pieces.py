"""Pieces of words (byte-pair encoding): a text of pieces is prepared and trained on like any text between blanks.

python examples/pieces.py train.txt valid.txt test.txt --size 32768 --out pieces
bnce prepare pieces/train.txt --valid pieces/valid.txt --test pieces/test.txt \
    --tokens whitespace --sentences lines --cased --min-count 1 --out corpora/pieces
bnce train --corpus corpora/pieces --out runs/pieces
python examples/pieces.py pieces/test.txt --run runs/pieces

The first command learns the pieces from the first text, after it has cut all texts into sentences and words as `bnce
prepare` does. A word is cut together with the blank before it, which is written Ġ. The last command prints the
perplexity per word, with </s> as a word: it can be compared with that of a run over words which spells unknown words
(`bnce score --spell`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import bnce

BLANK = "Ġ"


def sentences(path: Path) -> Iterator[str]:
    """Yield the sentences of a text, with a blank before each word."""
    normaliser = bnce.Normaliser()
    with open(path, encoding="utf-8") as file:
        yield from ("".join(f" {word}" for word in words) for line in file for words in normaliser(line))


def learn(path: Path, size: int) -> Tokenizer:
    """Learn pieces from a text; none of them goes across words."""
    tokenizer = Tokenizer(models.BPE())
    by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "merged_with_next"), by_byte])
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=by_byte.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(sentences(path), trainer)
    return tokenizer


def perplexity_per_word(run: Path, path: Path) -> float:
    """Evaluate a run on a cut text: as many factors as pieces, shared out among fewer words."""
    result = bnce.evaluate(run, text=path, by_sentence=False)
    num_words = sum(1 + line.count(BLANK) for line in path.read_text(encoding="utf-8").splitlines())
    return result.ppl_f ** (result.num_tokens / num_words)


def main(arguments: Sequence[str] | None = None) -> None:
    """Learn pieces and cut texts, or say how good a run over pieces is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=Path, metavar="TEXT", help="plain text in UTF-8")
    parser.add_argument("--size", type=int, default=32_768, metavar="N", help="number of pieces (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("pieces"), metavar="DIR", help="where cut texts go")
    parser.add_argument("--run", type=Path, help="print the perplexity per word of this run on the cut TEXT")
    given = parser.parse_args(arguments)
    if given.run is not None:
        print(f"test: PPLf {perplexity_per_word(given.run, given.texts[0]):.2f} per word")
        return
    tokenizer = learn(given.texts[0], given.size)
    given.out.mkdir(parents=True)
    for path in given.texts:
        with open(given.out / path.name, "w", encoding="utf-8") as file:
            file.writelines(" ".join(tokenizer.encode(sentence).tokens) + "\n" for sentence in sentences(path))


if __name__ == "__main__":
    main()
