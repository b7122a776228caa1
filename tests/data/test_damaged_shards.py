"""Shards that are cut, of another encoding, without their field, nested or far too long: one sentence, and the rest."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from command import Command, Refused

GOOD = [{"text": f"ba be bi {number % 7} ."} for number in range(40)]


def to_lines(records: list[object]) -> bytes:
    return b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in records)


def put(bad: object) -> Callable[[Path], None]:
    """Put something bad among good records, as line 21."""
    return lambda path: path.write_bytes(to_lines([*GOOD[:20], bad, *GOOD[20:]])) and None


def cut_gzip(path: Path) -> None:
    data = gzip.compress(to_lines([{"text": f"ba {random.Random(n).random()}"} for n in range(40)]))
    path.with_name("bad.jsonl.gz").write_bytes(data[: len(data) // 2])


def cut_parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(GOOD), path.with_suffix(".parquet"))
    data = path.with_suffix(".parquet").read_bytes()
    path.with_suffix(".parquet").write_bytes(data[: len(data) // 2])


def hurt_parquet(path: Path) -> None:
    """Damage what is between the first and the last bytes: only who reads the rows finds it."""
    table = pyarrow.table({"text": [f"ba be {random.Random(n).random()}" for n in range(2000)]})
    pyarrow.parquet.write_table(table, path.with_suffix(".parquet"), compression="zstd", row_group_size=500)
    data = bytearray(path.with_suffix(".parquet").read_bytes())
    data[len(data) // 3 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 3)
    path.with_suffix(".parquet").write_bytes(bytes(data))


def latin_parquet(path: Path) -> None:
    """Put bytes where Arrow expects text, which it does not look at."""
    bad = pyarrow.array([b"ba", b"caf\xe9", b"be"], pyarrow.binary())
    text = pyarrow.StringArray.from_buffers(3, *bad.buffers()[1:])
    pyarrow.parquet.write_table(pyarrow.table({"text": text}), path.with_suffix(".parquet"))


def other_columns(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"body": ["ba"]}), path.with_suffix(".parquet"))


def numbers_for_text(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": [1, 2]}), path.with_suffix(".parquet"))


BAD = {
    "not JSON": (put(b'{"text": "ba\n'), "line 21 is not JSON", 40),
    "cut": (put(b'{"text": "ba be"}'), "line 21 is not JSON", 39),
    "Latin-1": (put(b'{"text": "caf\xe9"}\n'), "line 21 has invalid UTF-8 (byte 0xe9): convert the file to UTF-8.", 40),
    "UTF-16": (put('{"text": "ba"}'.encode("utf-16") + b"\n"), "line 21 has invalid UTF-8 (byte 0xff)", 40),
    "no field": (put({"body": "ba"}), "line 21 has no field 'text': it has 'body'; name a field with --field.", 40),
    "nested text": (put({"text": {"en": "ba"}}), "line 21 has an object in its field 'text': it must be a string", 40),
    "a list": (put(["ba"]), "line 21 is an array, not a JSON object: give one record per line.", 40),
    "nested deeply": (put(b'{"text": "ba", "x": ' + b"[" * 10**5 + b"\n"), "line 21 is nested too deeply", 40),
    "huge number": (put(b'{"text": "ba", "x": 1' + b"0" * 5000 + b"}\n"), "line 21 is not JSON", 40),
    "its own score": (
        put({"text": "ba", "perplexity": 1}),
        "line 21 already has a field 'perplexity': rename it, or give --scores-only.",
        40,
    ),
    "far too long": (put({"text": "ba " * 6_000_000}), "line 21 is longer than 16 MiB: give one record per line.", 40),
    "NULs": (put(b"\0" * 100 + b"\n"), "line 21 is not JSON", 40),
    "cut gzip": (cut_gzip, "is damaged, incomplete or not what its file extension says", None),
    "cut Parquet": (cut_parquet, "is damaged or not a Parquet file", 0),
    "hurt Parquet": (hurt_parquet, "is damaged or not a Parquet file", None),
    "Latin-1 in Parquet": (latin_parquet, "row 2 has invalid UTF-8 (byte 0xe9)", 2),
    "other columns": (other_columns, "has no column 'text': it has 'body'; name a column with --field.", 0),
    "numbers": (numbers_for_text, "has int64 in its column 'text': it must be text", 0),
}


@pytest.mark.parametrize("name", BAD)
def test_one_sentence_and_the_others_go_on(
    bnce: Command, refused: Refused, trained: Path, tmp_path: Path, name: str
) -> None:
    spoil, sentence, num_left = BAD[name]
    directory, out = tmp_path / "shards", tmp_path / "out"
    directory.mkdir()
    for good in ("a.jsonl", "z.jsonl"):
        (directory / good).write_bytes(to_lines(list(GOOD)))
    spoil(directory / "bad.jsonl")
    told = refused("filter", trained, directory, "--out", out)
    assert sentence in told
    assert "bad." in told
    assert told.endswith("To continue without it, give --errors skip.")
    # The shard before it is done, and no other is begun.
    written = [str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()]
    assert sorted(written) == [".bnce/settings.json", "a.jsonl"]
    done = bnce("filter", trained, directory, "--out", out, "--errors", "skip", "--json")
    assert done.json["num_problems"] == 1
    assert sentence in done.stderr
    num_documents = done.json["num_documents"]
    assert num_documents == 40 + num_left if num_left is not None else num_documents >= 40
    for good in ("a.jsonl", "z.jsonl"):
        assert len((out / good).read_bytes().splitlines()) == 40
    if (out / "bad.jsonl").exists():
        assert len((out / "bad.jsonl").read_bytes().splitlines()) == num_left


def test_random_damage_is_never_a_traceback(bnce: Command, trained: Path, tmp_path: Path) -> None:
    """Bytes changed anywhere in a file: documents are read or told of."""
    draw = random.Random(1)
    directory = tmp_path / "shards"
    directory.mkdir()
    whole = {".jsonl": to_lines(list(GOOD)), ".jsonl.gz": gzip.compress(to_lines(list(GOOD)))}
    table = tmp_path / "table.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(GOOD), table)
    whole[".parquet"] = table.read_bytes()
    for number in range(60):
        for ending, data in whole.items():
            hurt = bytearray(data)
            for _ in range(draw.randint(1, 4)):
                hurt[draw.randrange(len(hurt))] = draw.randrange(256)
            (directory / f"{number}{ending}").write_bytes(bytes(hurt[: draw.randint(1, 2 * len(hurt))]))
    done = bnce("filter", trained, directory, "--out", tmp_path / "out", "--errors", "skip", "--json").json
    assert done["num_shards"] == 180
    assert done["num_problems"] > 50
    assert done["num_documents"] > 1000
