"""`bnce filter`: records keep their bytes and get scores; documents are kept, dropped or sorted; runs continue."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest
from command import Command, Refused
from small_corpus import change_weights

WORDS = [first + second for first in "bdfgklmn" for second in ("a", "e", "i", "o", "u")]
SCORES = ["perplexity", "num_words", "unknown_rate"]


def make_records(number: int, seed: int = 1, max_sentences: int = 6) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    records = []
    for place in range(number):
        words = WORDS if place % 2 else [*WORDS, "zzz"]
        sentences = (" ".join(draw.choices(words, k=5)) + " ." for _ in range(draw.randint(0, max_sentences)))
        record = {
            "id": f"{seed}-{place}",
            "text": "\n".join(sentences),
            "meta": {"tags": ["é", "2024-01-02"], "n": 1.50},
        }
        records.append(record)
    return records


def write_lines(path: Path, records: list[dict[str, Any]]) -> bytes:
    """Write records as no library would: what is not of the text must stay as it is."""
    data = "".join(f" {json.dumps(one, ensure_ascii=bool(n % 3))} \r\n" for n, one in enumerate(records)).encode()
    pack = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": pyarrow.compress}
    if path.suffix == ".zst":
        with pyarrow.CompressedOutputStream(str(path), "zstd") as file:
            file.write(data)
    else:
        path.write_bytes(pack.get(path.suffix, bytes)(data))
    return data


def unpacked(path: Path) -> bytes:
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    with pyarrow.input_stream(path, compression="detect") as file:
        return bytes(file.read())


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in unpacked(path).splitlines()]


def tree(directory: Path) -> dict[str, bytes]:
    """Give all outputs, but not what is noted beside them."""
    found = (path for path in directory.rglob("*") if path.is_file() and ".bnce" not in path.parts)
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    directory = tmp_path / "shards"
    (directory / "more").mkdir(parents=True)
    write_lines(directory / "a.jsonl", make_records(30, 1))
    write_lines(directory / "b.jsonl.gz", make_records(20, 2))
    write_lines(directory / "more" / "a.jsonl.zst", make_records(25, 3))
    table = pyarrow.Table.from_pylist(make_records(40, 4)).append_column(
        "kind", pyarrow.array(["x", "y"] * 20).dictionary_encode()
    )
    pyarrow.parquet.write_table(table, directory / "c.parquet", row_group_size=7)
    return directory


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".bz2", ".zst"])
def test_records_keep_their_bytes(bnce: Command, trained: Path, tmp_path: Path, ending: str) -> None:
    path, out = tmp_path / f"shard.jsonl{ending}", tmp_path / "out"
    given = write_lines(path, make_records(50))
    outcome = bnce("filter", trained, path, "--out", out, "--json")
    assert outcome.json["num_documents"] == 50
    lines = unpacked(out / path.name).split(b"\n")
    assert len(lines) == 51
    for before, after in zip(given.split(b"\n"), lines, strict=True):
        added = after[len(before.rstrip(b"} \r")) + 2 :] if before else b""
        assert after.startswith(before.rstrip(b"\r ")[:-1])
        assert after.endswith(b" \r" if before else b"")
        assert not added or list(json.loads(after)) == ["id", "text", "meta", *SCORES]


def test_agrees_with_score(bnce: Command, trained: Path, tmp_path: Path) -> None:
    records = make_records(12)
    write_lines(tmp_path / "shard.jsonl", records)
    for mode in ("unnormalised", "normalised"):
        bnce("filter", trained, tmp_path / "shard.jsonl", "--out", tmp_path / mode, "--mode", mode)
        for record, found in zip(records, lines_of(tmp_path / mode / "shard.jsonl"), strict=True):
            if not record["text"]:
                assert [found[name] for name in SCORES] == [None, 0, None]
                continue
            (tmp_path / "text.txt").write_text(record["text"], encoding="utf-8")
            told = bnce(
                "score", trained, tmp_path / "text.txt", "--split", "--carry", "text", "--mode", mode, "--json"
            ).json
            assert found["perplexity"] == pytest.approx(told["ppl"], rel=1e-5)
            assert found["num_words"] == told["num_words"]
            assert found["unknown_rate"] == pytest.approx(told["num_oov"] / told["num_words"], rel=1e-5)


def test_columns_stay_as_they_are(bnce: Command, trained: Path, shards: Path, tmp_path: Path) -> None:
    assert bnce("filter", trained, shards / "c.parquet", "--out", tmp_path / "out").status == 0
    before = pyarrow.parquet.read_table(shards / "c.parquet")
    after = pyarrow.parquet.read_table(tmp_path / "out" / "c.parquet")
    assert after.select(before.schema.names).equals(before)
    assert after.schema.names == [*before.schema.names, *SCORES]
    assert after["perplexity"].null_count == before["text"].to_pylist().count("")
    # The same texts as lines get the same numbers.
    write_lines(tmp_path / "c.jsonl", make_records(40, 4))
    bnce("filter", trained, tmp_path / "c.jsonl", "--out", tmp_path / "lines")
    found = [one["perplexity"] for one in lines_of(tmp_path / "lines" / "c.jsonl")]
    np.testing.assert_allclose(np.array(found, float), np.array(after["perplexity"].to_pylist(), float), rtol=1e-5)


def test_scores_alone(bnce: Command, trained: Path, shards: Path, tmp_path: Path) -> None:
    bnce("filter", trained, shards, "--out", tmp_path / "whole")
    bnce("filter", trained, shards, "--out", tmp_path / "scores", "--scores-only")
    found, whole = (lines_of(tmp_path / name / "a.jsonl") for name in ("scores", "whole"))
    assert list(found[0]) == ["record", *SCORES]
    assert [one["record"] for one in found] == list(range(1, 31))
    assert [one["perplexity"] for one in found] == [one["perplexity"] for one in whole]
    table = pyarrow.parquet.read_table(tmp_path / "scores" / "c.parquet")
    assert table.column_names == ["record", *SCORES]
    assert table["record"].to_pylist() == list(range(1, 41))


def test_a_table_without_rows_gets_its_columns(bnce: Command, trained: Path, tmp_path: Path) -> None:
    table = pyarrow.table({"text": pyarrow.array([], pyarrow.string()), "n": pyarrow.array([], pyarrow.int16())})
    pyarrow.parquet.write_table(table, tmp_path / "none.parquet")
    (tmp_path / "none.jsonl").touch()
    sources = (tmp_path / "none.parquet", tmp_path / "none.jsonl")
    outcome = bnce("filter", trained, *sources, "--out", tmp_path / "out")
    assert outcome.status == 0
    assert pyarrow.parquet.read_table(tmp_path / "out" / "none.parquet").column_names == ["text", "n", *SCORES]
    assert (tmp_path / "out" / "none.jsonl").read_bytes() == b""
    assert "words per second" not in outcome.stderr, "of nothing there is no speed"


def test_a_column_that_is_there_twice_is_refused(refused: Refused, trained: Path, tmp_path: Path) -> None:
    columns = [pyarrow.array(["ba", "be"])] * 4
    path = tmp_path / "twice.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, ["text", "text", "id", "text"]), path)
    told = refused("filter", trained, path, "--out", tmp_path / "out")
    assert "has 3 columns with the name 'text': rename all but one of them, or name another column with --field" in told


@pytest.mark.parametrize("limits", ["20", "15,25"])
def test_every_document_is_in_exactly_one_output(
    bnce: Command, trained: Path, shards: Path, tmp_path: Path, limits: str
) -> None:
    out, has_two = tmp_path / "out", "," in limits
    told = bnce(
        "filter", trained, shards, "--out", out, "--max-perplexity", limits, *([] if has_two else ["--rest"]), "--json"
    ).json
    parts = ("a.jsonl", "b.jsonl.gz", "more/a.jsonl.zst", "c.parquet")
    places = ("head/", "middle/", "tail/") if has_two else ("", "rest/")
    assert set(tree(out)) == {place + name for place in places for name in parts}
    bounds = [0, *map(float, limits.split(",")), float("inf")]
    assert told["limits"] == bounds[1:-1]
    found = []
    for number, place in enumerate(places):
        records = [one for name in parts[:3] for one in lines_of(out / place / name)]
        records += pyarrow.parquet.read_table(out / place / "c.parquet").to_pylist()
        assert told["parts"][list(told["parts"])[number]]["num_documents"] == len(records)
        low, high = bounds[number : number + 2]
        for one in records:
            assert number == len(places) - 1 if one["perplexity"] is None else low < one["perplexity"] <= high
        found += [one["id"] for one in records]
    assert sorted(found) == sorted(
        one["id"] for n, seed in ((30, 1), (20, 2), (25, 3), (40, 4)) for one in make_records(n, seed)
    )


def test_percentiles_are_those_of_the_documents(
    bnce: Command, trained: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("filter", trained, shards / "a.jsonl", "--out")
    bnce(*options, tmp_path / "out")
    values = [one["perplexity"] for one in lines_of(tmp_path / "out" / "a.jsonl") if one["perplexity"] is not None]
    sample = bnce("filter", trained, shards / "a.jsonl", "--dry-run")
    median = np.percentile(values, 50)
    assert f"50%: {median:.5g}," in sample.stdout
    monkeypatch.setattr("bnce.data.filter.MAX_EXACT", 20)
    told = bnce("filter", trained, shards / "a.jsonl", "--dry-run", "--json").json
    assert not told["percentiles_are_exact"]
    assert told["percentiles"]["50"] == pytest.approx(np.percentile(values[::2], 50), rel=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "shards"]


def test_what_is_counted_is_said(bnce: Command, trained: Path, shards: Path, tmp_path: Path) -> None:
    told = bnce("filter", trained, shards / "a.jsonl", "--out", tmp_path / "out").stderr
    number = re.search(r"words: ([\d,]+);", told)
    assert number is not None
    timed = r" words, punctuation marks among them, in [\d.]+ seconds, which include loading the model: [\d,]+ words"
    assert re.match(number[1] + timed + r" per second\.\n", told)
    write_lines(tmp_path / "one.jsonl", [{"text": "ba"}])
    told = bnce("filter", trained, tmp_path / "one.jsonl", "--out", tmp_path / "one", "--max-perplexity", 2000).stderr
    assert told.startswith("1 word, punctuation marks among them, in ")
    assert "kept: 1 document, 1 word; rest: 0 documents, 0 words." in told
    assert "per second" not in bnce("filter", trained, shards / "a.jsonl", "--out", tmp_path / "out").stderr


def test_a_run_goes_on(bnce: Command, trained: Path, shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = bnce("filter", trained, shards, "--out", out, "--json").json
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.*")}
    (out / "b.jsonl.gz").unlink()
    again = bnce("filter", trained, shards, "--out", out, "--json").json
    assert (first["num_documents"], first["num_shards_before"]) == (115, 0)
    assert (again["num_documents"], again["num_shards_before"]) == (20, 3)
    changed = {path.name for path in before if path.stat().st_mtime_ns != before[path]}
    assert {name for name in changed if "b.jsonl" not in name} <= {".bnce"}
    # A shard that was changed is done again.
    write_lines(shards / "a.jsonl", make_records(31, 1))
    os.utime(shards / "a.jsonl", (0, 10**9))
    assert bnce("filter", trained, shards, "--out", out, "--json").json["num_documents"] == 31
    outcome = bnce("filter", trained, shards, "--out", out, "--max-perplexity", 9)
    assert outcome.status == 2
    assert "was made with limits [], and this command has [9.0]: give the same settings" in outcome.stderr


def test_the_report_says_how_probabilities_are_had(bnce: Command, trained: Path, shards: Path, tmp_path: Path) -> None:
    softmax, mixture = shutil.copytree(trained, tmp_path / "softmax"), tmp_path / "mixture.toml"
    config = (softmax / "config.toml").read_text(encoding="utf-8")
    (softmax / "config.toml").write_text(
        config.replace('name = "bnce"', 'name = "softmax"').replace("num_noise = 0\n", ""), encoding="utf-8"
    )
    lines = (f"[[components]]\npath = {str(path)!r}\nweight = 0.5\n" for path in (trained, softmax))
    mixture.write_text("".join(lines), encoding="utf-8")
    for model, sentence in (
        (trained, "with the constant Z (unnormalised"),
        (softmax, "with the softmax."),
        (mixture, "with the softmax."),
    ):
        outcome = bnce("filter", model, shards / "a.jsonl", "--out", tmp_path / f"{model.name}-out")
        assert f"Probabilities are {sentence}" in outcome.stderr


def test_a_shard_whose_output_is_gone_is_done_again(bnce: Command, trained: Path, tmp_path: Path) -> None:
    shard, out = tmp_path / "a.jsonl", tmp_path / "out"
    shard.write_bytes(b'{"text": "ba be"}\n{"text": "ba\n')
    command = ("filter", trained, shard, "--out", out, "--errors", "skip", "--json")
    before = bnce(*command).json
    (out / "a.jsonl").unlink()
    again = bnce(*command).json
    assert len(lines_of(out / "a.jsonl")) == again["num_documents"] == before["num_documents"] == 1


def test_a_model_is_its_manifest_and_its_weights(
    bnce: Command, refused: Refused, trained: Path, shards: Path, tmp_path: Path
) -> None:
    run, out = shutil.copytree(trained, tmp_path / "run"), tmp_path / "out"
    assert bnce("filter", run, shards / "a.jsonl", "--out", out).status == 0
    (run / "notes.txt").write_text("a good one", encoding="utf-8")
    assert bnce("filter", run, shards / "a.jsonl", "--out", out).status == 0
    change_weights(run, lambda tensors: tensors["output.bias"].mul_(0.5))
    assert "was made with model" in refused("filter", run, shards / "a.jsonl", "--out", out)
    # In the same process the changed run is opened anew.
    assert bnce("filter", run, shards / "a.jsonl", "--out", tmp_path / "other").status == 0
    assert tree(tmp_path / "other") != tree(out)


def test_a_refused_command_leaves_the_directory_free(
    bnce: Command, refused: Refused, trained: Path, shards: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for wrong in (("--field", "nobody"), ("--precision", "bf16", "--device", "cpu")):
        refused("filter", trained, shards / "a.jsonl", "--out", out, *wrong)
    assert bnce("filter", trained, shards / "a.jsonl", "--out", out).status == 0
    # Once there are outputs, the directory keeps its settings.
    refused("filter", trained, shards / "missing.jsonl", "--out", out)
    assert "was made with scores_only False" in refused("filter", trained, shards, "--out", out, "--scores-only")


def test_a_shard_of_the_same_name_is_not_overwritten(
    bnce: Command, refused: Refused, trained: Path, shards: Path, tmp_path: Path
) -> None:
    out, other = tmp_path / "out", tmp_path / "other" / "a.jsonl"
    assert bnce("filter", trained, shards / "a.jsonl", "--out", out).status == 0
    before = tree(out)
    other.parent.mkdir()
    write_lines(other, make_records(5, 9))
    told = refused("filter", trained, other, "--out", out)
    assert "was made with source_directory /" in told
    assert tree(out) == before


def test_shares_give_the_same(bnce: Command, trained: Path, shards: Path, tmp_path: Path) -> None:
    options = ("--max-perplexity", 20, "--rest")
    bnce("filter", trained, shards, "--out", tmp_path / "one", *options)
    for share in ("1/3", "2/3", "3/3"):
        outcome = bnce("filter", trained, shards, "--out", tmp_path / "three", *options, "--shard", share)
        assert outcome.status == 0, outcome.stderr
    assert tree(tmp_path / "three") == tree(tmp_path / "one")


def test_blocks_change_nothing(
    bnce: Command, trained: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bnce("filter", trained, shards, "--out", tmp_path / "one")
    monkeypatch.setattr("bnce.data.shards.BLOCK_DOCUMENTS", 7)
    monkeypatch.setattr("bnce.text.unpack.CHUNK_BYTES", 200)
    bnce("filter", trained, shards, "--out", tmp_path / "many")
    assert tree(tmp_path / "many").keys() == tree(tmp_path / "one").keys()
    for name in ("a.jsonl", "b.jsonl.gz"):
        for one, other in zip(lines_of(tmp_path / "one" / name), lines_of(tmp_path / "many" / name), strict=True):
            assert (one.pop("perplexity") or 0) == pytest.approx(other.pop("perplexity") or 0, rel=1e-5)
            assert one == other


def test_models_of_other_kinds(bnce: Command, trained: Path, texts: Path, shards: Path, tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    arpa, mixture = tmp_path / "two.arpa", tmp_path / "mixture.toml"
    assert bnce("ngram", texts / "train.txt", "--vocab", trained, "--order", 2, "--out", arpa).status == 0
    assert bnce("interpolate", trained, arpa, "--valid", texts / "valid.txt", "--out", mixture).status == 0
    record = next(one for one in make_records(30, 1) if one["text"].count("\n") > 1)
    (tmp_path / "text.txt").write_text(record["text"], encoding="utf-8")
    for name, model in (("ngram", arpa), ("mixture", mixture)):
        outcome = bnce("filter", model, shards / "a.jsonl", "--out", tmp_path / name)
        assert outcome.status == 0, outcome.stderr
        (found,) = (one for one in lines_of(tmp_path / name / "a.jsonl") if one["id"] == record["id"])
        carry = () if name == "ngram" else ("--carry", "text")
        told = bnce("score", model, tmp_path / "text.txt", "--split", *carry, "--json").json
        assert found["num_words"] == told["num_words"]
        assert found["perplexity"] == pytest.approx(told["ppl"], rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{shards}"], "There is no output directory: give --out DIR, or --dry-run"),
        (["{shards}", "--out", "x", "--max-perplexity", "0.5"], "--max-perplexity is '0.5': give a number of 1"),
        (["{shards}", "--out", "x", "--max-perplexity", "60,30"], "or two, the smaller one first, such as 200,500."),
        (["{shards}", "--out", "x", "--shard", "4/3"], "--shard is '4/3': give I/N with I from 1 to N, such as 3/16."),
        (["{shards}", "--out", "x", "--field", "body"], "name a "),
        (["{shards}", "--out", "x", "--rest"], "--rest is for documents that are not kept"),
        (["{shards}", "--out", "{shards}/scored"], "is inside the source"),
        (["none.jsonl", "--out", "x"], "There is no file '"),
        (["{run}", "--out", "x"], "does not have the name of a shard: give files that end in .jsonl"),
        (["-", "--out", "x"], "does not have the name of a shard"),
        (["{shards}", "--out", "x", "--precision", "bf16", "--device", "cpu"], "The precision is bf16, which is for"),
    ],
)  # fmt: skip
def test_what_is_refused(
    refused: Refused, trained: Path, shards: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(shards.parent)
    filled = [argument.format(shards=shards, run=trained) for argument in arguments]
    assert sentence in refused("filter", trained, *filled)
    assert not any(path.is_file() for path in Path("x").rglob("*"))
