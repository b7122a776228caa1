"""Damage to a file: what disks, networks, editors and other programs do to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

NASTY_VALUES: list[Any] = [
    None, True, -1, 0, 10**30, 1e308, 0.5, "", "x", "\u0000", "é" * 50, [], [None], {}, {"a": []}, "a\nb",
]  # fmt: skip
NASTY_TEXT = [b"NaN", b"1e400", b"[" * 20_000, b'"\\ud800"', b"\xff\xfe", b"\x00", b"9" * 5000, b"\xef\xbb\xbf"]


def damage(chance: Random, path: Path) -> str:
    """Damage a file in place, in a way that suits it, and say how."""
    data = path.read_bytes()
    ways: list[Callable[[Random, bytes], tuple[bytes, str]]] = [*ANYWHERE, *ANYWHERE]
    if path.suffix in (".json", ".jsonl", ".toml", ".txt", ".tsv", ".arpa", ".md") or "." not in path.name:
        ways += [*LINES, *LINES]
    if path.suffix in (".json", ".jsonl"):
        ways += [_change_value] * 8
    if chance.random() < 0.06:
        return _replace_file(chance, path)
    for _ in range(20):
        changed, how = chance.choice(ways)(chance, data)
        if changed != data:
            path.write_bytes(changed)
            return f"{path.name}: {how}"
    path.write_bytes(data + b"\0")
    return f"{path.name}: a zero byte more"


def _replace_file(chance: Random, path: Path) -> str:
    how = chance.choice(["missing", "a directory", "a dangling link", "empty", "a link to itself"])
    path.unlink()
    if how == "a directory":
        path.mkdir()
    elif how == "a dangling link":
        path.symlink_to("nowhere")
    elif how == "a link to itself":
        path.symlink_to(path.name)
    elif how == "empty":
        path.touch()
    return f"{path.name}: {how}"


def _place(chance: Random, data: bytes) -> int:
    """Choose a place, as often in the first bytes, where headers are, as anywhere."""
    return chance.randrange(min(len(data), 160) if chance.random() < 0.4 else len(data)) if data else 0


def _flip(chance: Random, data: bytes) -> tuple[bytes, str]:
    changed = bytearray(data)
    places = [_place(chance, data) for _ in range(chance.choice([1, 1, 1, 2, 8]))]
    for place in places if data else []:
        changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed), f"bits flipped at {places}"


def _overwrite(chance: Random, data: bytes) -> tuple[bytes, str]:
    place, size = _place(chance, data), chance.choice([1, 4, 64, 512])
    new = bytes(size) if chance.random() < 0.5 else chance.randbytes(size)
    return data[:place] + new[: len(data) - place] + data[place + size :], f"{size} bytes at {place} overwritten"


def _cut_end(chance: Random, data: bytes) -> tuple[bytes, str]:
    size = chance.choice([0, len(data) - 1, len(data) // 2, _place(chance, data)])
    return data[: max(0, size)], f"cut to {size} of {len(data)} bytes"


def _zero_end(chance: Random, data: bytes) -> tuple[bytes, str]:
    place = _place(chance, data)
    return data[:place] + bytes(len(data) - place), f"zero from {place} on"


def _append(chance: Random, data: bytes) -> tuple[bytes, str]:
    # Not all of it once more: two packed files in a row are one.
    more = chance.choice([b"\0", b"\n", bytes(512), data[: len(data) // 2], chance.randbytes(32)])
    return data + more, f"{len(more)} bytes appended"


def _drop_middle(chance: Random, data: bytes) -> tuple[bytes, str]:
    place, size = _place(chance, data), chance.choice([1, 2, 16, 256])
    return data[:place] + data[place + size :], f"{size} bytes at {place} dropped"


def _repeat_middle(chance: Random, data: bytes) -> tuple[bytes, str]:
    place, size = _place(chance, data), chance.choice([1, 2, 16, 256])
    return data[: place + size] + data[place:], f"{size} bytes at {place} twice"


def _replace_all(chance: Random, data: bytes) -> tuple[bytes, str]:
    size = chance.choice([1, len(data)])
    return chance.randbytes(size), f"all replaced by {size} random bytes"


def _change_lines(chance: Random, data: bytes) -> tuple[bytes, str]:
    lines = data.splitlines(keepends=True)
    if not lines:
        return data, ""
    place, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    how = chance.choice(["swapped with another", "dropped", "twice", "with Windows' ending", "blanked", "shortened"])
    if how == "swapped with another":
        lines[place], lines[other] = lines[other], lines[place]
    elif how == "dropped":
        del lines[place]
    elif how == "twice":
        lines.insert(place, lines[place])
    elif how == "with Windows' ending":
        lines[place] = lines[place].rstrip(b"\n") + b"\r\n"
    elif how == "blanked":
        lines[place] = b"\n"
    else:
        lines[place] = lines[place][: chance.randrange(len(lines[place]))] + b"\n"
    return b"".join(lines), f"line {place + 1} {how}"


def _insert_text(chance: Random, data: bytes) -> tuple[bytes, str]:
    place, text = _place(chance, data), chance.choice(NASTY_TEXT)
    return data[:place] + text + data[place:], f"{text[:8]!r}… put in at {place}"


def _change_word(chance: Random, data: bytes) -> tuple[bytes, str]:
    """Replace a word between blanks: a number becomes something else."""
    words = data.split(b" ")
    place = chance.randrange(len(words))
    old, words[place] = words[place], chance.choice([b"", b"nan", b"-1", b"x", b"1e999", b"true", b"0", b"[]", b'"'])
    return b" ".join(words), f"word {old[:12]!r} made {words[place]!r}"


def _change_value(chance: Random, data: bytes) -> tuple[bytes, str]:
    """Replace, drop or double a value of a JSON file, or of one line of it."""
    text = data.decode()
    lines = text.splitlines() if "\n{" in text else [text]
    place = chance.randrange(len(lines))
    try:
        whole = [json.loads(lines[place])]
    except ValueError:
        return data, ""
    spots: list[tuple[Any, Any]] = []

    def walk(parent: Any) -> None:
        for key in list(parent) if isinstance(parent, dict) else range(len(parent)):
            spots.append((parent, key))
            if isinstance(parent[key], dict | list):
                walk(parent[key])

    walk(whole)
    parent, key = chance.choice(spots)
    if chance.random() < 0.25 and isinstance(parent, dict):
        del parent[key]
        how = f"{key} dropped"
    else:
        parent[key] = chance.choice(NASTY_VALUES)
        how = f"{key} made {str(parent[key])[:12]!r}"
    lines[place] = json.dumps(whole[0]) if whole else ""
    return ("\n".join(lines) + "\n").encode(), f"line {place + 1}: {how}"


ANYWHERE = [_flip, _flip, _flip, _overwrite, _cut_end, _zero_end, _append, _drop_middle, _repeat_middle, _replace_all]
LINES = [_change_lines, _insert_text, _change_word]


def copy(source: Path, name: str | None = None) -> Path:
    """Copy a file or a directory into the directory of the case."""
    target = Path(name or source.name)
    return shutil.copytree(source, target) if source.is_dir() else Path(shutil.copyfile(source, target))
