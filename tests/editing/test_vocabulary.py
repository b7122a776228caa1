"""Words added after training: they share what `<unk>` had, in every context, and all else stays.

Legend: V vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command import Command, Refused, settings

import bnce as package

CONTEXTS = ([], ["ba"], ["xyzzy", "be"])
UNK = 1


@pytest.fixture(scope="module", params=["bnce", "softmax"])
def run(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a run that is normalised by a constant, and one by the softmax."""
    out = tmp_path_factory.mktemp("runs") / request.param
    sizes = {"model.embedding_size": 6, "model.hidden_size": 8, "model.bottleneck_size": 7, "training.batch_size": 8}
    given = {**sizes, "training.num_steps": 5, "training.epochs": 2, "optimiser.learning_rate": 0.01}
    package.train("wiki", corpus=corpus, out=out, model="relu-lstm", loss=request.param, settings=given, device="cpu")
    return out


def probabilities(run: Path, context: list[str]) -> np.ndarray:
    """Give p of every word as the next: with the constant Z if the run has one, else with the softmax."""
    model = package.load(run)
    state = model.start()
    for word in context:
        state = model.advance(state, word)
    return np.exp(
        model.next_log_probs(state, model.vocabulary.words, mode="normalised" if model.log_z is None else None)
    )


def add(bnce: Command, run: Path, out: Path, words: str) -> dict:
    path = out.with_suffix(".tsv")
    path.write_text(words, encoding="utf-8")
    return bnce("vocab", run, "--out", out, "--add", path, "--json").json


def test_new_words_share_what_the_unknown_word_had(bnce: Command, run: Path, tmp_path: Path) -> None:
    before = np.load(run / "counts.npy")
    few, many = int(before[UNK]) // 10, int(before[UNK]) // 2
    record = add(bnce, run, tmp_path / "more", f"zaba\t{few}\nzobo\t{many}\n")
    assert [added["count"] for added in record["added"]] == [few, many]
    after = np.load(tmp_path / "more" / "counts.npy")
    assert after[[UNK, -2, -1]].tolist() == [before[UNK] - few - many, few, many]
    assert after.sum() == before.sum()
    for context in CONTEXTS:
        old_V, new_V = probabilities(run, context), probabilities(tmp_path / "more", context)
        assert new_V.sum() == pytest.approx(old_V.sum(), rel=1e-5)
        np.testing.assert_allclose(np.delete(new_V[:-2], UNK), np.delete(old_V, UNK), rtol=1e-5)
        np.testing.assert_allclose(new_V[[UNK, -2, -1]], old_V[UNK] * after[[UNK, -2, -1]] / before[UNK], rtol=1e-5)
    # What follows a new word is what followed <unk>.
    np.testing.assert_allclose(
        probabilities(tmp_path / "more", ["zaba"])[2:-2], probabilities(run, ["zaba"])[2:], rtol=1e-5
    )


def test_the_unknown_word_keeps_a_tenth(bnce: Command, run: Path, tmp_path: Path) -> None:
    before = np.load(run / "counts.npy")
    total = int(before.sum())
    add(bnce, run, tmp_path / "more", f"zaba\t{total}\nzobo\t{total // 2}\n")
    assert np.load(tmp_path / "more" / "counts.npy")[UNK] == pytest.approx(0.1 * before[UNK], abs=1)
    old_V, new_V = probabilities(run, ["ba"]), probabilities(tmp_path / "more", ["ba"])
    assert new_V.sum() == pytest.approx(old_V.sum(), rel=1e-5)
    assert new_V[[UNK, -2, -1]] / old_V[UNK] == pytest.approx([0.1, 0.6, 0.3], rel=1e-4)


def test_an_unknown_word_that_was_never_trained_on(bnce: Command, texts: Path, tmp_path: Path) -> None:
    options = ["--valid", texts / "valid.txt", "--test", texts / "test.txt", "--min-count", 1, "--workers", 1]
    bnce("prepare", texts / "train.txt", *options, "--out", tmp_path / "corpus")
    options = ["--corpus", tmp_path / "corpus", "--model", "rnn", "--loss", "bnce", "--device", "cpu", *settings()]
    assert bnce("train", "wiki", *options, "--out", tmp_path / "run").status == 0
    before = np.load(tmp_path / "run" / "counts.npy")
    assert before[UNK] == 0
    (added,) = add(bnce, tmp_path / "run", tmp_path / "more", "zaba\n")["added"]
    assert added["count"] == before[before > 0].min(), "as rare as the rarest"
    after = np.load(tmp_path / "more" / "counts.npy")
    assert (after[UNK], after[-1], len(after)) == (0, added["count"], len(before) + 1)
    old_V, new_V = probabilities(tmp_path / "run", []), probabilities(tmp_path / "more", [])
    assert new_V.sum() == pytest.approx(old_V.sum(), rel=1e-5)
    assert new_V[[UNK, -1]] / old_V[UNK] == pytest.approx([0.1, 0.9], rel=1e-4)


def test_what_a_file_may_have(bnce: Command, trained: Path, tmp_path: Path) -> None:
    record = add(bnce, trained, tmp_path / "more", "zaba\t12\n\nété\nzobo\t\r\nba\t7\n")
    rarest = int(min(count for count in np.load(trained / "counts.npy")[2:] if count))
    assert [tuple(added.values()) for added in record["added"]] == [("zaba", 12), ("été", rarest), ("zobo", rarest)]
    assert record["already_known"] == ["ba"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("ok\nnew. york\n", "has 'new. york' on line 2, but this run reads it as 'new . york': write words as"),
        ("\t3\n", "has '' on line 1, but this run reads it as ''"),
        ("a\nb\na\n", "has 'a' on line 3 for the second time: remove one of them"),
        ("<unk>\n", "has '<unk>' on line 1, but this run reads it as '< unk >'"),
        ("a\tmany\n", "the count 'many' on line 1: give how often 'a' occurs"),
        ("a\t3\tbe,bi\n", r"the count '3\tbe,bi' on line 1"),
        ("a\t0\n", "the count '0' on line 1"),
        ("a\t-3\n", "the count '-3' on line 1"),
        (f"a\t{'9' * 5000}\n", f"the count '{'9' * 40}' on line 1"),
        ("Paris\n", "'Paris' on line 1, but this run reads it as 'paris'"),
        ("ok\nnew-york\n", "reads it as 'new - york'"),
        ("", "has no words"),
    ],
)
def test_what_it_may_not_have(refused: Refused, trained: Path, tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "list").write_text(content, encoding="utf-8")
    assert told in refused("vocab", trained, "--out", tmp_path / "out", "--add", tmp_path / "list")
    assert not (tmp_path / "out").exists()


def test_more_than_the_training_text_has(refused: Refused, trained: Path, tmp_path: Path) -> None:
    most = int(np.load(trained / "counts.npy").sum())
    (tmp_path / "list").write_text(f"zaba\t{most + 1}\n", encoding="utf-8")
    told = refused("vocab", trained, "--out", tmp_path / "out", "--add", tmp_path / "list")
    assert f"a text of the training text's size, from 1 to {most}, or leave it out." in told
