"""Damaged n-best lists: one sentence that names the place, or a list that is whole; never a silently wrong one."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bnce import UserError
from bnce.kinds.nbest_formats import NBEST_FORMATS
from bnce.rescoring.nbest import NBest
from bnce.rescoring.references import read_references
from tests.damage import damaged

from .made_lists import LISTS, NO_SCORES, WRITERS, read

SEEDS = 80
SCORED = [name for name in NBEST_FORMATS.names if name not in NO_SCORES]
# A score in each format, by the number itself.
SCORE = re.compile(rb"-?\d+\.\d+(e-\d+)?")


def files_of(arguments: dict[str, object]) -> list[Path]:
    """List the files of a list, those with its hypotheses first."""
    path = Path(str(arguments["path"]))
    own = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    return [*own, *(Path(str(value)) for name, value in arguments.items() if name != "path")]


def check_whole(found: NBest) -> None:
    """Check what holds of every list, whatever is in it."""
    assert found.utterances
    assert len({one.name for one in found.utterances}) == len(found.utterances)
    for utterance in found.utterances:
        assert utterance.name.strip()
        assert utterance.texts
        assert set(utterance.scores) == set(found.score_names)
        for scores in utterance.scores.values():
            assert len(scores) == len(utterance.texts)
            assert all(math.isfinite(score) for score in scores)


def refused(arguments: dict[str, object], form: str) -> str:
    with pytest.raises(UserError) as caught:
        read(arguments, form)
    return str(caught.value)


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def scores_of(arguments: dict[str, object]) -> Iterator[tuple[Path, int, re.Match[bytes]]]:
    """Give the first score of every line that has one, with its file and line."""
    for path in files_of(arguments):
        for number, line in enumerate(lines_of(path), 1):
            if match := SCORE.search(line):
                yield path, number, match


@pytest.mark.parametrize("form", NBEST_FORMATS.names)
@pytest.mark.parametrize("named", [True, False])
def test_any_damage(tmp_path: Path, form: str, named: bool) -> None:
    arguments = WRITERS[form](tmp_path, LISTS)
    told: list[str] = []
    for path in files_of(arguments):
        whole = path.read_bytes()
        for seed in range(SEEDS):
            path.write_bytes(damaged(whole, seed))
            try:
                check_whole(read(arguments, form if named else "auto"))
            except UserError as error:
                told.append(str(error))
        path.write_bytes(whole)
    assert told
    assert all("\n" not in one and one.endswith(".") for one in told)


@pytest.mark.parametrize("form", SCORED)
@pytest.mark.parametrize("value", [b"nan", b"inf", b"-Infinity", b"NaN", b"1e999", b"one", b"1_0", b"0x10", b"--1"])
def test_a_score_that_is_no_finite_number(tmp_path: Path, form: str, value: bytes) -> None:
    arguments = WRITERS[form](tmp_path, LISTS)
    places = list(scores_of(arguments))
    assert places
    for path, number, match in places:
        lines = lines_of(path)
        changed = lines.copy()
        changed[number - 1] = match.string[: match.start()] + value + match.string[match.end() :]
        path.write_bytes(b"".join(changed))
        told = refused(arguments, form)
        assert f"'{path}', line {number} " in told
        path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("form", NBEST_FORMATS.names)
def test_wrong_encoding(tmp_path: Path, form: str) -> None:
    arguments = WRITERS[form](tmp_path, LISTS)
    for path in files_of(arguments):
        lines = lines_of(path)
        for number in range(1, len(lines) + 1):
            changed = lines.copy()
            changed[number - 1] = b"\xe4" + changed[number - 1]
            path.write_bytes(b"".join(changed))
            assert f"line {number} has invalid UTF-8" in refused(arguments, form)
        path.write_bytes(b"".join(lines).decode().encode("utf-16"))
        assert "line 1 has " in refused(arguments, form)
        path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("form", NBEST_FORMATS.names)
@pytest.mark.parametrize("content", [b"", b"\n\n", b" \t \n"])
def test_empty_files(tmp_path: Path, form: str, content: bytes) -> None:
    arguments = WRITERS[form](tmp_path, LISTS)
    for path in files_of(arguments):
        whole = path.read_bytes()
        path.write_bytes(content)
        assert f"'{path}' has no words" in refused(arguments, form)
        path.write_bytes(whole)


@pytest.mark.parametrize("form", ["jsonl", "espnet", "kaldi"])
def test_repeated_keys(tmp_path: Path, form: str) -> None:
    arguments = WRITERS[form](tmp_path, LISTS)
    for path in files_of(arguments):
        lines = lines_of(path)
        for number in range(1, len(lines) + 1):
            path.write_bytes(b"".join([*lines, lines[number - 1]]))
            told = refused(arguments, form)
            if path.name != "am":  # Kaldi's scores may be repeated where hypotheses are: the key is named
                assert f"line {len(lines) + 1}" in told
            assert "again" in told or "has 2 scores for" in told
        path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("form", ["tsv", "trn", "k2", "kaldi"])
def test_an_utterance_that_comes_back(tmp_path: Path, form: str) -> None:
    """Where a name is repeated for each hypothesis, two lists one after the other would become one."""
    arguments = WRITERS[form](tmp_path, LISTS)
    path = Path(str(arguments["path"]))
    lines = lines_of(path)
    if form == "kaldi":
        arguments = {"path": path, "keys": "plain"}
        lines = [re.sub(rb"^(\S+)-\d+", rb"\1", line) for line in lines]
        path.write_bytes(b"".join(lines))
        assert len(read(arguments).utterances) == len(LISTS)
    again = next(
        line for line in lines if b"the cat sat" in line or (b"'the', 'cat', 'sat'" in line and b"hyp" in line)
    )
    path.write_bytes(b"".join([*lines, again]))
    told = refused(arguments, form)
    assert f"line {len(lines) + 1} has 'spk-a' again, after 'c_3'" in told or "has a reference again" in told
    assert "neighbouring lines" in told or form == "k2"


@pytest.mark.parametrize("form", ["tsv", "nemo", "k2"])
def test_wrong_columns(tmp_path: Path, form: str) -> None:
    arguments = WRITERS[form](tmp_path, LISTS)
    path = Path(str(arguments["path"]))
    lines = lines_of(path)
    for number in range(2, len(lines) + 1):
        for changed in (lines[number - 1].rstrip(b"\n") + b"\tmore\n", lines[number - 1].replace(b"\t", b" ", 1)):
            path.write_bytes(b"".join([*lines[: number - 1], changed, *lines[number:]]))
            assert f"'{path}', line {number} " in refused(arguments, form)


@pytest.mark.parametrize("form", NBEST_FORMATS.names)
def test_cut_short(tmp_path: Path, form: str) -> None:
    """Wherever a file ends, what was cut off is missed, or the hypotheses before it are as they were."""
    arguments = WRITERS[form](tmp_path, LISTS)
    path = files_of(arguments)[0]
    whole = path.read_bytes()
    expected = {one.name: one.texts for one in LISTS}
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        try:
            found = read(arguments, form)
        except UserError:
            continue
        check_whole(found)
        for utterance in found.utterances[:-1]:
            assert utterance.texts == expected[utterance.name]
        if form == "jsonl":  # an object that is not closed is seen
            assert {one.name: one.texts for one in found.utterances}.items() <= expected.items()


@pytest.mark.parametrize(
    "content", ["u a\nv b\n", "a (u)\nb (v)\n", '{"utt": "u", "ref": "a"}\n{"utt": "v", "ref": "b"}\n']
)
def test_damaged_references(tmp_path: Path, content: str) -> None:
    path = tmp_path / "refs"
    told = []
    for seed in range(2 * SEEDS):
        path.write_bytes(damaged(content.encode(), seed))
        try:
            read_references(path, [])
        except UserError as error:
            told.append(str(error))
    assert told
    assert not any("\n" in one for one in told)


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


@pytest.mark.parametrize("in_array", [True, False])
def test_json_of_other_shapes(tmp_path: Path, in_array: bool) -> None:
    path = tmp_path / "lists.jsonl"
    told = []
    for place in places_in(RECORD):
        for odd in ODD:
            holder = {"": copy.deepcopy(RECORD)}
            inner: Any = holder
            for key in ("", *place)[:-1]:
                inner = inner[key]
            inner[("", *place)[-1]] = odd
            changed = holder[""]
            path.write_text(json.dumps([changed] if in_array else changed), encoding="utf-8")
            try:
                found = read({"path": path})
            except UserError as error:
                told.append(str(error))
            else:
                check_whole(found)
                for utterance in found.utterances:
                    " ".join([utterance.name, *utterance.texts, str(utterance.reference)]).encode()
    assert len(told) > 100
    assert all("line 1" in one or "has no hypothesis" in one for one in told)
    assert not any("\n" in one for one in told)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("n.jsonl", r'{"utt": "u", "hyps": ["\ud800"]}'),
        ("n.jsonl", r'{"utt": "u", "ref": "\ud800", "hyps": ["a"]}'),
        ("recogs", "u:\thyp=['\\ud800']"),
    ],
)
def test_half_letters(tmp_path: Path, name: str, line: str) -> None:
    (tmp_path / name).write_text(f"{line}\n", encoding="utf-8")
    assert "line 1 has the text '\\ud800', which has half of a character (a lone surrogate)" in refused(
        {"path": tmp_path / name}, "auto"
    )
    (tmp_path / name).write_text('{"utt": "u", "hyps": [{"text": "a", "x\\ty": 1}]}\n', encoding="utf-8")
    assert "line 1 has a score with the name 'x\\ty'" in refused({"path": tmp_path / name}, "jsonl")
