"""What is looked at in a corpus and in a run, and what damage it shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from damage import damaged
from export.exported_runs import make_run
from small_corpus import small_config, small_corpus

from bnce.export.to_onnx import export_onnx
from bnce.measure.finding import Finding
from bnce.measure.integrity import examine_directory
from bnce.runs.checkpoint import MODEL_FILE, MODEL_FORMAT, save_state, state_files, write_tensors
from bnce.runs.directory import RunDirectory
from bnce.runs.identity import UNKNOWN_WORDS_FILE
from bnce.runs.metrics import append_metrics
from bnce.runs.model_file import build_model, save_weights


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    corpus = small_corpus(tmp_path / "corpus")
    made = RunDirectory.create(tmp_path / "run", small_config(corpus), corpus)
    (made.path / UNKNOWN_WORDS_FILE).write_bytes(b"<unk>\t0.0\t1\nzebra\t1.0\n")
    model = build_model(made)
    save_weights(made, model.state_dict(), 1)
    for step in (1, 2):
        save_state(made.path, step, model.state_dict(), {"step": step}, made.origin)
        append_metrics(made.path, {"step": step, "ppl_f": 3.5})
    for name in ("summary", "evaluation"):
        made.write_json(f"{name}.json", {"status": "finished"})
    return made


def wrong(path: Path) -> dict[str, str]:
    _, findings = examine_directory(path)
    return {finding.name: finding.detail for finding in findings if not finding.well}


def find(path: Path, name: str) -> Finding:
    return {finding.name: finding for finding in examine_directory(path)[1]}[name]


def test_damage_in_any_file_shows(run: RunDirectory) -> None:
    assert wrong(run.path) == {}
    # Of these no checksum is kept: only damage to their form shows.
    unsigned = {"config.toml", "metrics.jsonl", "summary.json", "evaluation.json"}
    for file in sorted(path for path in run.path.iterdir() if path.is_file()):
        content = file.read_bytes()
        shows = 0
        for seed in range(16):
            file.write_bytes(damaged(content, seed))
            shows += bool(wrong(run.path))
        file.write_bytes(content)
        assert shows >= (3 if file.name in unsigned else 12), file.name
    assert wrong(run.path) == {}


def test_damage_in_any_file_of_a_corpus_shows(tmp_path: Path) -> None:
    place = small_corpus(tmp_path / "corpus").directory
    for file in sorted(place.iterdir()):
        content = file.read_bytes()
        shows = 0
        for seed in range(16):
            file.write_bytes(damaged(content, seed))
            shows += bool(wrong(place))
        file.write_bytes(content)
        assert shows >= 13, file.name
    assert wrong(place) == {}


def test_damage_in_any_file_of_an_exported_run_shows(tmp_path: Path) -> None:
    """Also where opening it reads too little to notice: in the tables, the counts and the index of the words."""
    place = tmp_path / "exported"
    export_onnx(make_run(tmp_path, "lstm"), place)
    names = {file.name for file in place.iterdir()}
    kind, findings = examine_directory(place)
    assert (kind, {finding.name for finding in findings}) == ("exported run", names)
    for name in sorted(names - {"model.json"}):
        content = (place / name).read_bytes()
        for damage in (content[:-1] + bytes([content[-1] ^ 1]), content[:-1], content + b"0"):
            (place / name).write_bytes(damage)
            (told,) = wrong(place).values()
            assert f"is damaged: {name} is not the file that was exported; export the run again." in told
        (place / name).unlink()
        assert list(wrong(place)) == [name]
        (place / name).write_bytes(content)
    assert wrong(place) == {}
    (place / "model.json").unlink()
    assert list(wrong(place)) == ["model.json"]


def test_everything_is_looked_at_whatever_else_is_wrong(run: RunDirectory) -> None:
    (run.path / "vocab.txt").unlink()
    state = state_files(run.path)[0]
    state.write_bytes(state.read_bytes()[:-1])
    (run.path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\xff\n')
    found = wrong(run.path)
    assert set(found) == {"vocab.txt", MODEL_FILE, state.name, "metrics.jsonl"}
    assert found["metrics.jsonl"] == "line 2 is damaged (byte 0 is not UTF-8)"
    corpus = run.path.parent / "corpus"
    (corpus / "vocab.txt").unlink()
    (corpus / "valid.npy").write_bytes(b"")
    assert set(wrong(corpus)) == {"vocab.txt", "valid.npy"}


@pytest.mark.parametrize(
    ("lines", "detail"),
    [
        (['{"step": 2}', '{"step": 1}'], "line 2 has the step 1 after 2"),
        (['{"step": 1}', "null"], "line 2 is damaged (it is not a JSON object)"),
        (['{"step": null}'], "line 1 is damaged (its step is None)"),
    ],
)
def test_lines_of_metrics(run: RunDirectory, lines: list[str], detail: str) -> None:
    (run.path / "metrics.jsonl").write_text("\n".join(lines))
    assert wrong(run.path) == {"metrics.jsonl": detail}


def test_what_earlier_versions_and_other_programs_leave_out(run: RunDirectory) -> None:
    tensors = build_model(run).state_dict()
    write_tensors(run.path / MODEL_FILE, tensors, MODEL_FORMAT, {"vocabulary": run.vocabulary.digest})
    assert "an earlier version stored nothing else" in find(run.path, MODEL_FILE).detail
    path = run.path.parent / "corpus" / "corpus.json"
    record = json.loads(path.read_text())
    del record["sha256"], record["counts"]
    path.write_text(json.dumps({**record, "version": 2}))
    assert "which stored no checksum" in find(path.parent, "corpus.json").detail
    assert wrong(path.parent) == {}


def test_files_that_are_not_the_models_own(run: RunDirectory) -> None:
    lines = (run.path / "vocab.txt").read_text().splitlines()
    (run.path / "vocab.txt").write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]) + "\n")
    (run.path / UNKNOWN_WORDS_FILE).unlink()
    found = wrong(run.path)
    assert set(found) == {"vocab.txt", UNKNOWN_WORDS_FILE, MODEL_FILE}
    assert found["vocab.txt"].startswith("vocab.txt changed after model.safetensors was written; restore")
    assert found[UNKNOWN_WORDS_FILE].startswith("unknown_words.tsv is missing: restore")


def test_a_file_that_is_gone_is_missed(run: RunDirectory) -> None:
    run.write_json("summary.json", {"status": "finished", "step": 2})
    assert wrong(run.path) == {}
    last = state_files(run.path)[-1]
    last.rename(run.path / "elsewhere")
    assert wrong(run.path) == {last.name: "missing; the run ended at this step"}
    (run.path / "elsewhere").rename(last)
    (run.path / MODEL_FILE).unlink()
    assert set(wrong(run.path)) == {MODEL_FILE}
    run.write_json("summary.json", {"status": "finished", "step": 2, "model_removed": True})
    assert wrong(run.path) == {}, "an experiment was asked not to keep it"


def test_the_older_of_two_states_is_missed(run: RunDirectory) -> None:
    older, newer = state_files(run.path)
    older.rename(run.path / "elsewhere")
    assert wrong(run.path) == {older.name: f"missing; {newer.name} was saved after it"}


def test_bytes_after_the_end_of_an_array_show(run: RunDirectory) -> None:
    with open(run.path / "counts.npy", "ab") as file:
        file.write(b"\0" * 32)
    assert "it is longer than its header says" in wrong(run.path)["counts.npy"]


def test_leftovers_are_named(run: RunDirectory) -> None:
    (run.path / ".model.safetensors.123.partial").touch()
    assert "the next training removes it" in find(run.path, ".model.safetensors.123.partial").detail
    assert wrong(run.path) == {}
