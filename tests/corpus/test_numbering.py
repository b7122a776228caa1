"""Numbers before ids: blocks, the tally that joins them, and the cut into splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bnce.corpus.normalise import Normaliser
from bnce.corpus.numbering import Block, Cut, Tally, number_block
from bnce.corpus.store import Corpus
from bnce.corpus.vocabulary import Vocabulary

TOKENISED = Normaliser(tokens="whitespace", sentences="lines")
ALL_TRAIN = Cut(0, {})


def test_block_numbers_its_words_by_first_occurrence() -> None:
    block = Block("valid", 0, [["b a b", "<unk> a"], ["c"]])
    numbered = number_block(block, TOKENISED, ALL_TRAIN)
    assert numbered.words == ["b", "a", "c"]
    part = numbered.splits["valid"]
    assert part.numbers.tolist() == [2, 3, 2, 0, 1, 3, 0, 4, 0]
    assert (part.num_sentences, part.num_documents) == (3, 2)


def test_document_without_words_does_not_count() -> None:
    numbered = number_block(Block("train", 0, [["</s>"], ["a </s>"]]), TOKENISED, ALL_TRAIN)
    assert numbered.splits["train"].num_documents == 1
    assert number_block(Block("train", 0, [["</s>"]]), TOKENISED, ALL_TRAIN).splits == {}


def test_documents_are_drawn_by_their_index_in_the_text() -> None:
    cut = Cut(3, {"valid": 0.3, "test": 0.3})
    documents = [[f"word{index}"] for index in range(50)]
    whole = number_block(Block(None, 0, documents), TOKENISED, cut).splits
    late = number_block(Block(None, 20, documents[20:]), TOKENISED, cut).splits
    early = number_block(Block(None, 0, documents[:20]), TOKENISED, cut).splits
    for split in ("train", "valid", "test"):
        assert whole[split].num_documents == early[split].num_documents + late[split].num_documents


@pytest.mark.parametrize("fractions", [{"valid": 0.1, "test": 0.2}, {"test": 0.5}, {}])
def test_cut_keeps_its_fractions(fractions: dict[str, float]) -> None:
    drawn = [Cut(1, fractions)(index) for index in range(10_000)]
    for split, fraction in fractions.items():
        assert drawn.count(split) == pytest.approx(10_000 * fraction, rel=0.1)
    assert drawn.count("train") == 10_000 - sum(drawn.count(split) for split in fractions)


def test_cut_depends_on_the_seed_alone() -> None:
    def draws(seed: int) -> list[str]:
        return [Cut(seed, {"valid": 0.5})(index) for index in range(100)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


def test_tally_joins_blocks(tmp_path: Path) -> None:
    blocks = [
        Block("train", 0, [["a b a"]]),
        Block("valid", 0, [["only here"]]),
        Block("train", 1, [["c b"], ["here c a"]]),
    ]
    with Tally(tmp_path) as tally:
        for block in blocks:
            tally.add(number_block(block, TOKENISED, ALL_TRAIN))
    assert tally.train_counts() == {"</s>": 3, "a": 3, "b": 2, "c": 2, "here": 1}
    assert [tally.num_tokens(split) for split in ("train", "valid", "test")] == [11, 3, 0]
    vocabulary = Vocabulary.from_counts(tally.train_counts(), max_size=5)
    assert vocabulary.words == ["</s>", "<unk>", "a", "b", "c"]
    tally.write_corpus(vocabulary, TOKENISED)
    corpus = Corpus.open(tmp_path)
    assert corpus.split("train").tolist() == [2, 3, 2, 0, 4, 3, 0, 1, 4, 2, 0]
    assert corpus.split("valid").tolist() == [1, 1, 0]
    assert corpus.target_counts.tolist() == np.bincount(corpus.split("train"), minlength=5).tolist()
    assert corpus.statistics["train"].num_oov == 1
    assert corpus.statistics["valid"].num_oov == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "corpus.json",
        "counts.npy",
        "train.npy",
        "valid.npy",
        "vocab.txt",
    ]
