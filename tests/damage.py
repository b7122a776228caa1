"""Damage as disks, copies and editors do it, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable

Damage = Callable[[random.Random, bytearray], None]


def flip_bit(generator: random.Random, content: bytearray) -> None:
    content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)


def flip_early_bit(generator: random.Random, content: bytearray) -> None:
    """Where headers are."""
    content[generator.randrange(min(len(content), 128))] ^= 1 << generator.randrange(8)


def change_early_letter(generator: random.Random, content: bytearray) -> None:
    content[generator.randrange(min(len(content), 128))] = generator.choice(b"0189({[]}),:'\"<u4 \n#-eE\xff\x00")


def cut(generator: random.Random, content: bytearray) -> None:
    del content[generator.randrange(len(content)) :]


def zero(generator: random.Random, content: bytearray) -> None:
    begin = generator.randrange(len(content))
    end = min(len(content), begin + generator.choice([1, 8, 64, 4096]))
    content[begin:end] = bytes(end - begin)


def insert(generator: random.Random, content: bytearray) -> None:
    place = generator.randrange(len(content))
    content[place:place] = generator.randbytes(generator.choice([1, 2, 8]))


def repeat(generator: random.Random, content: bytearray) -> None:
    place = generator.randrange(len(content))
    content += content[place:]


def swap(generator: random.Random, content: bytearray) -> None:
    """Two neighbouring stretches of equal length, as blocks written in the wrong order."""
    length = generator.choice([1, 2, 16])
    place = generator.randrange(max(1, len(content) - 2 * length))
    first, second = content[place : place + length], content[place + length : place + 2 * length]
    content[place : place + len(first) + len(second)] = second + first


KINDS: tuple[Damage, ...] = (flip_bit, flip_early_bit, change_early_letter, cut, zero, insert, repeat, swap)


def damaged(content: bytes, seed: int) -> bytes:
    """Damage a file's content in one of the ways, chosen and placed by the seed; it may by chance stay as it was."""
    generator = random.Random(seed)
    changed = bytearray(content)
    KINDS[seed % len(KINDS)](generator, changed)
    return bytes(changed)
