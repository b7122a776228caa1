"""N-best lists written in every format, as the recognisers write them, and read again by `bnce rescore`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from command import Command

Record = dict[str, Any]  # {"utt": name, "ref": reference, "hyps": [{"text": text, "am_score": score}, …]}


def record(name: str, reference: str | None, *hypotheses: tuple[str, float]) -> Record:
    found = {"utt": name, "hyps": [{"text": text, "am_score": score} for text, score in hypotheses]}
    return found if reference is None else {**found, "ref": reference}


# Ragged, with an empty hypothesis, letters beyond ASCII, and scores that fall within each utterance.
LISTS = [
    record("spk-a", "the cat sat", ("the cat sat", -1.5), ("the cat", -2.25), ("", -8.0)),
    record("b", "unicode", ("ünïcode 日本", 0.5)),
    record("c_3", "o'clock now", ("o'clock", 0.625), ("clock", -1e-3), ("o", -12.125)),
]


def rows(lists: Iterable[Record]) -> list[tuple[str, int, str, float]]:
    return [
        (one["utt"], rank, hypothesis["text"], hypothesis["am_score"])
        for one in lists
        for rank, hypothesis in enumerate(one["hyps"], 1)
    ]


def save(path: Path, lines: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_kaldi(place: Path, lists: Sequence[Record]) -> list[object]:
    am = save(place / "am", (f"{name}-{rank} {score!r}" for name, rank, _, score in rows(lists)))
    path = save(place / "text", (f"{name}-{rank} {text}".rstrip() for name, rank, text, _ in rows(lists)))
    return [path, "--scores", f"am={am}"]


def write_jsonl(place: Path, lists: Sequence[Record]) -> list[object]:
    return [save(place / "lists.jsonl", map(json.dumps, lists))]


def write_tsv(place: Path, lists: Sequence[Record]) -> list[object]:
    lines = ["utt\tscore\ttext", *(f"{name}\t{score!r}\t{text}" for name, _, text, score in rows(lists))]
    return [save(place / "lists.tsv", lines)]


def write_espnet(place: Path, lists: Sequence[Record]) -> list[object]:
    for rank in range(1, 1 + max(len(one["hyps"]) for one in lists)):
        own = [row for row in rows(lists) if row[1] == rank]
        save(place / f"decode/{rank}best_recog/text", (f"{name} {text}" for name, _, text, _ in own))
        save(place / f"decode/{rank}best_recog/score", (f"{name} tensor({score!r})" for name, _, _, score in own))
    return [place / "decode"]


# What writes lists gives the arguments that read them: the list, and options.
WRITERS: dict[str, Callable[[Path, Sequence[Record]], list[object]]] = {
    "kaldi": write_kaldi,
    "jsonl": write_jsonl,
    "tsv": write_tsv,
    "espnet": write_espnet,
}
# How the command names them.
SHOWN = {"kaldi": "Kaldi text", "jsonl": "JSON lines", "tsv": "TSV", "espnet": "an ESPnet decode directory"}
# The model has no say: it does not know the words of most lists here.
WITHOUT_MODEL = ("--weight", "lm_weight=0")
ADDED = ("ln_prob", "num_words", "num_oov", "total", "place")


def read(bnce: Command, run: Path, arguments: Sequence[object], out: Path) -> list[Record]:
    """Let `bnce rescore` read lists and write them to a file of JSON lines."""
    outcome = bnce("rescore", run, *arguments, *WITHOUT_MODEL, "--out", out)
    assert outcome.status == 0, outcome.stderr
    return as_they_were(out)


def as_they_were(path: Path) -> list[Record]:
    """Give lists as they were before rescoring: what it adds is left out, and its order undone."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    for one in found:
        one["hyps"].sort(key=lambda hypothesis: hypothesis["place"])
        for hypothesis in one["hyps"]:
            for name in ADDED:
                del hypothesis[name]
    return found
