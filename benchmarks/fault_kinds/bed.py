"""What the cases are done to: a small corpus, runs of a second each, and inputs of every kind that is read."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import os
import signal
import stat
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from .process import bnce
from .verdict import Outcome

SMALL = [
    "model.embedding_size=6",
    "model.hidden_size=8",
    "optimiser.warmup_steps=5",
    "training.batch_size=8",
    "training.num_steps=5",
    "training.epochs=1",
    "training.evaluations_per_epoch=2",
]
SETTINGS = [word for setting in SMALL for word in ("--set", setting)]
# Saved at every evaluation: what is killed anywhere has something to go on from.
RESUMABLE = [*SETTINGS, "--set", "training.epochs=2", "--set", "training.checkpoint_seconds=0.05"]
TRAIN = ["train", "wiki", "--corpus", "corpus", "--model", "rnn", "--loss", "bnce", "--out", "out", "--json"]

ARPA = """\\data\\
ngram 1=6
ngram 2=6

\\1-grams:
-1.2041200\t<unk>
-99\t<s>\t-0.3010300
-0.6020600\t</s>
-0.7269987\tba\t-0.2218487
-0.8239087\tbe\t-0.1760913
-0.9208188\tda\t-0.3979400

\\2-grams:
-0.3979400\t<s> ba
-0.3010300\tba be
-0.5228787\tbe da
-0.9208188\tbe </s>
-0.6020600\tda ba
-0.4771213\tda </s>

\\end\\
"""

RECIPE = """base = "wiki"

[model]
name = "rnn"
embedding_size = 6
hidden_size = 8

[loss]
name = "bnce"

[optimiser]
warmup_steps = 5

[training]
batch_size = 8
num_steps = 5
epochs = 1
evaluations_per_epoch = 1
"""


@dataclass
class Bed:
    """Where everything is, and what commands say of it while it is whole."""

    path: Path
    devices: Path | None = None
    expected: dict[str, Outcome] = field(default_factory=dict)
    unbroken: dict[str, Any] = field(default_factory=dict)
    port: int = 0  # of the server
    text: Path = Path()  # of the commands that are stopped


def make_bed(path: Path) -> None:
    """Make everything; runs in a process of its own, since commands do."""
    os.chdir(path)
    _write_texts()
    must("prepare", "train.txt", "--valid", "valid.txt", "--test", "test.txt", "--vocab-size", "30",
         "--workers", "1", "--out", "corpus")  # fmt: skip
    train = ["train", "wiki", "--corpus", "corpus", "--json"]
    must(*train, "--model", "relu-lstm", "--loss", "bnce", "--out", "run", *SETTINGS)
    must(*train, "--model", "rnn", "--loss", "softmax", "--out", "other", *SETTINGS)
    _write_inputs()
    must("vocab", "run", "--out", "changed", "--add", "add.tsv")
    must("interpolate", "run", "small.arpa", "--valid", "valid.txt", "--out", "mixture.toml")
    must("rescore", "run", "nbest.tsv", "--tune", "refs.txt", "--save-weights", "weights.json", "--out", "best.txt")
    # Last, for it ends itself.
    stop_at_second_evaluation()
    bnce(*train, "--model", "rnn", "--loss", "bnce", "--out", "stopped", *RESUMABLE)
    if not list(Path("stopped").glob("state-*")):
        raise AssertionError("the stopped run has no state")


def must(*arguments: str) -> Outcome:
    """Run a command that has to succeed."""
    outcome = bnce(*arguments)
    if outcome.status:
        raise AssertionError(f"bnce {' '.join(arguments)}: {outcome.stderr}")
    return outcome


def stop_at_second_evaluation() -> None:
    """Send this process a polite kill when it writes its second evaluation."""
    num_seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal num_seen
        if event == "os.rename" and str(arguments[1]).endswith("metrics.jsonl"):
            num_seen += 1
            if num_seen == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    sys.addaudithook(watch)


def make_devices(path: Path) -> Path | None:
    """Make devices of our own: a program that replaces what it should write to must not get the machine's."""
    path.mkdir()
    try:
        for name, minor in (("null", 3), ("full", 7)):
            os.mknod(path / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
            with contextlib.suppress(OSError), open(path / name, "wb", buffering=0) as device:
                device.write(b"x")
            if not (path / name).is_char_device():
                return None
        (path / "null").write_bytes(b"x")
    except OSError:
        return None
    return path


def _write_texts() -> None:
    chance = Random(1)
    words = [first + second for first in "bdfgklmn" for second in "aeiou"]
    weights = [1 / (place + 1) for place in range(len(words))]
    for name, num_sentences in (("train", 400), ("valid", 60), ("test", 50), ("text", 20)):
        sentences = (" ".join(chance.choices(words, weights, k=6)) for _ in range(num_sentences))
        Path(f"{name}.txt").write_text("".join(f"{sentence} .\n" for sentence in sentences), encoding="utf-8")


def _write_inputs() -> None:
    import pyarrow
    import pyarrow.parquet

    text = Path("valid.txt").read_bytes()
    lines = text.decode().splitlines()
    Path("text.gz").write_bytes(gzip.compress(text, mtime=0))
    Path("text.xz").write_bytes(lzma.compress(text))
    Path("text.bz2").write_bytes(bz2.compress(text))
    Path("text.zst").write_bytes(_zstd(text))
    with zipfile.ZipFile("text.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text.txt", text)
    records = "".join(json.dumps({"id": number, "text": line}) + "\n" for number, line in enumerate(lines))
    Path("records.jsonl").write_text(records, encoding="utf-8")
    Path("records.jsonl.gz").write_bytes(gzip.compress(records.encode(), mtime=0))
    table = pyarrow.table({"id": list(range(len(lines))), "text": lines})
    pyarrow.parquet.write_table(table, "records.parquet")
    Path("small.arpa").write_text(ARPA, encoding="utf-8")
    Path("recipe.toml").write_text(RECIPE, encoding="utf-8")
    hypotheses = [("one", -1.0, -2.0, "ba be da"), ("one", -1.5, -1.0, "ba bo da"), ("two", -3.0, -2.5, "fu"),
                  ("two", -2.0, -2.0, "fa fa"), ("two", -2.5, -1.0, "")]  # fmt: skip
    rows = "".join(f"{name}\t{am}\t{lm}\t{words}\n" for name, am, lm, words in hypotheses)
    Path("nbest.tsv").write_text("utt\tam\tlm\ttext\n" + rows, encoding="utf-8")
    lists = {
        name: [{"text": words, "am_score": am, "lm_score": lm} for one, am, lm, words in hypotheses if one == name]
        for name in ("one", "two")
    }
    Path("nbest.jsonl").write_text(
        "".join(json.dumps({"utt": name, "hyps": hyps}) + "\n" for name, hyps in lists.items()), encoding="utf-8"
    )
    keys = ["one-1", "one-2", "two-1", "two-2", "two-3"]
    for name, place in (("nbest.txt", 3), ("am.txt", 1), ("lm.txt", 2)):
        rows = "".join(f"{key} {row[place]}".rstrip() + "\n" for key, row in zip(keys, hypotheses, strict=True))
        Path(name).write_text(rows, encoding="utf-8")
    Path("refs.txt").write_text("one ba be da\ntwo fa fu\n", encoding="utf-8")
    Path("add.tsv").write_text("zeta\t3\nyota\t5\nxi\n", encoding="utf-8")
    Path("words.txt").write_bytes(Path("corpus/vocab.txt").read_bytes())


def _zstd(text: bytes) -> bytes:
    """Pack a text as the zstd program does, with a checksum, which pyarrow leaves out."""
    import pyarrow

    packed = bytearray(pyarrow.Codec("zstd").compress(text, asbytes=True))
    packed[4] |= 1 << 2  # the frame's header says that a checksum follows
    return bytes(packed) + (_xxh64(text) & 0xFFFFFFFF).to_bytes(4, "little")


def _xxh64(data: bytes) -> int:
    """Compute XXH64 with seed 0: github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md."""
    first, second, third, fourth, fifth = (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
    )  # fmt: skip
    mask = 2**64 - 1

    def turn(value: int, bits: int) -> int:
        return ((value << bits) | (value >> (64 - bits))) & mask

    def mix(total: int, lane: int) -> int:
        return turn((total + lane * second) & mask, 31) * first & mask

    totals = [(first + second) & mask, second, 0, -first & mask]
    end = len(data) // 32 * 32
    for place in range(0, end, 32):
        for lane in range(4):
            word = int.from_bytes(data[place + 8 * lane : place + 8 * lane + 8], "little")
            totals[lane] = mix(totals[lane], word)
    if len(data) >= 32:
        total = sum(turn(value, bits) for value, bits in zip(totals, (1, 7, 12, 18), strict=True)) & mask
        for value in totals:
            total = ((total ^ mix(0, value)) * first + fourth) & mask
    else:
        total = fifth
    total = (total + len(data)) & mask
    rest = data[end:]
    while len(rest) >= 8:
        total = (turn(total ^ mix(0, int.from_bytes(rest[:8], "little")), 27) * first + fourth) & mask
        rest = rest[8:]
    if len(rest) >= 4:
        total = (turn(total ^ (int.from_bytes(rest[:4], "little") * first & mask), 23) * second + third) & mask
        rest = rest[4:]
    for byte in rest:
        total = turn(total ^ (byte * fifth & mask), 11) * first & mask
    total = (total ^ (total >> 33)) * second & mask
    total = (total ^ (total >> 29)) * third & mask
    return total ^ (total >> 32)
