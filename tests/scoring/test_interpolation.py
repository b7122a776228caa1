"""What parts say of a text: weights that EM finds where they are known, and perplexities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command
from run_files import write_mixture

from .arpa import write_unigrams

pytest.importorskip("kenlm")

ONE = {"</s>": 0.25, "a": 0.5, "b": 0.125}
OTHER = {"</s>": 0.25, "a": 0.25, "c": 0.25}
MAX_GAIN = 1e-5  # in nats per word, where EM may stop
Interpolate = Callable[..., dict[str, Any]]


@pytest.fixture
def interpolate(bnce: Command, tmp_path: Path) -> Interpolate:
    """Give a command that interpolates models of fixed probabilities on a text, and gives the JSON object."""

    def run(lines: list[str], *models: Mapping[str, float]) -> dict[str, Any]:
        paths = [write_unigrams(tmp_path / f"{place}.arpa", probs) for place, probs in enumerate(models)]
        (tmp_path / "valid.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return bnce("interpolate", *paths, "--valid", tmp_path / "valid.txt", "--json").json

    return run


def test_em_finds_the_share_of_each_source(interpolate: Interpolate) -> None:
    generator = np.random.default_rng(1)
    probs_KV = np.array([[0.6, 0.2, 0.1, 0.1], [0.1, 0.1, 0.2, 0.6]])
    text = generator.choice(4, (5000, 9), p=[0.7, 0.3] @ probs_KV)
    models = [{"</s>": 0.1, **dict(zip("abcd", 0.89 * probs_V, strict=True))} for probs_V in probs_KV]
    found = interpolate([" ".join("abcd"[word] for word in line) for line in text], *models)
    np.testing.assert_allclose(found["weights"], [0.7, 0.3], atol=0.02)
    assert sum(found["weights"]) == pytest.approx(1)
    # No other weights are likelier.
    log_probs = [np.log([weight, 1 - weight] @ probs_KV)[text].mean() for weight in np.linspace(0.01, 0.99, 50)]
    assert max(log_probs) <= np.log(found["weights"] @ probs_KV)[text].mean() + 10 / 9 * MAX_GAIN


def test_em_at_the_edges(interpolate: Interpolate) -> None:
    always_better = interpolate(["a a a"] * 20, {"</s>": 0.4, "a": 0.5}, {"</s>": 0.1, "a": 0.1})
    np.testing.assert_allclose(always_better["weights"], [1, 0], atol=1e-4)
    equal = interpolate(["a b"] * 20, ONE, ONE)
    np.testing.assert_allclose(equal["weights"], [0.5, 0.5])


def test_where_vocabularies_differ_known_words_decide(interpolate: Interpolate) -> None:
    assert not interpolate(["a zebra", "a"], ONE, ONE)["valid"]["vocabularies_differ"]
    found = interpolate(["a b zebra", "c"], ONE, OTHER)
    # Of the words, both know a and the two sentence ends: the first is better there.
    np.testing.assert_allclose(found["weights"], [1, 0], atol=1e-3)
    report = found["valid"]
    assert (report["num_tokens"], report["num_known"], report["vocabularies_differ"]) == (6, 3, True)
    ppl_known = [part["ppl_known"] for part in report["components"]]
    assert ppl_known == pytest.approx([(0.5 * 0.25 * 0.25) ** (-1 / 3), 0.25**-1], rel=1e-5)


def test_a_text_that_says_nothing(bnce: Command, tmp_path: Path) -> None:
    models = [write_unigrams(tmp_path / f"{name}.arpa", {name: 0.5, "</s>": 0.25}) for name in "ab"]
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    outcome = bnce("interpolate", *models, "--valid", tmp_path / "empty.txt")
    assert outcome.status == 2
    assert "has no words" in outcome.stderr


def test_a_mixture_is_evaluated_with_its_parts(bnce: Command, tmp_path: Path) -> None:
    parts = [write_unigrams(tmp_path / f"{place}.arpa", probs) for place, probs in enumerate((ONE, OTHER))]
    both = write_mixture(tmp_path / "both.toml", parts, [0.5, 0.5])
    (tmp_path / "text.txt").write_text("a b\nzebra\n", encoding="utf-8")
    record = bnce("evaluate", both, "--text", tmp_path / "text.txt", "--json").json
    mixed = [0.375, (0.125 + 0.25) / 2, 0.25, (0.125 + 0.25) / 2, 0.25]
    assert record["ppl_f"] == pytest.approx(np.prod(mixed) ** (-1 / 5), rel=1e-5)
    assert record["ppl_f_no_unk"] == pytest.approx(
        np.prod([mixed[place] for place in (0, 1, 2, 4)]) ** (-1 / 4), rel=1e-5
    )
    assert record["log10_prob_f"] == pytest.approx(np.log10(mixed).sum(), rel=1e-5)
    assert record["components"][0]["ppl_f"] == pytest.approx((0.5 * 0.125 * 0.125 * 0.25**2) ** (-1 / 5), rel=1e-5)
    assert [part["weight"] for part in record["components"]] == [0.5, 0.5]
    assert (record["num_tokens"], record["num_oov"], record["num_sentences"]) == (5, 1, 2)
    assert (record["ppl_n"], record["vocabularies_differ"]) == (None, True)
