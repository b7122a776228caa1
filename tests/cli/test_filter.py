"""`bnce filter`: records keep their bytes and get scores; documents are kept, dropped or sorted; runs continue."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest
from command import Command, Refused
from dask_machines import Machines
from run_files import write_mixture

from bnce import DocumentScorer, UserError

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
    assert [one["perplexity"] for one in lines_of(tmp_path / "lines" / "c.jsonl")] == after["perplexity"].to_pylist()


def test_outputs_by_choice(bnce: Command, trained: Path, shards: Path, tmp_path: Path) -> None:
    options = ("--scores-only", "--id", "id", "--names", "ppl, n,unknown")
    bnce("filter", trained, shards / "a.jsonl", "--out", tmp_path / "scores", *options)
    found = lines_of(tmp_path / "scores" / "a.jsonl")
    assert list(found[0]) == ["id", "ppl", "n", "unknown"]
    assert [one["id"] for one in found] == [f"1-{n}" for n in range(30)]
    bnce("filter", trained, shards, "--out", tmp_path / "tables", "--scores-only", "--to", "parquet")
    assert set(tree(tmp_path / "tables")) == {"a.parquet", "b.parquet", "more/a.parquet", "c.parquet"}
    table = pyarrow.parquet.read_table(tmp_path / "tables" / "a.parquet")
    assert table["record"].to_pylist() == list(range(1, 31))
    assert table["perplexity"].to_pylist() == [one["ppl"] for one in found]
    bnce("filter", trained, shards / "a.jsonl", "--out", tmp_path / "whole", "--to", "parquet")
    table = pyarrow.parquet.read_table(tmp_path / "whole" / "a.parquet")
    assert table["text"].to_pylist() == [one["text"] for one in make_records(30, 1)]
    assert table["meta"][0].as_py() == {"tags": ["é", "2024-01-02"], "n": 1.5}
    assert table.schema.names == ["id", "text", "meta", *SCORES]


# How a line may spell what names its record; nothing of that is to change.
LITERALS = ['"a"', '"\u00e9\\n"', '"\\ud800"', "1.10", "1E5", "-0", "12345678901234567890123", "null", "true",
            '{"k": [1.0, "x"], "n": 2e0}']  # fmt: skip


def test_names_stay_as_they_are(bnce: Command, trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "ids.jsonl"
    path.write_text("".join(f'{{"id": {one}, "text": "ba be"}}\n' for one in LITERALS), encoding="utf-8")
    options = ("--scores-only", "--id", "id")
    assert bnce("filter", trained, path, "--out", tmp_path / "lines", *options).status == 0
    written = (tmp_path / "lines" / "ids.jsonl").read_text(encoding="utf-8").splitlines()
    assert [line.removeprefix('{"id": ').partition(', "perplexity"')[0] for line in written] == LITERALS
    assert bnce("filter", trained, path, "--out", tmp_path / "table", *options, "--to", "parquet").status == 0
    table = pyarrow.parquet.read_table(tmp_path / "table" / "ids.parquet")
    assert table["id"].to_pylist() == ["a", "é\n", "\ufffd", *LITERALS[3:7], None, *LITERALS[8:]]


@pytest.mark.parametrize(
    "names",
    [
        pyarrow.array([7, 2**63, None], pyarrow.uint64()),
        pyarrow.array(["x", "y", "x"]).dictionary_encode(),
        pyarrow.array([[1], [], [2, 3]], pyarrow.list_(pyarrow.int16())),
        pyarrow.array([0, 10**15, 5], pyarrow.timestamp("us", "UTC")),
    ],
    ids=lambda names: str(names.type),
)
def test_names_in_columns_keep_their_types(bnce: Command, trained: Path, tmp_path: Path, names: Any) -> None:
    table = pyarrow.table({"text": ["ba be", "bi", "ba"], "id": names})
    pyarrow.parquet.write_table(table, tmp_path / "ids.parquet")
    pyarrow.parquet.write_table(table.slice(0, 0), tmp_path / "none.parquet")
    shards = tmp_path / "ids.parquet", tmp_path / "none.parquet"
    assert bnce("filter", trained, *shards, "--out", tmp_path / "out", "--scores-only", "--id", "id").status == 0
    for name, expected in (("ids", table), ("none", table.slice(0, 0))):
        found = pyarrow.parquet.read_table(tmp_path / "out" / f"{name}.parquet")
        assert found.schema.names == ["id", *SCORES]
        assert found.schema.field("id").type == names.type
        assert found["id"].to_pylist() == expected["id"].to_pylist()


def test_names_in_columns_become_json(bnce: Command, trained: Path, tmp_path: Path) -> None:
    names = [1.5, float("nan"), None, float("inf")]
    table = pyarrow.table({"text": ["ba"] * 4, "id": names})
    pyarrow.parquet.write_table(table, tmp_path / "ids.parquet")
    options = ("--scores-only", "--id", "id", "--to", "jsonl")
    assert bnce("filter", trained, tmp_path / "ids.parquet", "--out", tmp_path / "out", *options).status == 0
    assert [one["id"] for one in lines_of(tmp_path / "out" / "ids.jsonl.zst")] == [1.5, None, None, None]


@pytest.mark.parametrize("name", ["NaN", "Infinity", "[-Infinity]"])
def test_names_that_are_not_json_are_refused(
    bnce: Command, refused: Refused, trained: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "ids.jsonl"
    path.write_text(f'{{"id": 1, "text": "ba"}}\n{{"id": {name}, "text": "be"}}\n', encoding="utf-8")
    told = refused("filter", trained, path, "--out", tmp_path / "out", "--scores-only", "--id", "id")
    assert f"line 2 has {name.strip('[]')} in its field 'id', which is not JSON: write a string" in told
    options = ("--scores-only", "--id", "id", "--errors", "skip")
    assert bnce("filter", trained, path, "--out", tmp_path / "out", *options).status == 0
    assert [one["id"] for one in lines_of(tmp_path / "out" / "ids.jsonl")] == [1]


def test_a_column_that_is_there_twice_is_refused(refused: Refused, trained: Path, tmp_path: Path) -> None:
    columns = [pyarrow.array(["ba", "be"])] * 4
    path = tmp_path / "twice.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, ["text", "id", "id", "more"]), path)
    told = refused("filter", trained, path, "--out", tmp_path / "out", "--scores-only", "--id", "id")
    assert "has 2 columns with the name 'id': rename all but one of them, or name another column with --id." in told
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, ["text", "text", "id", "text"]), path)
    told = refused("filter", trained, path, "--out", tmp_path / "out")
    assert "has 3 columns with the name 'text': rename all but one of them, or name another column with --field" in told


@pytest.mark.parametrize(
    "fields",
    [
        '"n": 9223372036854775808',
        '"n": -9223372036854775809',
        '"n": {"of": [1.5, 9007199254740993]}',
        '"n": [{"of": 18446744073709551615}]',
    ],
)
def test_integers_that_do_not_fit_are_refused(
    bnce: Command, refused: Refused, trained: Path, tmp_path: Path, fields: str
) -> None:
    path = tmp_path / "large.jsonl"
    path.write_text(f'{{"text": "ba", {fields}}}\n', encoding="utf-8")
    told = refused("filter", trained, path, "--out", tmp_path / "out", "--to", "parquet")
    assert "do not fit the columns of its first records (the integer " in told
    assert "would not stay one in a column of double): write JSON lines (--to jsonl)." in told
    exact = '"n": 9223372036854775807, "m": 9007199254740992, "f": [1.5, 9007199254740992], "s": "9007199254740993"'
    path.write_text(f'{{"text": "ba", {exact}}}\n', encoding="utf-8")
    assert bnce("filter", trained, path, "--out", tmp_path / "out", "--to", "parquet").status == 0
    (row,) = pyarrow.parquet.read_table(tmp_path / "out" / "large.parquet").select(["n", "m", "f", "s"]).to_pylist()
    assert row == {"n": 2**63 - 1, "m": 2**53, "f": [1.5, 2.0**53], "s": "9007199254740993"}


@pytest.mark.parametrize("choice", [("--max-perplexity", 20), ("--keep", "30%"), ("--buckets", "30,60")])
def test_every_document_is_in_exactly_one_output(
    bnce: Command, trained: Path, shards: Path, tmp_path: Path, choice: tuple[object, ...]
) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    given = (*choice, "--rest") if choice[0] != "--buckets" else choice
    told = bnce("filter", trained, shards, "--out", out, *given, "--json").json
    names = [name for name in tree(out) if name != "thresholds.json"]
    parts = {"a.jsonl", "b.jsonl.gz", "more/a.jsonl.zst"}
    places = ("head/", "middle/", "tail/") if choice[0] == "--buckets" else ("", "rest/")
    assert set(names) == {place + name for place in places for name in (*parts, "c.parquet")}
    limits = [0, *told["limits"], float("inf")]
    found = []
    for number, place in enumerate(places):
        records = [one for name in sorted(parts) for one in lines_of(out / place / name)]
        records += pyarrow.parquet.read_table(out / place / "c.parquet").to_pylist()
        assert told["parts"][list(told["parts"])[number]]["num_documents"] == len(records)
        for one in records:
            low, high = limits[number : number + 2]
            assert number == len(places) - 1 if one["perplexity"] is None else low < one["perplexity"] <= high
        found += [one["id"] for one in records]
    assert sorted(found) == sorted(
        one["id"] for n, seed in ((30, 1), (20, 2), (25, 3), (40, 4)) for one in make_records(n, seed)
    )
    if choice[0] == "--max-perplexity":
        return
    # Limits that were fitted serve other commands, and another model refuses them.
    saved = out / "thresholds.json"
    more = ("--rest",) if choice[0] == "--keep" else ()
    assert bnce("filter", trained, shards, "--out", again, "--thresholds", saved, *more).status == 0
    assert tree(again) == {name: data for name, data in tree(out).items() if name != "thresholds.json"}
    outcome = bnce(
        "filter", trained, shards, "--out", tmp_path / "other", "--thresholds", saved, "--mode", "normalised"
    )
    assert "were fitted with another mode" in outcome.stderr


def test_a_sample_is_shown(bnce: Command, trained: Path, shards: Path, tmp_path: Path) -> None:
    outcome = bnce("filter", trained, shards, "--dry-run", "--buckets", "30,60")
    assert outcome.status == 0
    assert "█" in outcome.stdout
    assert "Limits: head up to" in outcome.stdout
    header, *rows = outcome.stdout.splitlines()[1:18]
    assert header.split(maxsplit=1) == ["perplexity", "share of documents"]
    assert rows[0].lstrip().startswith("below ")
    assert all(re.match(r" *[\d.]+ to [\d.]+ (█+ )?[\d.]+%", row) for row in rows[1:-1])
    assert re.match(r" *[\d.]+ and above ", rows[-1])
    limits = re.findall(r"up to ([\d.]+)", outcome.stdout)
    assert [f"{float(one):.4g}" for one in limits] == re.findall(r" ◄ limit ([\d.]+)", "".join(rows))
    assert max(map(len, outcome.stdout.splitlines()[:-2])) <= 80
    told = bnce("filter", trained, shards, "--dry-run", "--sample", 8, "--json").json
    assert 0 < told["num_documents"] <= 8
    assert sum(told["counts"].values()) == told["num_documents"]
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


def test_what_is_counted_is_said(bnce: Command, trained: Path, shards: Path, tmp_path: Path) -> None:
    told = bnce("filter", trained, shards / "a.jsonl", "--out", tmp_path / "out").stderr
    number = re.search(r"words: ([\d,]+);", told)
    assert number is not None
    timed = r" words, punctuation marks among them, in [\d.]+ seconds, which include loading the model: [\d,]+ words"
    assert re.match(number[1] + timed + r" per second\.\n", told)


def test_a_run_goes_on(bnce: Command, trained: Path, shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = bnce("filter", trained, shards, "--out", out, "--json").json
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.*")}
    (out / "b.jsonl.gz").unlink()
    again = bnce("filter", trained, shards, "--out", out, "--json").json
    assert {name: again[name] for name in first if name not in ("seconds", "words_per_second")} == {
        name: first[name] for name in first if name not in ("seconds", "words_per_second")
    }
    changed = {path.name for path in before if path.stat().st_mtime_ns != before[path]}
    assert {name for name in changed if "b.jsonl" not in name} <= {".bnce"}
    # A shard that was changed is done again.
    write_lines(shards / "a.jsonl", make_records(31, 1))
    assert bnce("filter", trained, shards, "--out", out, "--json").json["num_documents"] == first["num_documents"] + 1
    outcome = bnce("filter", trained, shards, "--out", out, "--max-perplexity", 9)
    assert outcome.status == 2
    assert "was made with parts all, and this command has kept,rest: give the same settings" in outcome.stderr


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
    assert "exported run" in bnce("score", "--help").stdout
    for command in ("filter", "evaluate"):
        assert "not an export to ONNX" in bnce(command, "--help").stdout


def test_a_refused_command_leaves_the_directory_free(
    bnce: Command, refused: Refused, trained: Path, shards: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for wrong in (("--id", "nobody", "--scores-only"), ("--precision", "bf16", "--device", "cpu")):
        refused("filter", trained, shards / "a.jsonl", "--out", out, *wrong)
    assert bnce("filter", trained, shards / "a.jsonl", "--out", out).status == 0
    # Once there are outputs, the directory keeps its settings.
    refused("filter", trained, shards / "missing.jsonl", "--out", out)
    assert "was made with id none" in refused("filter", trained, shards, "--out", out, "--id", "id", "--scores-only")


def test_a_shard_of_the_same_name_is_not_overwritten(
    bnce: Command, refused: Refused, trained: Path, shards: Path, tmp_path: Path
) -> None:
    out, other = tmp_path / "out", tmp_path / "other" / "a.jsonl"
    assert bnce("filter", trained, shards / "a.jsonl", "--out", out).status == 0
    before = tree(out)
    other.parent.mkdir()
    write_lines(other, make_records(5, 9))
    assert f"was made from '{shards / 'a.jsonl'}', not from '{other}'" in refused(
        "filter", trained, other, "--out", out
    )
    assert tree(out) == before


def test_shares_give_the_same(bnce: Command, trained: Path, shards: Path, tmp_path: Path) -> None:
    bnce("filter", trained, shards, "--out", tmp_path / "one", "--keep", "50%")
    for share in ("1/3", "2/3", "3/3"):
        outcome = bnce("filter", trained, shards, "--out", tmp_path / "three", "--keep", "50%", "--shard", share)
        assert outcome.status == 0, outcome.stderr
    assert tree(tmp_path / "three") == tree(tmp_path / "one")


def test_workers_give_the_same(bnce: Command, trained: Path, shards: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("bnce.filtering.shards.BLOCK_BYTES", 300)
    monkeypatch.setattr("bnce.text.unpack.CHUNK_BYTES", 200)
    for workers in (1, 2):
        assert bnce("filter", trained, shards, "--out", tmp_path / str(workers), "--workers", workers).status == 0
    assert tree(tmp_path / "1") == tree(tmp_path / "2")


def test_a_cluster_gives_the_same(bnce: Command, trained: Path, shards: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the extra cluster is not installed: Dask is not tested")
    (tmp_path / "machines").mkdir()
    machines = Machines(tmp_path / "machines", num_workers=1)
    try:
        options = ("--buckets", "30,60", "--errors", "skip")
        outcome = bnce("filter", trained, shards, "--out", tmp_path / "far", *options, "--cluster", machines.file)
        assert outcome.status == 0, outcome.stderr
    finally:
        machines.stop()
    bnce("filter", trained, shards, "--out", tmp_path / "near", *options)
    assert tree(tmp_path / "far") == tree(tmp_path / "near")


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
    runs = tmp_path / "runs.toml"
    write_mixture(runs, [trained, trained], [0.5, 0.5])
    for name, model in (("spelt", trained), ("spelt-mixture", runs)):
        spelt = bnce("filter", model, shards / "a.jsonl", "--out", tmp_path / name, "--spell", "--json").json
        assert spelt["num_unknown"] == 0
        told = bnce("score", model, tmp_path / "text.txt", "--split", "--carry", "text", "--spell", "--json").json
        (found,) = (one for one in lines_of(tmp_path / name / "a.jsonl") if one["id"] == record["id"])
        assert found["perplexity"] == pytest.approx(told["ppl"], rel=1e-5)
    for model in (arpa, mixture):
        with pytest.raises(UserError, match=r"two\.arpa' is not a run, and only runs have a spelling model"):
            DocumentScorer(model, spell=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{shards}"], "There is no output directory: give --out DIR, or --dry-run"),
        (["{shards}", "--out", "x", "--keep", "120%"], "--keep is '120%': give a percentage above 0 and below 100"),
        (["{shards}", "--out", "x", "--buckets", "60,30"], "--buckets is '60,30': give two percentages, the smaller"),
        (["{shards}", "--out", "x", "--max-perplexity", "0.5"], "--max-perplexity is 0.5: give a number of 1 or more."),
        (["{shards}", "--out", "x", "--keep", "5%", "--buckets", "3,6"], "choose documents in two ways: give one."),
        (["{shards}", "--out", "x", "--shard", "4/3"], "--shard is 4/3: give I/N with I from 1 to N, such as 3/16."),
        (["{shards}", "--out", "x", "--names", "a,b"], "--names is 'a,b': give three different names"),
        (["{shards}", "--out", "x", "--names", "text,b,c"], "already has a "),
        (["{shards}", "--out", "x", "--field", "body"], "name a "),
        (["{shards}", "--out", "x", "--scores-only", "--names", "record,b,c"], "would both be called 'record': give"),
        (["{shards}", "--out", "x", "--rest"], "--rest is for documents that are not kept"),
        (["{shards}", "--out", "x", "--to", "jsonl"], "whose columns JSON cannot keep as they are"),
        (["{shards}", "--out", "{shards}/scored"], "is inside the source"),
        (["none.jsonl", "--out", "x"], "There is no file '"),
        (["{run}", "--out", "x"], "does not have the name of a shard: give files that end in .jsonl"),
        (["-", "--out", "x"], "There are no shards to filter"),
        (["{shards}", "--out", "x", "--thresholds", "{run}/config.toml"], "is not a file of thresholds"),
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


def test_an_exported_run_is_refused(refused: Refused, place: Path, tmp_path: Path) -> None:
    """Documents go through PyTorch's network in streams."""
    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "model.json").write_text("{}", encoding="utf-8")
    shard = tmp_path / "a.jsonl"
    shard.write_text('{"text": "the dog"}\n', encoding="utf-8")
    assert "needs the run that it was made from" in refused("filter", exported, shard, "--out", place / "out")
