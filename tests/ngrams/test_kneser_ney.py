"""The n-gram estimator: equal to the definition, summing to one after every history, as KenLM reads it."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command, Refused
from kneser_ney import Ngram, by_definition

from bnce import UserError, load

WORDS = ["</s>", "<unk>", "a", "b", "c", "never"]
START = len(WORDS)
kenlm = pytest.importorskip("kenlm")

Estimate = Callable[..., dict[str, Any]]


def prepared(bnce: Command, directory: Path, *options: object) -> Path:
    """Prepare a corpus of the text in a directory, whose lines are sentences."""
    text, out = directory / "text.txt", directory / f"corpus-{len([*directory.iterdir()])}"
    splits = ["--valid", text, "--test", text, "--workers", 1]
    assert bnce("prepare", text, *splits, "--sentences", "lines", *options, "--out", out).status == 0
    return out


@pytest.fixture
def estimate(bnce: Command, tmp_path: Path) -> Estimate:
    """Give a command that writes an n-gram model of sentences, and gives the JSON object; `path` is where it is."""

    def run(sentences: list[list[int]], order: int, prune: list[int] | None = None, words: list[str] = WORDS) -> Any:
        (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        lines = (" ".join(words[number] for number in sentence[:-1]) for sentence in sentences)
        (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        corpus = prepared(bnce, tmp_path, "--vocab", tmp_path / "vocab.txt", "--tokens", "whitespace", "--cased")
        options = ["--order", order, "--prune", ",".join(map(str, prune or [0])), "--out", tmp_path / "made.arpa"]
        return bnce("ngram", corpus, *options, "--json").json

    return run


def text(num_sentences: int, seed: int = 1) -> list[list[int]]:
    """Make sentences, each with its end."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 7, num_sentences)
    # Numbers that grow are likelier to go on growing: something for contexts to learn.
    return [
        [*np.sort(generator.choice([1, 2, 3, 4], length, p=[0.1, 0.4, 0.3, 0.2])).tolist(), 0] for length in lengths
    ]


def log10_after(model, history: Ngram, word: str) -> float:
    state, after = kenlm.State(), kenlm.State()
    model.BeginSentenceWrite(state)
    for number in history:
        model.BaseScore(state, WORDS[number], after)
        state, after = after, kenlm.State()
    return model.BaseScore(state, word, after)


@pytest.mark.parametrize(("order", "prune"), [(2, [0]), (3, [0]), (4, [0, 0, 1]), (5, [0, 1, 2, 2, 3]), (3, [1])])
@pytest.mark.parametrize("num_sentences", [1, 3, 400])
def test_kenlm_reads_what_the_definition_says(
    tmp_path: Path, estimate: Estimate, order: int, prune: list[int], num_sentences: int
) -> None:
    sentences = text(num_sentences)
    made = estimate(sentences, order, prune)
    model = kenlm.Model(str(tmp_path / "made.arpa"))
    assert model.order == order
    # With one number it stands for all orders but the first.
    filled = [0, *prune * (order - 1)] if len(prune) == 1 else [*prune, *prune[-1:] * (order - len(prune))]
    counted = [([START, *sentence], 1) for sentence in sentences]
    prob = by_definition(counted, order, len(WORDS), lambda length, _: made["discounts"][length - 1], filled)
    generator = np.random.default_rng(2)
    histories = [tuple(generator.integers(1, len(WORDS), length).tolist()) for length in range(5) for _ in range(5)]
    for history in [(), *histories, *(tuple(sentence[:-1]) for sentence in sentences[:10])]:
        context = (START, *history)[-(order - 1) :]
        found = [10 ** log10_after(model, history, word) for word in WORDS]
        assert sum(found) == pytest.approx(1, abs=1e-4), history
        expected = [prob(context, word) for word in range(len(WORDS))]
        np.testing.assert_allclose(found, expected, rtol=2e-5, err_msg=str(history))


def test_counts_by_hand(tmp_path: Path, estimate: Estimate) -> None:
    """Three sentences, `a b`, `a b` and `a c`: bigrams keep their counts, unigrams count their contexts."""
    made = estimate([[2, 3, 0], [2, 3, 0], [2, 4, 0]], 2)
    assert made["discounts_estimated"] == [False, False]
    assert made["discounts"][0] == [0.5, 1.0, 1.5]
    # Contexts: a after <s>; b after a; c after a; </s> after b and c.
    discount = {1: 0.5, 2: 1.0}
    left = (3 * discount[1] + discount[2]) / 5
    counted = [(2 - discount[2]) / 5, 0, 0.5 / 5, 0.5 / 5, 0.5 / 5, 0]
    unigram = dict(zip(WORDS, np.array(counted) + left / len(WORDS), strict=True))
    content = (tmp_path / "made.arpa").read_text(encoding="utf-8")
    found = {
        words: (10 ** float(prob), 10 ** float(backoff or 0))
        for prob, words, backoff in re.findall(r"(?m)^(-[\d.]+)\t([^\t\n]+)(?:\t(-?[\d.]+))?$", content)
    }
    for word, prob in unigram.items():
        assert found[word][0] == pytest.approx(prob, rel=1e-5)
    assert found["a b"][0] == pytest.approx((2 - 1.0) / 3 + (1.0 + 0.5) / 3 * unigram["b"], rel=1e-5)
    assert found["a"][1] == pytest.approx((1.0 + 0.5) / 3, rel=1e-5)


def test_contexts_help(tmp_path: Path, estimate: Estimate) -> None:
    """A higher order is better on text of the same kind; words with a discount of their own count as estimated."""
    perplexities = []
    for order in (2, 3):
        estimate(text(2000), order)
        held_out = [[WORDS[number] for number in sentence[:-1]] for sentence in text(500, seed=2)]
        scores = load(tmp_path / "made.arpa").score_words(held_out)
        perplexities.append(math.exp(-np.concatenate([one.log_probs for one in scores]).mean()))
    assert perplexities[0] > perplexities[1]


def test_pruning_leaves_out_what_is_rare(estimate: Estimate) -> None:
    sentences = text(400)
    whole, pruned = estimate(sentences, 3), estimate(sentences, 3, [0, 0, 2])
    assert whole["num_pruned"] == [0, 0, 0]
    assert pruned["num_ngrams"][:2] == whole["num_ngrams"][:2]
    trigrams = collections.Counter(
        triple for one in sentences for triple in zip([START, *one], one, one[1:], strict=False)
    )
    assert pruned["num_ngrams"][2] == sum(count > 2 for count in trigrams.values()) < whole["num_ngrams"][2]


def test_large_vocabularies_do_not_overflow(tmp_path: Path, estimate: Estimate) -> None:
    """Six of so many words do not fit into one number of 64 bits; a context and a word do."""
    vocab_size = 2000
    assert vocab_size**6 > 2**63
    words = ["</s>", "<unk>", *(f"w{number}" for number in range(2, vocab_size))]
    made = estimate([[vocab_size - 1, vocab_size - 2, vocab_size - 3] * 20 + [0]], 6, words=words)
    assert made["num_ngrams"] == [vocab_size + 1, 5, 5, 5, 5, 5]
    longest = " ".join(f"w{vocab_size - 1 - place % 3}" for place in range(6))
    assert longest in (tmp_path / "made.arpa").read_text(encoding="utf-8")


def test_what_the_file_says_of_its_text(bnce: Command, tmp_path: Path) -> None:
    path = tmp_path / "made.arpa"
    (tmp_path / "text.txt").write_text("A b7, c.\nA c, b8.\n", encoding="utf-8")
    bnce("ngram", prepared(bnce, tmp_path, "--numbers", "zero"), "--order", 2, "--out", path)
    assert load(path).words("A b7, C.") == ["a", "b", "0", ",", "c", "."]
    content = path.read_text(encoding="utf-8")
    first, _, rest = content.partition("\n")
    path.write_text(rest, encoding="utf-8")
    assert load(path).words("A b7, C.") == ["A", "b7,", "C."]
    for bad in ('{"tokens": 3}', "[]", "{", '{"other": 1}'):
        path.write_text(content.replace(first, f"# bnce normaliser: {bad}"), encoding="utf-8")
        with pytest.raises(UserError, match="does not say how its text was cut into words"):
            load(path)


@pytest.mark.parametrize(
    ("order", "prune", "told"),
    [
        (1, "0", "--order received '1'"),
        (7, "0", "--order received '7'"),
        (2, "0,0,1", "'0,0,1': give one number for each of the 2 orders"),
        (3, "1,1", "'1,1': they must start with 0"),
        (3, "0,2,1", "no number may be smaller than the one before it"),
        (3, "-1", "The pruned counts are '-1'"),
    ],
)
def test_refusals(refused: Refused, texts: Path, tmp_path: Path, order: int, prune: str, told: str) -> None:
    options = ["--order", order, f"--prune={prune}", "--out", tmp_path / "m.arpa"]
    assert told in refused("ngram", texts / "train.txt", *options)
