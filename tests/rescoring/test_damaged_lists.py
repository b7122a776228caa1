"""Damaged n-best lists: one sentence that names the place, or a list that is whole; never a silently wrong one."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from command import Command, Refused
from damage import KINDS, damaged

from .made_lists import LISTS, WITHOUT_MODEL, WRITERS, Record, as_they_were, save

Outcome = str | list[Record]  # the sentence of a refusal, or the lists that were read
Read = Callable[..., Outcome]
SEEDS = 80
FORMS = sorted(WRITERS)
# A score in each format, by the number itself.
SCORE = re.compile(rb"-?\d+\.\d+(e-\d+)?")


@pytest.fixture
def outcome_of(bnce: Command, trained: Path, tmp_path: Path) -> Read:
    """Give a command that reads lists whole, or refuses them in one sentence."""
    out = tmp_path / "read.jsonl"

    def run(*arguments: object) -> Outcome:
        outcome = bnce("rescore", trained, *arguments, *WITHOUT_MODEL, "--out", out)
        if outcome.status:
            assert outcome.status == 2
            (line,) = outcome.stderr.splitlines()
            assert line.startswith("bnce: ")
            assert line.endswith(".")
            return line
        lists = as_they_were(out)
        check_whole(lists)
        return lists

    return run


def files_of(arguments: Sequence[object]) -> list[Path]:
    """List the files of a list, those with its hypotheses first."""
    path, *options = arguments
    own = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    return [*own, *(Path(option.partition("=")[2]) for option in options if "=" in option)]


def check_whole(lists: list[Record]) -> None:
    """Check what holds of every list, whatever is in it."""
    assert lists
    assert len({one["utt"] for one in lists}) == len(lists)
    (names,) = {tuple(sorted(hypothesis)) for one in lists for hypothesis in one["hyps"]}
    for one in lists:
        assert one["utt"].strip()
        assert one["hyps"]
        assert all(math.isfinite(hypothesis[name]) for hypothesis in one["hyps"] for name in names if name != "text")


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def scores_of(arguments: Sequence[object]) -> Iterator[tuple[Path, int, re.Match[bytes]]]:
    """Give the first score of every line that has one, with its file and line."""
    for path in files_of(arguments):
        for number, line in enumerate(lines_of(path), 1):
            if match := SCORE.search(line):
                yield path, number, match


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("named", [True, False])
def test_any_damage(tmp_path: Path, outcome_of: Read, form: str, named: bool) -> None:
    arguments = WRITERS[form](tmp_path, LISTS)
    options = ["--format", form] if named else []
    files = files_of(arguments)
    told = 0
    for seed in range(SEEDS):
        path = files[seed // len(KINDS) % len(files)]
        whole = path.read_bytes()
        path.write_bytes(damaged(whole, seed))
        told += isinstance(outcome_of(*arguments, *options), str)
        path.write_bytes(whole)
    assert told


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [b"nan", b"inf", b"-Infinity", b"NaN", b"1e999", b"one", b"1_0", b"0x10", b"--1"])
def test_a_score_that_is_no_finite_number(
    tmp_path: Path, refused: Refused, trained: Path, form: str, value: bytes
) -> None:
    arguments = WRITERS[form](tmp_path, LISTS)
    places = list(scores_of(arguments))
    assert places
    for path, number, match in places:
        lines = lines_of(path)
        changed = lines.copy()
        changed[number - 1] = match.string[: match.start()] + value + match.string[match.end() :]
        path.write_bytes(b"".join(changed))
        assert f"'{path}', line {number} " in refused("rescore", trained, *arguments)
        path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("form", FORMS)
def test_wrong_encoding(tmp_path: Path, refused: Refused, trained: Path, form: str) -> None:
    arguments = WRITERS[form](tmp_path, LISTS)
    for path in files_of(arguments):
        lines = lines_of(path)
        for number in range(1, len(lines) + 1):
            changed = lines.copy()
            changed[number - 1] = b"\xe4" + changed[number - 1]
            path.write_bytes(b"".join(changed))
            assert f"line {number} has invalid UTF-8" in refused("rescore", trained, *arguments)
        path.write_bytes(b"".join(lines).decode().encode("utf-16"))
        assert "line 1 has " in refused("rescore", trained, *arguments)
        path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("content", [b"", b"\n\n", b" \t \n"])
def test_empty_files(tmp_path: Path, refused: Refused, trained: Path, form: str, content: bytes) -> None:
    arguments = WRITERS[form](tmp_path, LISTS)
    for path in files_of(arguments):
        whole = path.read_bytes()
        path.write_bytes(content)
        assert f"'{path}' has no words" in refused("rescore", trained, *arguments)
        path.write_bytes(whole)


@pytest.mark.parametrize("form", ["jsonl", "espnet", "kaldi"])
def test_repeated_keys(tmp_path: Path, refused: Refused, trained: Path, form: str) -> None:
    arguments = WRITERS[form](tmp_path, LISTS)
    for path in files_of(arguments):
        lines = lines_of(path)
        for number in range(1, len(lines) + 1):
            path.write_bytes(b"".join([*lines, lines[number - 1]]))
            told = refused("rescore", trained, *arguments)
            if path.name not in ("am", "score"):  # a key may have several scores: it is named, not the line
                assert f"line {len(lines) + 1}" in told
            assert "again" in told or "has 2 scores for" in told
        path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("form", ["tsv", "kaldi"])
def test_an_utterance_that_comes_back(tmp_path: Path, refused: Refused, trained: Path, form: str) -> None:
    """Where a name is repeated for each hypothesis, two lists one after the other would become one."""
    path, *_ = WRITERS[form](tmp_path, LISTS)
    lines = lines_of(path)
    if form == "kaldi":
        lines = [re.sub(rb"^(\S+)-\d+", rb"\1", line) for line in lines]
    again = next(line for line in lines if b"the cat sat" in line)
    path.write_bytes(b"".join([*lines, again]))
    told = refused("rescore", trained, path)
    assert f"line {len(lines) + 1} has 'spk-a' again, after 'c_3'" in told
    assert "neighbouring lines" in told


@pytest.mark.parametrize("form", FORMS)
def test_cut_short(tmp_path: Path, outcome_of: Read, form: str) -> None:
    """Wherever a file ends, what was cut off is missed, or the hypotheses before it are as they were."""
    arguments = WRITERS[form](tmp_path, LISTS)
    path = files_of(arguments)[0]
    whole = path.read_bytes()
    expected = {one["utt"]: [hypothesis["text"] for hypothesis in one["hyps"]] for one in LISTS}
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        lists = outcome_of(*arguments)
        if isinstance(lists, str):
            continue
        found = {one["utt"]: [hypothesis["text"] for hypothesis in one["hyps"]] for one in lists}
        if form != "jsonl":  # there an object that is not closed is seen
            found.popitem()
        assert found.items() <= expected.items()


@pytest.mark.parametrize("content", ["u a\nv b\n", '{"utt": "u", "ref": "a"}\n{"utt": "v", "ref": "b"}\n'])
def test_damaged_references(tmp_path: Path, outcome_of: Read, content: str) -> None:
    nbest, path = save(tmp_path / "nbest", ["u a", "v b"]), tmp_path / "refs"
    told = 0
    for seed in range(SEEDS):
        path.write_bytes(damaged(content.encode(), seed))
        told += isinstance(outcome_of(nbest, "--refs", path), str)
    assert told


RECORD = {
    "id": "u",
    "ref": "a b",
    "hyps": [{"text": "a b", "score": -1, "ctc": -2}, {"text": "a", "score": -2.5, "ctc": -1}],
}
ODD = [
    None, True, [], {}, "", 0, -1, 1.5, math.nan, math.inf, 10**400, "nan", [[]], [{}], {"text": "a"}, ["a", 1], [None],
    "two\nlines\tand\u2028more", "\ud800",
]  # fmt: skip


def places_in(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places_in(one, (*path, key))


def test_json_of_other_shapes(tmp_path: Path, outcome_of: Read) -> None:
    """As a line, or every other time as an array."""
    path = tmp_path / "lists.jsonl"
    told = []
    for number, (place, odd) in enumerate(itertools.product(places_in(RECORD), ODD)):
        holder = {"": copy.deepcopy(RECORD)}
        inner: Any = holder
        for key in ("", *place)[:-1]:
            inner = inner[key]
        inner[("", *place)[-1]] = odd
        changed = holder[""]
        path.write_text(json.dumps([changed] if number % 2 else changed), encoding="utf-8")
        if isinstance(outcome := outcome_of(path), str):
            told.append(outcome)
    assert len(told) > 100
    assert all("line 1 " in one or "element 1 " in one or "has no hypothesis" in one for one in told)
