"""A run that starts from another: the same model at first, rows by word, and better than starting by chance."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from small_corpus import UNK, Watcher, random_ids, small_config, write_corpus

from bnce import BatchNce, Corpus, UserError, calibrate
from bnce.corpus.vocabulary import Vocabulary
from bnce.editing.warm_start import check_same_network, inherited_settings, make_up_contexts, start_from
from bnce.evaluation.evaluate import evaluate
from bnce.runs.checkpoint import MODEL_FORMAT, read_tensors, state_files
from bnce.runs.directory import MODEL_FILE, Run
from bnce.runs.metrics import read_metrics
from bnce.runs.model_file import build_model, load_model, read_weights, save_weights
from bnce.training.run import Start, run_training

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def general(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Give a run that was trained on much text."""
    directory = tmp_path_factory.mktemp("general")
    corpus = write_corpus(
        directory / "corpus", {"train": random_ids(12_000), "valid": random_ids(400, seed=2), "test": random_ids(9)}
    )
    run = Run.create(directory / "run", small_config(corpus, training={"epochs": 3, "batch_size": 24}), corpus)
    run_training(run, corpus, CPU, Watcher())
    return Run.open(run.path)


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Give a little text of the same language."""
    sizes = {"train": 400, "valid": 400, "test": 400}
    splits = {name: random_ids(size, seed=size + place) for place, (name, size) in enumerate(sizes.items())}
    return write_corpus(tmp_path_factory.mktemp("little") / "corpus", splits)


def started(general: Run, corpus: Corpus, out: Path, **training: object) -> tuple[Run, Start]:
    sections = {"training": {"epochs": 1, **training}, "optimiser": {"learning_rate": 0.02}}
    config = small_config(corpus, **sections)
    config = msgspec.structs.replace(config, init=str(general.path))
    run = Run.create(out, config, corpus)
    return run, start_from(general, corpus.vocabulary, run.target_counts, config.loss)


def test_an_equal_vocabulary_gives_the_same_model(general: Run, little: Corpus, tmp_path: Path) -> None:
    run, start = started(general, little, tmp_path / "run")
    before = load_model(general).state_dict()
    assert all(torch.equal(start.tensors[name], tensor) for name, tensor in before.items())
    run_training(run, little, CPU, Watcher(), start=start)
    first = read_metrics(Run.open(run.path).path).records[0]
    expected = evaluate(load_model(general), little.split("valid"))
    assert first["step"] == 0
    assert first["ppl_f"] == pytest.approx(expected.ppl_f, rel=1e-6)
    assert first["ppl_n"] == pytest.approx(expected.ppl_n, rel=1e-6)
    assert first["loss"] is None


def test_adapting_beats_training_from_scratch(general: Run, little: Corpus, tmp_path: Path) -> None:
    run, start = started(general, little, tmp_path / "run")
    summary = run_training(run, little, CPU, Watcher(), start=start)
    fresh = Run.create(tmp_path / "fresh", small_config(little, training={"epochs": 3}), little)
    run_training(fresh, little, CPU, Watcher())
    adapted = evaluate(load_model(Run.open(run.path)), little.split("test"))
    scratch = evaluate(load_model(fresh), little.split("test"))
    assert adapted.ppl_f < 0.9 * scratch.ppl_f
    assert summary["init"]["run"] == str(general.path.resolve())
    assert summary["init"]["num_words_kept"] == len(general.vocabulary)
    assert run.config.init == str(general.path)


def test_a_model_that_gets_no_better_is_kept(general: Run, little: Corpus, tmp_path: Path) -> None:
    sections = {"training": {"epochs": 1}, "optimiser": {"learning_rate": 0.5, "body_learning_rate": 0.5}}
    config = msgspec.structs.replace(small_config(little, **sections), init=str(general.path))
    run = Run.create(tmp_path / "run", config, little)
    start = start_from(general, little.vocabulary, run.target_counts, BatchNce())
    run_training(run, little, CPU, Watcher(), start=start)
    kept, metadata = read_tensors(run.path / MODEL_FILE, MODEL_FORMAT)
    assert metadata["step"] == "0"
    assert torch.equal(kept["embedding"], start.tensors["embedding"])


def test_rows_go_by_word(general: Run) -> None:
    known = general.vocabulary.words
    words = Vocabulary([*known[:2], "fresh", *reversed(known[5:20]), "w7s"])
    counts = np.arange(1, len(words) + 1)
    start = start_from(general, words, counts, BatchNce())
    before = load_model(general).state_dict()
    for name in ("embedding", "output.weight"):
        assert start.tensors[name].shape[0] == len(words)
        for word in known[5:20]:
            ours, theirs = words.encode([word])[0], general.vocabulary.encode([word])[0]
            assert torch.equal(start.tensors[name][ours], before[name][theirs]), word
    for row in (UNK, 2, len(words) - 1):  # new words begin as <unk>, which they were
        assert torch.equal(start.tensors["embedding"][row], before["embedding"][UNK])
        assert torch.equal(start.tensors["output.weight"][row], before["output.weight"][UNK])
    assert all(torch.isfinite(tensor).all() for tensor in start.tensors.values())
    assert all(torch.equal(start.tensors[name], tensor) for name, tensor in before.items() if name.startswith("body."))
    assert {key: start.record[f"num_words_{key}"] for key in ("kept", "new", "dropped")} == {
        "kept": 17,
        "new": 2,
        "dropped": len(known) - 17,
    }


def test_lost_words_go_to_the_unknown_word(general: Run, little: Corpus) -> None:
    """And the new words share what it has then, by their counts in a text of the run's size."""
    known, counts = general.vocabulary.words, general.target_counts
    before = load_model(general).state_dict()["output.bias"]
    lost, unknown = counts[9:].sum(), counts[UNK] + counts[9:].sum()
    start = start_from(general, Vocabulary(known[:9]), counts[:9], BatchNce())
    after = start.tensors["output.bias"]
    assert float(after[UNK] - before[UNK]) == pytest.approx(np.log1p(lost / counts[UNK]), abs=1e-5)
    assert torch.equal(after[2:], before[2:9])
    new = np.append(counts[:9], 0.25 * unknown)
    start = start_from(general, Vocabulary([*known[:9], "fresh"]), new, BatchNce())
    share = 0.25 * unknown * counts.sum() / new.sum() / unknown
    changed = (start.tensors["output.bias"][[UNK, -1]] - after[UNK]).tolist()
    assert changed == pytest.approx(np.log([1 - share, share]).tolist(), abs=1e-3)


def test_stopped_before_its_first_step_it_goes_on_from_the_same_weights(
    general: Run, little: Corpus, tmp_path: Path
) -> None:
    whole, start = started(general, little, tmp_path / "whole")
    run_training(whole, little, CPU, Watcher(), start=start)
    run, start = started(general, little, tmp_path / "run")
    stops = iter([True])
    run_training(run, little, CPU, Watcher(), start=start, should_stop=lambda: next(stops))
    assert state_files(run.path)
    resumed = run_training(Run.open(run.path), little, CPU, Watcher(), resume=True)
    assert resumed["init"] == start.record
    ours, theirs = (read_tensors(each.path / MODEL_FILE, MODEL_FORMAT)[0] for each in (run, whole))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    steps = ([record["step"] for record in read_metrics(each.path).records] for each in (run, whole))
    assert next(steps) == next(steps)


def test_from_a_softmax_it_starts_normalised_by_the_constant(tmp_path: Path, little: Corpus) -> None:
    config = small_config(little, loss={"name": "softmax"}, training={"epochs": 1})
    source = Run.create(tmp_path / "softmax", config, little)
    run_training(source, little, CPU, Watcher())
    with torch.no_grad():
        tensors, _ = read_weights(source)
        tensors["output.bias"] += 3.0
        save_weights(source, tensors, 1)
    start = start_from(source, little.vocabulary, source.target_counts, BatchNce())
    model = build_model(source)
    model.load_state_dict(dict(start.tensors))
    assert evaluate(model, little.split("valid")).log_z_mean == pytest.approx(9.0, abs=0.3)


@pytest.mark.parametrize("loss", ["bnce", "softmax"])
@pytest.mark.parametrize("kind", ["constant", "head"])
def test_from_a_calibrated_run_it_keeps_its_settings(
    general: Run, little: Corpus, tmp_path: Path, loss: str, kind: str
) -> None:
    """`loss.log_z` says what the new run is normalised by; the start is normalised by that, too."""
    source = general
    if loss == "softmax":
        source = Run.create(tmp_path / "softmax", small_config(little, loss={"name": loss}), little)
        run_training(source, little, CPU, Watcher())
    calibrate(source, kind=kind, out=tmp_path / "new")
    new = Run.open(tmp_path / "new")
    start = start_from(new, new.vocabulary, new.target_counts, BatchNce())
    assert float(start.tensors["output.log_z"]) == new.config.loss.log_z
    model = load_model(new)
    as_calibrated = evaluate(model, little.split("test"))
    model.load_state_dict(start.tensors)
    as_started = evaluate(model, little.split("test"))
    assert as_started.ppl_f == pytest.approx(as_calibrated.ppl_f, rel=1e-5)
    if loss == "softmax":
        # As with any softmax: in the texts that it writes itself.
        assert float(make_up_contexts(model).mean()) == pytest.approx(new.config.loss.log_z, abs=1e-3)
        return
    assert as_started.ppl_n == pytest.approx(as_calibrated.ppl_n, rel=1e-5)
    # A learned constant stays what was learned, or fitted.
    learned = msgspec.structs.replace(new.config, loss=BatchNce(learn_log_z=True))
    kept = start_from(dataclasses.replace(new, config=learned), new.vocabulary, new.target_counts, BatchNce())
    assert torch.equal(kept.tensors["output.log_z"], read_weights(new)[0]["output.log_z"])


def test_what_does_not_fit_is_named(general: Run) -> None:
    config = small_config(model={"hidden_size": 9, "dropout": 0.5}, loss={"log_z": 8.0})
    with pytest.raises(UserError, match=r"model.hidden_size is 9, not 8; loss.log_z is 8.0, not 9.0: leave that"):
        check_same_network(config, general)
    with pytest.raises(UserError, match="model is lstm, not relu-lstm"):
        check_same_network(small_config(model={"name": "lstm"}), general)
    check_same_network(small_config(model={"order": 7}), general)
    assert inherited_settings(general.config, "relu-lstm", "bnce")["model.hidden_size"] == 8
    assert inherited_settings(general.config, "relu-lstm", "softmax")["loss.learn_log_z"] is False
