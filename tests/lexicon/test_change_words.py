"""Words changed after training: what is known stays, probability is conserved, and new words are guessed well.

Legend: N tokens.
"""

from __future__ import annotations

import math
import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from small_corpus import END, UNK, Watcher, small_config

from bnce import UserError, prepare
from bnce.corpus.prepare import encode_text
from bnce.evaluation.evaluate import Evaluation, evaluate
from bnce.lexicon.change_words import KEPT_UNKNOWN, change_words
from bnce.lexicon.word_list import NewWord
from bnce.runs.directory import LEXICON_FILE, RunDirectory
from bnce.runs.model_file import load_model, read_weights, save_weights
from bnce.runs.unknown_words import UnknownWords
from bnce.training.plan import create_run
from bnce.training.run import run_training

NUM_KNOWN = 80


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give texts in which words of two spellings take turns: what is next shows in how it is spelt."""
    directory = tmp_path_factory.mktemp("texts")
    generator = random.Random(1)
    pairs = [(first, second) for second in "aeiouy" for first in "bdfgklmnrs"]
    weights = [1 / (place + 4) for place in range(len(pairs))]
    for name, num_sentences in (("train", 3000), ("valid", 100), ("test", 400)):
        lines = []
        for _ in range(num_sentences):
            drawn = generator.choices(pairs, weights, k=8)
            words = [
                f"{second}{first}uz" if place % 2 else f"ka{first}{second}"
                for place, (first, second) in enumerate(drawn)
            ]
            lines.append(" ".join(words))
        (directory / f"{name}.txt").write_text("".join(f"{line} .\n" for line in lines), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def run(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Give a run over the more frequent words of the texts."""
    directory = tmp_path_factory.mktemp("lexicon")
    corpus = prepare(
        [str(texts / "train.txt")],
        directory / "corpus",
        valid=str(texts / "valid.txt"),
        test=str(texts / "test.txt"),
        vocab_size=NUM_KNOWN,
        num_workers=1,
    )
    config = small_config(
        corpus,
        model={"name": "lstm", "embedding_size": 12, "hidden_size": 16},
        training={"batch_size": 16, "num_steps": 10, "epochs": 2},
    )
    made = create_run(directory / "run", config, corpus)
    run_training(made, corpus, torch.device("cpu"), Watcher())
    return RunDirectory.open(made.path)


@pytest.fixture(scope="module")
def missing(texts: Path, run: RunDirectory) -> list[NewWord]:
    """Give the words that the run does not know, with their counts."""
    counts = Counter((texts / "train.txt").read_text(encoding="utf-8").split())
    return [NewWord(word, count) for word, count in counts.items() if word not in run.vocabulary]


def measure(run: RunDirectory, texts: Path) -> tuple[np.ndarray, Evaluation]:
    ids, _ = encode_text(str(texts / "test.txt"), run.vocabulary, run.normaliser)
    return ids, evaluate(load_model(run), ids)


def test_added_words_beat_shares_and_z_stays(
    run: RunDirectory, texts: Path, missing: list[NewWord], tmp_path: Path
) -> None:
    """Shares of `<unk>` know how often a word is, but not where it stands."""
    add = missing[:30]  # others stay unknown
    change = change_words(run, tmp_path / "more", add=add)
    assert [added.word for added in change.added] == [new.word for new in add]
    alike = [added.word[-2:] == near[-2:] == "uz" or added.word[:2] == near[:2] == "ka"
             for added in change.added for near, _ in added.neighbours[:3]]  # fmt: skip
    assert np.mean(alike) > 0.8
    more = RunDirectory.open(tmp_path / "more")
    assert more.vocabulary.words == [*run.vocabulary.words, *(new.word for new in add)]
    assert more.target_counts.sum() == run.target_counts.sum()
    before, after = measure(run, texts)[1], measure(more, texts)[1]
    # What shares would give for the same tokens, so that the two can be compared.
    share = {new.word: (new.count or 0) / run.target_counts[UNK] for new in add}
    words = (texts / "test.txt").read_text(encoding="utf-8").split()
    log_shares = sum(math.log(share.get(word, 1 - sum(share.values()))) for word in words if word not in run.vocabulary)
    shared_f = math.exp(-(before.log10_prob_f * math.log(10) + log_shares) / before.num_tokens)
    assert 0 < after.num_oov < before.num_oov
    # Measured: 29.6 against 30.9, and ln Z moves by 0.002.
    assert after.ppl_f < 0.97 * shared_f
    assert abs(after.log_z_mean - before.log_z_mean) < 0.02
    assert after.ppl_n == pytest.approx(after.ppl_f, rel=0.05)


def test_what_is_known_stays(run: RunDirectory, missing: list[NewWord], tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    change_words(run, tmp_path / "more", add=missing[:2])
    assert {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()} == before
    old, new = load_model(run), load_model(RunDirectory.open(tmp_path / "more"))
    size = len(run.vocabulary)
    assert torch.equal(new.embedding[:size], old.embedding)
    assert torch.equal(new.output.weight[:size], old.output.weight)
    others = [number for number in range(size) if number != UNK]
    assert torch.equal(new.output.bias[others], old.output.bias[others])
    given = sum(new.count or 0 for new in missing[:2]) / run.target_counts[UNK]
    lowered = new.output.bias.data[UNK] - old.output.bias.data[UNK]
    assert float(lowered) == pytest.approx(math.log(1 - given), abs=1e-5)


def test_more_than_the_unknown_word_has_comes_from_all(
    run: RunDirectory, missing: list[NewWord], tmp_path: Path
) -> None:
    total, unknown = int(run.target_counts.sum()), int(run.target_counts[UNK])
    change_words(run, tmp_path / "more", add=[NewWord(missing[0].word, total)])
    more = RunDirectory.open(tmp_path / "more")
    assert more.target_counts[UNK] == pytest.approx(KEPT_UNKNOWN * unknown, abs=1)
    new_total = total + total - (1 - KEPT_UNKNOWN) * unknown
    assert more.target_counts.sum() == pytest.approx(new_total, abs=1)
    shift = load_model(more).output.bias.data[END] - load_model(run).output.bias.data[END]
    assert float(shift) == pytest.approx(math.log(total / new_total), abs=1e-4)


def test_dropped_words_become_unknown_and_z_stays(run: RunDirectory, texts: Path, tmp_path: Path) -> None:
    drop = run.vocabulary.words[40:]
    change = change_words(run, tmp_path / "less", drop=[*drop, "nowhere"])
    assert (change.dropped, change.not_known) == (drop, ["nowhere"])
    less = RunDirectory.open(tmp_path / "less")
    assert less.vocabulary.words == run.vocabulary.words[:40]
    assert less.target_counts.sum() == run.target_counts.sum()
    assert less.target_counts[UNK] == run.target_counts[UNK] + run.target_counts[40:].sum()
    (ids, before), (new_ids, after) = measure(run, texts), measure(less, texts)
    assert np.array_equal(new_ids, np.where(ids >= 40, UNK, ids))
    assert abs(after.log_z_mean - before.log_z_mean) < 0.05
    # Without the adjustment <unk> would be as rare as before.
    model = load_model(less)
    with torch.no_grad():
        model.output.bias[UNK] = load_model(run).output.bias[UNK]
    assert evaluate(model, new_ids).ppl_n > 1.1 * after.ppl_n


def test_an_unknown_word_that_was_never_seen_learns_from_what_is_dropped(
    run: RunDirectory, texts: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(run.path, tmp_path / "copy")
    counts = run.target_counts.copy()
    counts[UNK] = 0
    np.save(copy / "counts.npy", counts, allow_pickle=False)
    changed = RunDirectory.open(copy)
    save_weights(changed, read_weights(run)[0], 1)
    change_words(changed, tmp_path / "less", drop=run.vocabulary.words[40:])
    less = RunDirectory.open(tmp_path / "less")
    assert less.target_counts[UNK] == counts[40:].sum()
    assert not torch.equal(load_model(less).output.weight[UNK], load_model(run).output.weight[UNK])
    assert math.isfinite(measure(less, texts)[1].ppl_f)


def test_given_neighbours_and_missing_counts(run: RunDirectory, missing: list[NewWord], tmp_path: Path) -> None:
    near = run.vocabulary.words[5:7]
    change = change_words(
        run, tmp_path / "more", add=[NewWord("zz", None, tuple(near)), NewWord(run.vocabulary.words[9])]
    )
    (added,) = change.added
    assert [word for word, _ in added.neighbours] == near
    assert added.count == run.target_counts[2:].min()
    assert change.already_known == [run.vocabulary.words[9]]
    for name in ("nowhere", "<unk>"):
        with pytest.raises(UserError, match=f"The similar word '{name}' of 'zz' is not a word of the run"):
            change_words(run, tmp_path / "other", add=[NewWord("zz", 1, (name,))])
    assert not (tmp_path / "other").exists()


def test_a_changed_run_can_be_changed_again(run: RunDirectory, missing: list[NewWord], tmp_path: Path) -> None:
    shared = UnknownWords({missing[0].word: 1.0, missing[1].word: 3.0, run.vocabulary.words[3]: 5.0}, rest=0.1)
    change = change_words(run, tmp_path / "open", unknown_words=shared)
    assert change.unknown_words is not None
    # A known word is not unknown.
    assert change.unknown_words.weights == {missing[0].word: 1.0, missing[1].word: 3.0}
    opened = RunDirectory.open(tmp_path / "open")
    again = change_words(opened, tmp_path / "again", add=[missing[0]], drop=[run.vocabulary.words[3]])
    assert again.unknown_words is not None
    assert again.unknown_words.weights == {missing[1].word: 3.0}
    attached = UnknownWords.of_run(tmp_path / "again")
    assert attached is not None
    assert attached.rest == 0.1
    assert (tmp_path / "again" / LEXICON_FILE).read_text(encoding="utf-8").count("num_added") == 2


def test_refusals(run: RunDirectory, missing: list[NewWord], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is on the list to add and on the list to drop"):
        change_words(run, tmp_path / "x", add=[NewWord("zz")], drop=["zz"])
    with pytest.raises(UserError, match="leaves only </s> and <unk>"):
        change_words(run, tmp_path / "x", drop=run.vocabulary.words[2:])
    with pytest.raises(
        UserError, match="The count of 'zz' is 10000000000000000000000, but the training text has only 30000"
    ):
        change_words(run, tmp_path / "x", add=[NewWord("yy", 3), NewWord("zz", 10**22)])
    with pytest.raises(UserError, match="already exists"):
        change_words(run, run.path, add=missing)
    with pytest.raises(UserError, match="All words of the list of unknown words are known"):
        change_words(run, tmp_path / "x", unknown_words=UnknownWords({run.vocabulary.words[5]: 1.0}))
    assert list(tmp_path.iterdir()) == []


def test_records_of_a_run_that_hold_something_else(run: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "odd")
    odd = RunDirectory.open(tmp_path / "odd")
    (odd.path / "summary.json").write_text('{"num_parameters": "many"}', encoding="utf-8")
    assert change_words(odd, tmp_path / "a", add=[NewWord("zz")]).num_words_after == len(run.vocabulary) + 1
    (odd.path / LEXICON_FILE).write_text('{"changes": 5}', encoding="utf-8")
    with pytest.raises(UserError, match="is damaged \\(its changes are not a list\\): restore the file"):
        change_words(odd, tmp_path / "b", add=[NewWord("zz")])
    assert not (tmp_path / "b").exists()
