"""A calibrated run: PPLn comes to PPLf on the text, a head narrows the spread, and everything that uses a run does so.

Legend: N positions, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_corpus import END, VOCAB_SIZE, Watcher, random_ids, small_config, small_model, write_corpus

import bnce
from benchmarks import losses
from bnce import Corpus, UserError, calibrate
from bnce.calibration.fit import Fit, fit_constant, fit_head, judge
from bnce.calibration.run import fold
from bnce.calibration.sample import draw_sample
from bnce.evaluation.evaluate import evaluate
from bnce.export.to_onnx import export_onnx
from bnce.export.to_safetensors import export_rows
from bnce.export.to_transformers import export_transformers
from bnce.lexicon.add_words import add_words
from bnce.lexicon.start import make_up_contexts, start_from
from bnce.reading import read_object
from bnce.runs.checkpoint import (
    MODEL_FILE,
    MODEL_FORMAT,
    read_metadata,
    read_tensors,
)
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import load_model, read_calibration, read_weights
from bnce.runs.resuming import check_resumable
from bnce.runs.texts import open_part
from bnce.training.plan import create_run
from bnce.training.run import run_training
from tests.export.exported_runs import make_run

CPU = torch.device("cpu")
TRAINING = {"epochs": 3, "batch_size": 24}


def other_ids(num_tokens: int, seed: int = 5) -> np.ndarray:
    """Draw a text of another kind: rare words are as frequent as others, and other words follow."""
    ids = np.random.default_rng(seed).integers(END + 1, VOCAB_SIZE, num_tokens)
    ids[1::3] = ids[::3][: len(ids[1::3])]
    ids[9::10] = END
    return ids


def write_text(path: Path, ids: np.ndarray) -> Path:
    words = ["</s>", "zebra", *(f"w{number}" for number in range(2, VOCAB_SIZE))]
    sentences = np.split(ids, np.flatnonzero(ids == END) + 1)
    lines = (" ".join(words[number] for number in sentence if number != END) for sentence in sentences)
    path.write_text("".join(f"{line}\n" for line in lines if line), encoding="utf-8")
    return path


def train(directory: Path, loss: str, num_noise: int = 0) -> RunDirectory:
    place = directory / "corpus"
    splits = {"train": random_ids(12_000), "valid": random_ids(2000, seed=2), "test": random_ids(700, seed=3)}
    corpus = Corpus.open(place) if place.exists() else write_corpus(place, splits)
    config = small_config(corpus, loss={"name": loss, "num_noise": num_noise}, training=TRAINING)
    run = create_run(directory / loss, config, corpus)
    run_training(run, corpus, CPU, Watcher())
    return RunDirectory.open(run.path)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def trained(directory: Path) -> RunDirectory:
    """Give a run of B-NCE on one kind of text; nobody may change it."""
    return train(directory, "bnce")


@pytest.fixture(scope="module")
def softmax(directory: Path) -> RunDirectory:
    """Give a run of the softmax, which has no constant; nobody may change it."""
    return train(directory, "softmax")


@pytest.fixture(scope="module")
def text(directory: Path) -> Path:
    return write_text(directory / "other.txt", other_ids(6000))


@pytest.fixture(scope="module")
def unseen(directory: Path) -> Path:
    """Give another text of that other kind."""
    return write_text(directory / "unseen.txt", other_ids(6000, seed=6))


def test_on_text_of_another_kind_ppl_n_comes_to_ppl_f(
    trained: RunDirectory, text: Path, unseen: Path, tmp_path: Path
) -> None:
    before, home = bnce.evaluate(trained, text=text), bnce.evaluate(trained)
    assert before.ppl_n is not None
    assert abs(before.ppl_n / before.ppl_f - 1) > 0.02, "else there is nothing to show"
    result = bnce.calibrate(trained.path, text=text, out=tmp_path / "new", device="cpu")
    after = bnce.evaluate(tmp_path / "new", text=text)
    assert after.ppl_n == pytest.approx(after.ppl_f, rel=1e-5)
    assert after.ppl_f == before.ppl_f, "normalised scores do not change"
    assert after.log_z == pytest.approx(before.log_z_mean, abs=1e-5)
    assert result.log_z == pytest.approx(after.log_z, abs=1e-6)
    elsewhere = bnce.evaluate(tmp_path / "new", text=unseen)
    assert elsewhere.ppl_n == pytest.approx(elsewhere.ppl_f, rel=0.005)
    # What is told of the part that was held out is what happens on text that nobody had.
    assert result.before.ppl_n is not None
    assert result.before.ppl_f is not None
    assert result.before.ppl_n / result.before.ppl_f == pytest.approx(before.ppl_n / before.ppl_f, rel=0.01)
    assert result.after.ppl_n == pytest.approx(result.after.ppl_f, rel=0.01)
    assert result.after.difference_std == pytest.approx(elsewhere.log_z_std, rel=0.1)
    # The run that it was made of is as it was.
    assert bnce.evaluate(trained).ppl_n == home.ppl_n
    assert read_calibration(trained) is None


@pytest.mark.parametrize(("loss", "least"), [("bnce", 0.8), ("softmax", 0.6)])
def test_a_head_narrows_the_spread(
    text: Path, unseen: Path, tmp_path: Path, loss: str, least: float, request: Any
) -> None:
    run = request.getfixturevalue("trained" if loss == "bnce" else "softmax")
    before = bnce.evaluate(run, text=unseen)
    constant = bnce.calibrate(run, text=text, out=tmp_path / "constant")
    head = bnce.calibrate(run, text=text, kind="head", out=tmp_path / "head")
    after = bnce.evaluate(tmp_path / "head", text=unseen)
    assert after.ppl_f == pytest.approx(before.ppl_f, rel=1e-5), "the softmax does not change"
    assert after.ppl_n == pytest.approx(after.ppl_f, rel=0.01)
    assert after.log_z_std < least * before.log_z_std
    assert head.after.difference_std == pytest.approx(after.log_z_std, rel=0.15)
    assert head.after.difference_std < least * constant.after.difference_std
    assert head.ridge is not None
    assert constant.ridge is None
    assert constant.before == head.before


@pytest.mark.parametrize("kind", ["constant", "head"])
def test_what_is_told_is_of_positions_that_were_held_out(
    trained: RunDirectory, text: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bnce.calibration.run.MAX_WORDS", 400)
    result = calibrate(trained, text=text, kind=kind, out=tmp_path / "new")
    ids = open_part(trained, text=text).ids
    fitted, held_out = draw_sample(load_model(trained), [ids], 400, with_hidden=True).halves()
    fit = fit_head if kind == "head" else fit_constant
    assert result.num_held_out == len(held_out)
    assert result.after == judge(held_out, fit(fitted))
    assert result.before == judge(held_out, Fit(9.0))


def test_a_network_in_memory_is_given_what_was_fitted() -> None:
    model, ids = small_model("lstm", "softmax"), other_ids(500)
    before = evaluate(model, ids)
    sample = draw_sample(model, [ids], 500, with_hidden=True)
    fold(model, fit_head(sample))
    after = evaluate(model, ids)
    assert before.ppl_n is None
    assert after.ppl_n == pytest.approx(before.ppl_f, rel=1e-5)


def test_a_softmax_can_be_used_unnormalised_afterwards(softmax: RunDirectory, text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no constant Z: .* calibrate the run \('bnce calibrate'\)"):
        bnce.load(softmax.path).next_words("w3", normalised=False)
    result = bnce.calibrate(softmax, text=text, kind="head", out=tmp_path / "new")
    assert (result.log_z_before, result.before.ppl_n) == (None, None)
    assert result.before.difference_std > 0
    model = bnce.load(tmp_path / "new")
    assert model.self_normalised
    exact = [word.log10_prob for word in model.next_words("w3 w4", 5, normalised=True)]
    cheap = [word.log10_prob for word in model.next_words("w3 w4", 5, normalised=False)]
    np.testing.assert_allclose(cheap, exact, atol=4 * result.after.difference_std / np.log(10))


def test_every_unnormalised_path_divides_by_the_same(trained: RunDirectory, text: Path, tmp_path: Path) -> None:
    """Scores, prefixes, beam search, next words: after a head they are exact but for what it leaves over."""
    calibrate(trained, text=text, kind="head", out=tmp_path / "new")
    old, new = load_model(trained), load_model(RunDirectory.open(tmp_path / "new"))
    sentence = ["w3", "w9", "w20", "w5"]
    model, scorer = bnce.load(tmp_path / "new"), bnce.Scorer(new)
    ids = model.encode(sentence).tolist()
    states = [scorer.start()]
    for number in ids[:-1]:
        states += scorer.advance(states[-1:], [number])
    hidden_ND = torch.stack([state.states.hidden_BD[state.place] for state in states])
    with torch.no_grad():
        log_z_N = old.output.log_normaliser(hidden_ND).double()
        left_N = new.output.log_normaliser(hidden_ND).double() - float(new.output.log_z)
        exact_N = old.output.scores(hidden_ND, torch.tensor(ids).unsqueeze(1))[:, 0].double() - log_z_N
    expected_N = (exact_N + left_N).numpy()
    found = [
        model.score_words([sentence])[0].log_probs,
        model.score_words([sentence], share_prefixes=True)[0].log_probs,
        model.reader(carry=True).score([sentence])[0].log_probs,
        [float(scorer.score([state], [number])[0]) for state, number in zip(states, ids, strict=True)],
        [float(scorer.score_all(state)[number]) for state, number in zip(states, ids, strict=True)],
    ]
    for one in found:
        np.testing.assert_allclose(one, expected_N, atol=1e-5)


def test_what_is_stored_and_shown(trained: RunDirectory, text: Path, tmp_path: Path) -> None:
    result = calibrate(trained, text=[text, text], kind="head", out=tmp_path / "new")
    new = RunDirectory.open(tmp_path / "new")
    told = read_calibration(new)
    assert told == result.to_dict()
    assert told is not None
    assert told["texts"] == [str(text), str(text)]
    assert (told["num_positions"], told["num_held_out"], told["kind"]) == (12000, 2976, "head")
    assert told["date"].endswith("+00:00")
    before, after = (read_metadata(run.path / MODEL_FILE) for run in (trained, new))
    changed = {key for key in before | after if before.get(key) != after.get(key)}
    assert changed == {"calibration", "checksum"}
    names = {path.name for path in new.path.iterdir()}
    assert {"config.toml", "vocab.txt", "spelling.safetensors", "summary.json", MODEL_FILE} <= names
    assert not names & {"evaluation.json", "metrics.jsonl"}, "figures of what was replaced"
    with pytest.raises(UserError, match="is finished and has no state to resume from"):
        check_resumable(new)


def test_without_a_text_the_validation_split_is_taken(trained: RunDirectory, tmp_path: Path) -> None:
    result = calibrate(trained, out=tmp_path / "new")
    assert result.texts == [f"valid of {trained.config.corpus}"]
    after = bnce.evaluate(tmp_path / "new", split="valid")
    assert after.ppl_n == pytest.approx(after.ppl_f, rel=1e-5)
    assert 0 < result.log_z_error < after.log_z_std / 2


def test_by_sentence_is_for_those_who_score_sentences(trained: RunDirectory, text: Path, tmp_path: Path) -> None:
    result = calibrate(trained, text=text, by_sentence=True, out=tmp_path / "new")
    after = bnce.evaluate(tmp_path / "new", text=text)
    assert after.by_sentence is not None
    assert after.by_sentence.ppl_n == pytest.approx(after.by_sentence.ppl_f, rel=1e-5)
    assert abs((after.ppl_n or 0) / after.ppl_f - 1) > 1e-4, "in context Z is another"
    assert result.by_sentence
    assert (read_calibration(RunDirectory.open(tmp_path / "new")) or {})["by_sentence"] is True


@pytest.mark.parametrize("kind", ["constant", "head"])
@pytest.mark.parametrize("rows", ["float32", "bf16", "int8"])
def test_packed_rows_stay_packed(trained: RunDirectory, text: Path, tmp_path: Path, kind: str, rows: str) -> None:
    export_rows(trained, tmp_path / "packed", rows)
    result = calibrate(tmp_path / "packed", text=text, kind=kind, out=tmp_path / "new")
    packed = RunDirectory.open(tmp_path / "new")
    dtype = {"float32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}[rows]
    assert read_tensors(packed.path / MODEL_FILE, MODEL_FORMAT)[0]["output.weight"].dtype == dtype
    assert float(read_metadata(packed.path / MODEL_FILE)["log_z"]) == pytest.approx(result.log_z, abs=1e-6)
    after = bnce.evaluate(packed, text=text)
    assert after.ppl_n == pytest.approx(after.ppl_f, rel=0.01 if kind == "head" else 1e-5)


def test_what_is_made_of_a_calibrated_run_is_calibrated(softmax: RunDirectory, text: Path, tmp_path: Path) -> None:
    calibrate(softmax, text=text, kind="head", out=tmp_path / "new")
    new = RunDirectory.open(tmp_path / "new")
    export_rows(new, tmp_path / "packed", "bf16")
    add_words(new, tmp_path / "words", {"yak": 5})
    export_transformers(new, tmp_path / "transformers")
    for name in ("packed", "words", "transformers"):
        made = RunDirectory.open(tmp_path / name)
        assert read_calibration(made) == read_calibration(new)
        measured = bnce.evaluate(made, text=text)
        assert measured.ppl_n == pytest.approx(measured.ppl_f, rel=0.01)
    export_onnx(new, tmp_path / "onnx")
    record = read_object(tmp_path / "onnx" / "model.json")
    assert record["self_normalised"] is True
    assert record["log_z"] == pytest.approx(float(load_model(new).output.log_z))


@pytest.mark.parametrize("loss", ["bnce", "softmax"])
@pytest.mark.parametrize("kind", ["constant", "head"])
def test_a_run_that_starts_from_a_calibrated_one_keeps_its_settings(
    text: Path, tmp_path: Path, loss: str, kind: str, request: Any
) -> None:
    """`loss.log_z` says what the new run is normalised by; the start is normalised by that, too."""
    source = request.getfixturevalue("trained" if loss == "bnce" else "softmax")
    calibrate(source, text=text, kind=kind, out=tmp_path / "new")
    new = RunDirectory.open(tmp_path / "new")
    start = start_from(new, new.vocabulary, new.target_counts, "bnce")
    assert float(start.tensors["output.log_z"]) == new.config.loss.log_z
    model = load_model(new)
    as_calibrated = evaluate(model, other_ids(500))
    model.load_state_dict(start.tensors)
    as_started = evaluate(model, other_ids(500))
    assert as_started.ppl_f == pytest.approx(as_calibrated.ppl_f, rel=1e-5)
    if loss == "softmax":
        # As with any softmax: in the texts that it writes itself.
        assert float(make_up_contexts(model).mean()) == pytest.approx(new.config.loss.log_z, abs=1e-3)
    else:
        assert as_started.ppl_n == pytest.approx(as_calibrated.ppl_n, rel=1e-5)
    # A learned constant stays what was learned, or fitted.
    learned = dataclasses.replace(new.config, loss=dataclasses.replace(new.config.loss, learn_log_z=True))
    kept = start_from(dataclasses.replace(new, config=learned), new.vocabulary, new.target_counts, loss)
    assert torch.equal(kept.tensors["output.log_z"], read_weights(new)[0]["output.log_z"])


@pytest.mark.parametrize("body", ["ffnn", "rnn", "relu-lstm", "transformer"])
def test_every_body(tmp_path: Path, text: Path, body: str) -> None:
    run = make_run(tmp_path, body)
    calibrate(run, text=text, kind="head", out=tmp_path / "new")
    after = bnce.evaluate(tmp_path / "new", text=text)
    assert after.log_z_std < bnce.evaluate(run, text=text).log_z_std
    assert after.ppl_n == pytest.approx(after.ppl_f, rel=0.02)


def test_refused(trained: RunDirectory, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    with pytest.raises(UserError, match="Unknown kind of calibration 'line': choose one of constant, head"):
        calibrate(trained, text=text, kind="line", out=out)
    with pytest.raises(UserError, match="already exists"):
        calibrate(trained, text=text, out=trained.path)
    with pytest.raises(UserError, match="There is no text to calibrate on: give text"):
        calibrate(trained, text=[], out=out)
    for loss in (kind.name for kind in bnce.LOSSES if kind.structure is not None):
        exact = make_run(tmp_path / loss, "lstm", loss)
        with pytest.raises(UserError, match=f"was trained with {loss}, whose scores are exactly normalised: there is"):
            calibrate(exact, text=text, out=out)
    assert not out.exists()


def test_a_failure_leaves_the_run_as_it_was(
    trained: RunDirectory, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained.path, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bnce.runs.checkpoint.save_file", fail)
    with pytest.raises(UserError, match="The disk is full"):
        calibrate(tmp_path / "run", text=text, out=tmp_path / "new")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()} == before
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("losses_of_its_own")
def test_scores_that_are_odds_are_told_of(tmp_path: Path, text: Path) -> None:
    losses.register()
    run = train(tmp_path, "negative-sampling", num_noise=5)
    told: list[str] = []
    calibrate(run, text=text, out=tmp_path / "new", notice=told.append)
    assert "Negative sampling learns no probabilities" in told[0]
