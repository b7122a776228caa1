"""A calibrated run: PPLn comes to PPLf on the text, a head narrows the spread, and everything that uses a run does so.

Legend: N positions, V vocabulary.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command
from run_files import MODEL_FILE
from safetensors import safe_open
from small_corpus import END, VOCAB_SIZE, random_ids, write_corpus
from small_training import train_small

from benchmarks import losses
from bnce import LOSSES, Scorer, UserError, calibrate, evaluate, load
from bnce import train as train_run
from tests.export.exported_runs import make_run

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


def train(directory: Path, loss: str, **settings: object) -> Path:
    place = directory / "corpus"
    if not place.exists():
        splits = {"train": random_ids(12_000), "valid": random_ids(2000, seed=2), "test": random_ids(700, seed=3)}
        write_corpus(place, splits)
    train_small(directory / loss, place, loss={"name": loss, **settings}, training=TRAINING)
    return directory / loss


def metadata_of(run: Path) -> dict[str, str]:
    """Read what a model file says of itself."""
    with safe_open(run / MODEL_FILE, framework="numpy") as file:
        return dict(file.metadata())


def calibration_of(run: Path) -> dict[str, Any] | None:
    """Read what a run was calibrated to."""
    return json.loads(metadata_of(run).get("calibration", "null"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def trained(directory: Path) -> Path:
    """Give a run of B-NCE on one kind of text; nobody may change it."""
    return train(directory, "bnce")


@pytest.fixture(scope="module")
def softmax(directory: Path) -> Path:
    """Give a run of the softmax, which has no constant; nobody may change it."""
    return train(directory, "softmax")


@pytest.fixture(scope="module")
def text(directory: Path) -> Path:
    return write_text(directory / "other.txt", other_ids(6000))


@pytest.fixture(scope="module")
def unseen(directory: Path) -> Path:
    """Give another text of that other kind."""
    return write_text(directory / "unseen.txt", other_ids(6000, seed=6))


def test_on_text_of_another_kind_ppl_n_comes_to_ppl_f(trained: Path, text: Path, unseen: Path, tmp_path: Path) -> None:
    before, home = evaluate(trained, text=text), evaluate(trained)
    assert before.ppl_n is not None
    assert abs(before.ppl_n / before.ppl_f - 1) > 0.02, "else there is nothing to show"
    result = calibrate(trained, text=text, out=tmp_path / "new", device="cpu")
    after = evaluate(tmp_path / "new", text=text)
    assert after.ppl_n == pytest.approx(after.ppl_f, rel=1e-5)
    assert after.ppl_f == before.ppl_f, "normalised scores do not change"
    assert after.log_z == pytest.approx(before.log_z_mean, abs=1e-5)
    assert result.log_z == pytest.approx(after.log_z, abs=1e-6)
    elsewhere = evaluate(tmp_path / "new", text=unseen)
    assert elsewhere.ppl_n == pytest.approx(elsewhere.ppl_f, rel=0.005)
    # What is told of the part that was held out is what happens on text that nobody had.
    assert result.before.ppl_n is not None
    assert result.before.ppl_f is not None
    assert result.before.ppl_n / result.before.ppl_f == pytest.approx(before.ppl_n / before.ppl_f, rel=0.01)
    assert result.after.ppl_n == pytest.approx(result.after.ppl_f, rel=0.01)
    assert result.after.difference_std == pytest.approx(elsewhere.log_z_std, rel=0.1)
    # The run that it was made of is as it was.
    assert evaluate(trained).ppl_n == home.ppl_n
    assert calibration_of(trained) is None


@pytest.mark.parametrize(("loss", "least"), [("bnce", 0.8), ("softmax", 0.6)])
def test_a_head_narrows_the_spread(
    text: Path, unseen: Path, tmp_path: Path, loss: str, least: float, request: Any
) -> None:
    run = request.getfixturevalue("trained" if loss == "bnce" else "softmax")
    before = evaluate(run, text=unseen)
    constant = calibrate(run, text=text, out=tmp_path / "constant")
    head = calibrate(run, text=text, kind="head", out=tmp_path / "head")
    after = evaluate(tmp_path / "head", text=unseen)
    assert after.ppl_f == pytest.approx(before.ppl_f, rel=1e-5), "the softmax does not change"
    assert after.ppl_n == pytest.approx(after.ppl_f, rel=0.01)
    assert after.log_z_std < least * before.log_z_std
    assert head.after.difference_std == pytest.approx(after.log_z_std, rel=0.15)
    assert head.after.difference_std < least * constant.after.difference_std
    assert head.ridge is not None
    assert constant.ridge is None
    assert constant.before == head.before


def test_a_softmax_can_be_used_unnormalised_afterwards(softmax: Path, text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no constant Z: .* calibrate the run \('bnce calibrate'\)"):
        load(softmax).next_words("w3", mode="unnormalised")
    result = calibrate(softmax, text=text, kind="head", out=tmp_path / "new")
    assert (result.log_z_before, result.before.ppl_n) == (None, None)
    assert result.before.difference_std > 0
    model = load(tmp_path / "new")
    assert model.self_normalised
    exact = [word.log_prob for word in model.next_words("w3 w4", 5, mode="normalised")]
    cheap = [word.log_prob for word in model.next_words("w3 w4", 5, mode="unnormalised")]
    np.testing.assert_allclose(cheap, exact, atol=4 * result.after.difference_std)


def test_every_unnormalised_path_divides_by_the_same(trained: Path, text: Path, tmp_path: Path) -> None:
    """Scores, prefixes, beam search, next words: after a head they are exact but for what it leaves over."""
    calibrate(trained, text=text, kind="head", out=tmp_path / "new")
    old, new = load(trained).network, load(tmp_path / "new").network
    sentence = ["w3", "w9", "w20", "w5"]
    model, scorer = load(tmp_path / "new"), Scorer(new)
    ids = model.encode(sentence).tolist()
    states = [scorer.start()]
    for number in ids[:-1]:
        states += scorer.advance(states[-1:], [number])
    hidden_ND = np.stack([state.states.hidden_BD[state.place] for state in states])
    left_N = new.log_normaliser(hidden_ND).astype(np.float64) - new.log_z
    exact_N = old.scores(hidden_ND, np.array(ids)[:, None])[:, 0].astype(np.float64) - old.log_normaliser(hidden_ND)
    expected_N = exact_N + left_N
    found = [
        model.score_words([sentence])[0].log_probs,
        model.score_words([sentence], share=True)[0].log_probs,
        next(model.stream([sentence], carry=True)).log_probs,
        [float(scorer.score([state], [number])[0]) for state, number in zip(states, ids, strict=True)],
        [float(model.distribution(state)[number]) for state, number in zip(states, ids, strict=True)],
    ]
    for one in found:
        np.testing.assert_allclose(one, expected_N, atol=1e-5)


def test_what_is_stored_and_shown(trained: Path, text: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    result = calibrate(trained, text=[text, text], kind="head", out=new)
    told = calibration_of(new)
    assert told == result.to_dict()
    assert told is not None
    assert told["texts"] == [str(text), str(text)]
    assert (told["num_positions"], told["num_held_out"], told["kind"]) == (12000, 2976, "head")
    assert told["date"].endswith("+00:00")
    before, after = metadata_of(trained), metadata_of(new)
    changed = {key for key in before | after if before.get(key) != after.get(key)}
    assert changed == {"calibration", "checksum"}
    names = {path.name for path in new.iterdir()}
    assert {"config.toml", "vocab.txt", "spelling.safetensors", "summary.json", MODEL_FILE} <= names
    assert not names & {"evaluation.json", "metrics.jsonl"}, "figures of what was replaced"
    with pytest.raises(UserError, match="has no state to resume from"):
        train_run(out=new, resume=True, settings={"training.epochs": 9})


def test_without_a_text_the_validation_split_is_taken(trained: Path, tmp_path: Path) -> None:
    result = calibrate(trained, out=tmp_path / "new")
    assert result.texts == [f"valid of {trained.parent / 'corpus'}"]
    after = evaluate(tmp_path / "new", split="valid")
    assert after.ppl_n == pytest.approx(after.ppl_f, rel=1e-5)
    assert 0 < result.log_z_error < after.log_z_std / 2


def test_by_sentence_is_for_those_who_score_sentences(trained: Path, text: Path, tmp_path: Path) -> None:
    result = calibrate(trained, text=text, by_sentence=True, out=tmp_path / "new")
    after = evaluate(tmp_path / "new", text=text)
    assert after.by_sentence is not None
    assert after.by_sentence.ppl_n == pytest.approx(after.by_sentence.ppl_f, rel=1e-5)
    assert abs((after.ppl_n or 0) / after.ppl_f - 1) > 1e-4, "in context Z is another"
    assert result.by_sentence
    assert (calibration_of(tmp_path / "new") or {})["by_sentence"] is True


@pytest.mark.parametrize("kind", ["constant", "head"])
@pytest.mark.parametrize(("rows", "dtype"), [("float32", "F32"), ("bf16", "BF16"), ("int8", "I8")])
def test_packed_rows_stay_packed(
    bnce: Command, trained: Path, text: Path, tmp_path: Path, kind: str, rows: str, dtype: str
) -> None:
    assert bnce("export", trained, "--to", "safetensors", "--rows", rows, "--out", tmp_path / "rows").status == 0
    packed = tmp_path / "new"
    result = calibrate(tmp_path / "rows", text=text, kind=kind, out=packed)
    with safe_open(packed / MODEL_FILE, framework="numpy") as file:
        assert file.get_slice("output.weight").get_dtype() == dtype
    assert load(packed).log_z == pytest.approx(result.log_z, abs=1e-6)
    after = evaluate(packed, text=text)
    assert after.ppl_n == pytest.approx(after.ppl_f, rel=0.01 if kind == "head" else 1e-5)


def test_what_is_made_of_a_calibrated_run_is_calibrated(
    bnce: Command, softmax: Path, text: Path, tmp_path: Path
) -> None:
    new, words = tmp_path / "new", tmp_path / "yak.txt"
    calibrate(softmax, text=text, kind="head", out=new)
    words.write_text("yak\n", encoding="utf-8")
    for name, arguments in (
        ("packed", ["export", new, "--to", "safetensors", "--rows", "bf16"]),
        ("words", ["vocab", new, "--add", words]),
        ("transformers", ["export", new, "--to", "transformers"]),
    ):
        assert bnce(*arguments, "--out", tmp_path / name).status == 0
        assert calibration_of(tmp_path / name) == calibration_of(new)
        measured = evaluate(tmp_path / name, text=text)
        assert measured.ppl_n == pytest.approx(measured.ppl_f, rel=0.01)
    assert bnce("export", new, "--to", "onnx", "--out", tmp_path / "onnx").status == 0
    record = json.loads((tmp_path / "onnx" / "model.json").read_text(encoding="utf-8"))
    assert record["self_normalised"] is True
    assert record["log_z"] == pytest.approx(load(new).log_z)


@pytest.mark.parametrize("body", ["ffnn", "rnn", "relu-lstm", "transformer"])
def test_every_body(tmp_path: Path, text: Path, body: str) -> None:
    run = make_run(tmp_path, body).path
    calibrate(run, text=text, kind="head", out=tmp_path / "new")
    after = evaluate(tmp_path / "new", text=text)
    assert after.log_z_std < evaluate(run, text=text).log_z_std
    assert after.ppl_n == pytest.approx(after.ppl_f, rel=0.02)


def test_refused(trained: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    with pytest.raises(UserError, match="Unknown kind of calibration 'line': choose one of constant, head"):
        calibrate(trained, text=text, kind="line", out=out)
    with pytest.raises(UserError, match="already exists"):
        calibrate(trained, text=text, out=trained)
    with pytest.raises(UserError, match="There is no text to calibrate on: give text"):
        calibrate(trained, text=[], out=out)
    for loss in (name for name, kind in LOSSES.items() if kind.structure):
        exact = make_run(tmp_path / loss, "lstm", loss).path
        with pytest.raises(UserError, match=f"was trained with {loss}, whose scores are exactly normalised: there is"):
            calibrate(exact, text=text, out=out)
    assert not out.exists()


def test_a_failure_leaves_the_run_as_it_was(
    trained: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained, tmp_path / "run")
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
