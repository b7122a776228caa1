"""A run on disk: written whole, read back equal, and refused in one sentence when it is damaged."""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_corpus import random_ids, small_config, small_corpus, write_corpus

from bnce.corpus.store import Corpus
from bnce.corpus.vocabulary import Vocabulary
from bnce.errors import UserError
from bnce.machine.devices import choose_device, describe_device
from bnce.runs.checkpoint import MODEL_FILE, MODEL_FORMAT, write_tensors
from bnce.runs.directory import RunDirectory
from bnce.runs.identity import UNKNOWN_WORDS_FILE


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return small_corpus(tmp_path / "corpus")


@pytest.fixture
def run(tmp_path: Path, corpus: Corpus) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs" / "run", small_config(corpus), corpus)


def test_opens_as_it_was_created(run: RunDirectory, corpus: Corpus) -> None:
    opened = RunDirectory.open(run.path)
    assert opened.config == run.config == small_config(corpus)
    assert opened.vocabulary == corpus.vocabulary
    assert opened.normaliser == corpus.normaliser
    assert opened.target_counts.tolist() == run.target_counts.tolist()
    assert opened.owner == run.owner


def test_two_runs_share_nothing_but_their_settings(tmp_path: Path, run: RunDirectory, corpus: Corpus) -> None:
    again = RunDirectory.create(tmp_path / "again", run.config, corpus)
    assert again.owner == run.owner
    other = RunDirectory.create(tmp_path / "other", small_config(corpus, training={"seed": 2}), corpus)
    assert other.owner != run.owner
    words = write_corpus(tmp_path / "words", {"train": random_ids(100, 29), "valid": random_ids(9, 29)}, 29)
    elsewhere = RunDirectory.create(tmp_path / "elsewhere", run.config, words)
    assert elsewhere.owner != run.owner


def test_does_not_write_over_anything(run: RunDirectory, corpus: Corpus) -> None:
    before = (run.path / "config.toml").read_bytes()
    with pytest.raises(UserError, match="already exists: give another path"):
        RunDirectory.create(run.path, small_config(corpus, training={"seed": 2}), corpus)
    assert (run.path / "config.toml").read_bytes() == before


def test_appears_whole_or_not_at_all(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **keywords: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(UserError, match="The disk is full"):
        RunDirectory.create(tmp_path / "place" / "run", small_config(corpus), corpus)
    assert list((tmp_path / "place").iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_is_full_at_the_counts(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    write, save = Vocabulary.write, np.save

    def write_before_a_full_disk(vocabulary: Vocabulary, path: Path) -> None:
        write(vocabulary, path)
        path.with_name("counts.npy").symlink_to("/dev/full")

    def fall_short(file: object, *arguments: Any, **keywords: Any) -> None:
        # What NumPy says when a part still fits: there is no number of an error in it.
        if not isinstance(file, io.BytesIO):
            raise OSError("3002 requested and 1520 written")
        save(file, *arguments, **keywords)

    monkeypatch.setattr(Vocabulary, "write", write_before_a_full_disk)
    monkeypatch.setattr(np, "save", fall_short)
    with pytest.raises(UserError, match="The disk is full"):
        RunDirectory.create(tmp_path / "place" / "run", small_config(corpus), corpus)
    assert list((tmp_path / "place").iterdir()) == []


def test_a_model_comes_back_bit_for_bit_and_ready_for_use(run: RunDirectory) -> None:
    model = run.build_model()
    run.save_model(model, 5)
    drawn = torch.get_rng_state()
    loaded = run.load_model()
    assert torch.equal(torch.get_rng_state(), drawn), "a start that the file replaces was drawn"
    assert not loaded.training
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(loaded.output.noise.log_probs_V, model.output.noise.log_probs_V)


def test_a_description_takes_the_shares_of_unknown_words_along(tmp_path: Path, run: RunDirectory) -> None:
    for name, content in (("without", None), ("with", b"<unk>\t0.0\t1\nzebra\t1.0\n")):
        copy = tmp_path / name
        copy.mkdir()
        if content is not None:
            (run.path / UNKNOWN_WORDS_FILE).write_bytes(content)
        run.copy_description(copy)
        assert (copy / UNKNOWN_WORDS_FILE).exists() == (content is not None)
        assert RunDirectory.open(copy).vocabulary == run.vocabulary
    assert (copy / UNKNOWN_WORDS_FILE).read_bytes() == content


def test_a_run_without_a_model_says_so(run: RunDirectory) -> None:
    with pytest.raises(UserError, match="has no model yet: train it up to its first evaluation"):
        run.load_model()


def test_a_model_of_other_sizes_is_refused(tmp_path: Path, run: RunDirectory, corpus: Corpus) -> None:
    wider = RunDirectory.create(tmp_path / "wider", small_config(corpus, model={"hidden_size": 9}), corpus)
    wider.save_model(wider.build_model(), 1)
    (wider.path / MODEL_FILE).rename(run.path / MODEL_FILE)
    with pytest.raises(UserError, match=r"config.toml \(hidden_size was 9, is 8\) changed after model.safetensors was"):
        run.load_model()
    write_tensors(run.path / MODEL_FILE, wider.build_model().state_dict(), MODEL_FORMAT, {"owner": "of 0.1.0"})
    with pytest.raises(UserError, match=r"does not fit the run's config.toml and vocab.txt: size mismatch") as caught:
        run.load_model()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("config.toml", b"[model\n", "config.toml' is not valid TOML"),
        ("config.toml", b"\xff\xfe", "config.toml' is not valid TOML"),
        ("config.toml", b"[model]\nname = 'gru'\n", "Unknown model 'gru'"),
        ("config.toml", b"[model]\nhiden_size = 3\n", r"'hiden_size'.*Did you mean 'hidden_size'\?"),
        ("normaliser.json", b"{", "is incomplete or damaged"),
        ("normaliser.json", b"[]", "is incomplete or damaged"),
        ("normaliser.json", None, "is incomplete or damaged"),
        ("counts.npy", b"", "is incomplete or damaged"),
        ("counts.npy", b"nonsense", "is incomplete or damaged"),
        ("vocab.txt", None, "vocab.txt"),
        ("vocab.txt", b"</s>\n<unk>\na\na\n", "has 'a' both on line"),
        ("vocab.txt", b"</s>\n<unk>\na\n", "counts.npy and vocab.txt differ in size"),
        (MODEL_FILE, b"", "is torn or is no safetensors file"),
        (MODEL_FILE, b"nonsense" * 100, "is torn or is no safetensors file"),
    ],
)
def test_damage_is_named(run: RunDirectory, name: str, content: bytes | None, match: str) -> None:
    run.save_model(run.build_model(), 1)
    if content is None:
        (run.path / name).unlink()
    else:
        (run.path / name).write_bytes(content)
    with pytest.raises(UserError, match=match):
        RunDirectory.open(run.path).load_model()


@pytest.mark.parametrize(
    "counts", [np.int64(3), np.full((30, 2), 1), np.full(30, "x"), np.full(30, 0.5), np.full(30, -1)]
)
def test_counts_that_are_none(run: RunDirectory, counts: np.ndarray) -> None:
    np.save(run.path / "counts.npy", counts)
    with pytest.raises(
        UserError, match=r"is incomplete or damaged: counts.npy cannot be read \((it is no list of counts|.*cut short)"
    ):
        RunDirectory.open(run.path)


def swap_lines(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    lines[5], lines[6] = lines[6], lines[5]
    path.write_text("".join(lines))


def change_counts(path: Path) -> None:
    counts = np.load(path)
    counts[[5, 6]] = counts[[5, 6]] + [1, -1]
    np.save(path, counts)


def change_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("vocab.txt", swap_lines, "vocab.txt changed"),
        ("counts.npy", change_counts, "counts.npy changed"),
        (
            "normaliser.json",
            lambda path: change_text(path, "false", "true"),
            r"normaliser.json \(lowercase was False, is True\) changed",
        ),
        (
            "config.toml",
            lambda path: change_text(path, 'name = "relu-lstm"', 'name = "lstm"'),
            r"config.toml \(name was 'relu-lstm', is 'lstm'\) changed",
        ),
        (UNKNOWN_WORDS_FILE, lambda path: change_text(path, "zebra\t1", "zebra\t2"), "unknown_words.tsv changed"),
        (UNKNOWN_WORDS_FILE, Path.unlink, "unknown_words.tsv changed"),
    ],
)
def test_files_that_are_not_those_of_the_model(
    run: RunDirectory, name: str, change: Callable[[Path], object], match: str
) -> None:
    (run.path / UNKNOWN_WORDS_FILE).write_bytes(b"<unk>\t0.0\t1\nzebra\t1.0\n")
    run.save_model(run.build_model(), 1)
    RunDirectory.open(run.path).load_model()
    change(run.path / name)
    with pytest.raises(UserError, match=f"is damaged: {match} after model.safetensors was written; restore"):
        RunDirectory.open(run.path).load_model()


def test_a_model_that_does_not_tell_of_the_other_files_opens(run: RunDirectory) -> None:
    model = run.build_model()
    metadata = {"owner": run.owner, "step": "1", "vocabulary": run.vocabulary.digest}
    write_tensors(run.path / MODEL_FILE, model.state_dict(), MODEL_FORMAT, metadata)
    run.load_model()
    change_counts(run.path / "counts.npy")
    RunDirectory.open(run.path).load_model()
    swap_lines(run.path / "vocab.txt")
    with pytest.raises(UserError, match=r"vocab.txt changed after model.safetensors was written"):
        RunDirectory.open(run.path).load_model()


def test_a_flipped_bit_in_the_model_is_noticed(run: RunDirectory) -> None:
    run.save_model(run.build_model(), 1)
    content = bytearray((run.path / MODEL_FILE).read_bytes())
    content[-5] ^= 1
    (run.path / MODEL_FILE).write_bytes(content)
    with pytest.raises(UserError, match="is damaged: its checksum does not match"):
        run.load_model()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UserError, match=r"is not a run directory: it has no config.toml"):
            RunDirectory.open(path)


def test_a_corpus_with_other_words_is_refused(tmp_path: Path, run: RunDirectory, corpus: Corpus) -> None:
    run.check_vocabulary(corpus)
    other = write_corpus(tmp_path / "other", {"train": random_ids(100, 29), "valid": random_ids(9, 29)}, 29)
    with pytest.raises(UserError, match=r"\(29 words\).*\(30 words\): prepare it with vocabulary_file='.*vocab\.txt"):
        run.check_vocabulary(other)


def test_metrics_are_kept_up_to_a_step(run: RunDirectory) -> None:
    assert run.read_metrics() == []
    for step in (10, 20, 30):
        run.append_metrics({"step": step, "ppl_f": 1 / 3})
    run.keep_metrics_up_to(20)
    assert run.read_metrics() == [{"step": 10, "ppl_f": 1 / 3}, {"step": 20, "ppl_f": 1 / 3}]
    run.append_metrics({"step": 25})
    lines = (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20, 25]


def test_a_torn_line_of_metrics_is_left_out(run: RunDirectory) -> None:
    run.append_metrics({"step": 10})
    with open(run.path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 20, "pp')
    assert run.read_metrics() == [{"step": 10}]
    run.keep_metrics_up_to(100)
    run.append_metrics({"step": 20})
    assert run.read_metrics() == [{"step": 10}, {"step": 20}]


def test_metrics_on_a_full_disk(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    run.append_metrics({"step": 10})

    def full(*arguments: object, **keywords: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match=r"The disk is full: '.*metrics.jsonl'"):
        run.append_metrics({"step": 20})
    assert run.read_metrics() == [{"step": 10}]


def test_leftovers_of_a_killed_save_are_removed(run: RunDirectory) -> None:
    before = sorted(run.path.iterdir())
    for name in (".model.safetensors.123.partial", ".tmpAb12cD"):
        (run.path / name).write_bytes(b"half")
    (run.path / ".state-000000000004.safetensors.123.partial").mkdir()
    (run.path / ".state-000000000004.safetensors.123.partial" / "state-000000000004.safetensors").write_bytes(b"half")
    run.remove_leftovers()
    assert sorted(run.path.iterdir()) == before


def test_devices() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda")
    assert "CPU, 1 thread" in describe_device(torch.device("cpu"))
    for name in ("gpu", "", "meta", "cuda:x", "mps"):
        with pytest.raises(UserError, match=f"Unknown device '{name}': use auto, cpu, cuda or cuda:N"):
            choose_device(name)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:1"):
        with pytest.raises(UserError, match=f"The device '{name}' was asked for.*use device='cpu'"):
            choose_device(name)


def test_a_gpu_by_its_number_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is captured or launched goes to the current device, not to that of its tensors."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert current == [torch.device("cuda:1")]
    with pytest.raises(UserError, match=r"'cuda:2', but the last GPU of this machine is cuda:1: use a GPU that exists"):
        choose_device("cuda:2")
