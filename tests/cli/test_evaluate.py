"""`bnce evaluate`: the figures of a run on a split or a text, and what is refused."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command import Command, Refused

import bnce as package


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """Give a copy of the run, to be damaged."""
    return shutil.copytree(trained, tmp_path / "copy")


def test_the_test_split_by_default(bnce: Command, trained: Path) -> None:
    record = bnce("evaluate", trained, "--in-context-only", "--detail", "--json").json
    written = json.loads((trained / "evaluation.json").read_text(encoding="utf-8"))
    assert record == {"run": str(trained), **written}
    assert {"ppl_n", "ppl_f", "log_z_mean", "log_z_std", "num_tokens", "num_oov"} <= set(record)


def test_json_fits_on_a_screen_unless_detail_is_asked_for(bnce: Command, trained: Path, copy: Path) -> None:
    outcome, whole = bnce("evaluate", trained, "--json"), bnce("evaluate", trained, "--detail", "--json")
    assert len(outcome.stdout.replace(str(trained), "")) < 1000
    assert set(whole.json) - set(outcome.json) == {"log_z_histogram", "detail"}
    assert "detail" not in bnce("info", trained, "--json").json["evaluation"]
    # What is kept for reports has everything all the same.
    assert "detail" not in bnce("evaluate", copy, "--save", "--json").json
    assert set(whole.json) <= {"run", *json.loads((copy / "evaluation.json").read_text(encoding="utf-8"))}


def test_both_figures_by_default(bnce: Command, trained: Path, texts: Path) -> None:
    record, plain = bnce("evaluate", trained, "--json").json, bnce("evaluate", trained).stdout
    found = record["by_sentence"]
    assert set(found) == {"ppl_n", "ppl_f", "log_z_mean", "log_z_std"}
    assert found["ppl_f"] != record["ppl_f"]
    told = f"sentence by sentence: PPLn {found['ppl_n']:.2f}, PPLf {found['ppl_f']:.2f}, ln Z(context)"
    assert told in plain
    assert "every sentence starts without context; the others are in context" in " ".join(plain.split())
    scored = bnce("score", trained, texts / "test.txt", "--split", "--mode", "normalised", "--json").json
    assert scored["ppl"] == pytest.approx(found["ppl_f"], rel=1e-5)
    once = bnce("evaluate", trained, "--in-context-only", "--json").json
    assert once == {key: value for key, value in record.items() if key != "by_sentence"}
    assert "sentence by sentence" not in bnce("evaluate", trained, "--in-context-only").stdout


def test_another_split_and_its_first_words(bnce: Command, trained: Path, corpus: Path) -> None:
    record = bnce("evaluate", trained, "--split", "valid", "--json").json
    assert record["split"] == "valid"
    assert record["num_tokens"] == len(package.Corpus.open(corpus).split("valid"))
    assert record["ppl_f"] == package.evaluate(trained, split="valid").ppl_f
    record = bnce("evaluate", trained, "--split", "valid", "--max-words", 100, "--json").json
    assert record["num_tokens"] == 100
    assert record["ppl_f"] == package.evaluate(trained, split="valid", max_words=100).ppl_f


def test_a_text_is_read_as_the_training_text_was(bnce: Command, trained: Path, texts: Path, tmp_path: Path) -> None:
    expected = bnce("evaluate", trained, "--json").json
    packed = tmp_path / "[odd] :cat: name.txt.gz"
    packed.write_bytes(gzip.compress((texts / "test.txt").read_bytes()))
    for text in (texts / "test.txt", packed):
        record = bnce("evaluate", trained, "--text", text, "--json").json
        assert record.pop("text") == str(text)
        assert record == {key: value for key, value in expected.items() if key != "split"}
    plain = bnce("evaluate", trained, "--text", packed)
    assert plain.status == 0, plain.stderr
    assert plain.stdout.startswith(f"{packed}: ")


def test_prints_units_and_conditions(bnce: Command, trained: Path) -> None:
    record, plain = bnce("evaluate", trained, "--json").json, bnce("evaluate", trained)
    assert plain.status == 0
    words = record["num_tokens"] - record["num_sentences"]
    assert f"{record['num_tokens']:,} tokens, {record['num_sentences']:,} of them </s>" in plain.stdout
    assert f"{record['num_oov']:,} <unk> ({100 * record['num_oov'] / words:.2f}% of words)" in plain.stdout
    assert f"PPLn {record['ppl_n']:.2f}  with the constant ln Z = 9.000" in plain.stdout
    assert f"PPLf {record['ppl_f']:.2f}  with the softmax" in plain.stdout
    assert f"ln Z(context) {record['log_z_mean']:.3f} ± {record['log_z_std']:.3f}" in plain.stdout
    assert "perplexities are per token and count </s> and <unk>" in plain.stdout


def test_what_is_not_finite_is_null_in_json(bnce: Command, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "unknown.txt").write_text("xyzzy", encoding="utf-8")
    record = bnce("evaluate", trained, "--text", tmp_path / "unknown.txt", "--max-words", 1, "--json").json
    assert record["num_oov"] == 1
    assert record["ppl_f_no_unk"] is None
    plain = bnce("evaluate", trained, "--text", tmp_path / "unknown.txt", "--max-words", 1, "--detail")
    assert plain.status == 0
    assert plain.stdout.count("without <unk> undefined") == 2


def test_a_softmax_run_has_no_perplexity_with_the_constant(bnce: Command, copy: Path) -> None:
    config = (copy / "config.toml").read_text(encoding="utf-8")
    (copy / "config.toml").write_text(
        config.replace('name = "bnce"', 'name = "softmax"').replace("num_noise = 0\n", ""), encoding="utf-8"
    )
    assert bnce("evaluate", copy, "--json").json["ppl_n"] is None
    assert "PPLn" not in bnce("evaluate", copy).stdout


def test_detail_shows_where_a_text_is_hard(bnce: Command, trained: Path) -> None:
    record = bnce("evaluate", trained, "--detail", "--json").json
    plain = bnce("evaluate", trained, "--detail")
    assert plain.status == 0, plain.stderr
    assert plain.stdout.startswith(bnce("evaluate", trained).stdout)
    for group in record["detail"]["by_frequency"] + record["detail"]["by_position"]:
        row = [group["name"], f"{group['num_tokens']:,}", f"{group['ppl_n']:,.1f}", f"{group['ppl_f']:,.1f}"]
        assert row in [line.split() for line in plain.stdout.splitlines()]
    worst = record["detail"]["worst_sentences"][0]
    assert f"{worst['mean_loss_nats']:.2f}  {worst['words'][0]} {worst['losses_nats'][0]:.1f} · " in plain.stdout


def test_saved_figures_are_those_that_a_comparison_shows(bnce: Command, copy: Path, texts: Path) -> None:
    before = (copy / "evaluation.json").read_bytes()
    assert bnce("evaluate", copy, "--split", "valid").status == 0
    assert (copy / "evaluation.json").read_bytes() == before
    record = bnce("evaluate", copy, "--split", "valid", "--save", "--json").json
    (row,) = bnce("compare", copy, "--json").json["rows"]
    assert (row["split"], row["ppl_f"]) == ("valid", record["ppl_f"])
    assert bnce("evaluate", copy, "--text", texts / "test.txt", "--save").status == 0
    (row,) = bnce("compare", copy, "--json").json["rows"]
    assert row["split"] == "test.txt"


class TestRefusals:
    def test_arguments(self, refused: Refused, trained: Path, texts: Path, tmp_path: Path) -> None:
        told = refused("evaluate", trained, "--text", texts / "test.txt", "--split", "test")
        assert told.endswith("leave out --split and --corpus.")
        assert "has no split 'dev': choose one of train, valid, test." in refused("evaluate", trained, "--split", "dev")
        assert "Unknown device 'tpu'" in refused("evaluate", trained, "--device", "tpu")
        assert "missing.txt" in refused("evaluate", trained, "--text", tmp_path / "missing.txt")
        (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
        assert "has no words" in refused("evaluate", trained, "--text", tmp_path / "empty.txt")

    def test_pieces_of_words(self, refused: Refused, trained: Path, corpus: Path, tmp_path: Path) -> None:
        for name, command in ((trained, "evaluate"), (corpus, "info")):
            copy = tmp_path / command
            shutil.copytree(name, copy)
            (copy / "pieces.json").write_text("{}", encoding="utf-8")
            assert "has pieces of words, because pieces.json lies beside it" in refused(command, copy)

    def test_what_is_no_run(self, refused: Refused, corpus: Path, tmp_path: Path) -> None:
        assert "missing' does not exist: check the path" in refused("evaluate", tmp_path / "missing")
        assert f"'{corpus}' is not a run directory: it has no config.toml" in refused("evaluate", corpus)
        assert f"'{tmp_path}' is not a run directory" in refused("evaluate", tmp_path)

    def test_a_corpus_with_other_words(self, bnce: Command, refused: Refused, trained: Path, texts: Path) -> None:
        other = texts / "other"
        options = ["--out", other, "--vocab-size", 20, "--valid", texts / "valid.txt", "--test", texts / "test.txt"]
        assert bnce("prepare", texts / "train.txt", *options, "--workers", 1).status == 0
        told = refused("evaluate", trained, "--corpus", other)
        assert f"(20 words) than the run '{trained}' (30 words)" in told
        # What it says to do works.
        again = texts / "again"
        options = ["--out", again, "--vocab", trained / "vocab.txt", "--valid", texts / "valid.txt"]
        assert bnce("prepare", texts / "train.txt", *options, "--fraction", 0, "--workers", 1).status == 0
        assert bnce("evaluate", trained, "--corpus", again, "--split", "valid", "--json").json["num_tokens"] > 0

    def test_a_corpus_that_is_gone(self, refused: Refused, copy: Path, corpus: Path) -> None:
        config = (copy / "config.toml").read_text(encoding="utf-8")
        (copy / "config.toml").write_text(config.replace(str(corpus), "/nowhere"), encoding="utf-8")
        told = refused("evaluate", copy)
        assert told.endswith("corpus '/nowhere', which is no longer there: give its new location with --corpus.")

        told = refused("calibrate", copy, "--out", copy.parent / "new")
        assert told.endswith("corpus '/nowhere', which is no longer there: give a text with --text.")

    def test_a_corpus_that_was_cut_otherwise(
        self, refused: Refused, trained: Path, prepared_anew: Callable[..., Path]
    ) -> None:
        other = prepared_anew("--cased")
        told = refused("evaluate", trained, "--corpus", other)
        assert f"The corpus '{other}' was not cut into words as the text of the run '{trained}' was" in told
        assert "(lowercase is false, not true): prepare its text again with the settings of the run" in told

    def test_no_gpu(self, refused: Refused, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        told = refused("evaluate", trained, "--device", "cuda:0")
        assert told.endswith("PyTorch finds no CUDA GPU: use --device cpu.")
