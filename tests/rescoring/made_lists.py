"""N-best lists written in every format, as the recognisers write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from bnce.rescoring.nbest import NBest, Utterance, read_nbest

# Ragged, with an empty hypothesis, letters beyond ASCII, and scores that fall within each utterance.
LISTS = [
    Utterance("spk-a", ["the cat sat", "the cat", ""], {"am": [-1.5, -2.25, -8.0]}, "the cat sat"),
    Utterance("b", ["ünïcode 日本"], {"am": [0.5]}, "unicode"),
    Utterance("c_3", ["o'clock", "clock", "o"], {"am": [0.625, -1e-3, -12.125]}, "o'clock now"),
]


def bare(lists: Iterable[Utterance], *, scores: bool = True, references: bool = True) -> list[Utterance]:
    """Leave out what a format cannot hold."""
    return [
        Utterance(one.name, one.texts, one.scores if scores else {}, one.reference if references else None)
        for one in lists
    ]


def rows(lists: Iterable[Utterance]) -> list[tuple[str, int, str, float]]:
    return [
        (one.name, rank, text, score)
        for one in lists
        for rank, (text, score) in enumerate(zip(one.texts, one.scores["am"], strict=True), 1)
    ]


def save(path: Path, lines: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_kaldi(place: Path, lists: list[Utterance]) -> dict[str, object]:
    save(place / "am", (f"{name}-{rank} {score!r}" for name, rank, _, score in rows(lists)))
    path = save(place / "text", (f"{name}-{rank} {text}".rstrip() for name, rank, text, _ in rows(lists)))
    return {"path": path, "am_scores": place / "am"}


def write_jsonl(place: Path, lists: list[Utterance]) -> dict[str, object]:
    records = []
    for one in lists:
        pairs = zip(one.texts, one.scores["am"], strict=True)
        hypotheses = [{"text": text, "score": score} for text, score in pairs]
        records.append(json.dumps({"id": one.name, "ref": one.reference, "hyps": hypotheses}))
    return {"path": save(place / "lists.jsonl", records)}


def write_tsv(place: Path, lists: list[Utterance]) -> dict[str, object]:
    lines = ["utt\tscore\ttext", *(f"{name}\t{score!r}\t{text}" for name, _, text, score in rows(lists))]
    return {"path": save(place / "lists.tsv", lines)}


def write_nemo(place: Path, lists: list[Utterance]) -> dict[str, object]:
    manifest = [json.dumps({"audio_filepath": one.name, "text": one.reference}) for one in lists]
    save(place / "manifest.json", manifest)
    lines = [f"{text}\t{score!r}" for _, _, text, score in rows(lists)]
    return {"path": save(place / "beams.tsv", lines), "manifest": place / "manifest.json"}


def write_espnet(place: Path, lists: list[Utterance]) -> dict[str, object]:
    for rank in range(1, 1 + max(len(one.texts) for one in lists)):
        own = [row for row in rows(lists) if row[1] == rank]
        save(place / f"decode/{rank}best_recog/text", (f"{name} {text}" for name, _, text, _ in own))
        save(place / f"decode/{rank}best_recog/score", (f"{name} tensor({score!r})" for name, _, _, score in own))
    return {"path": place / "decode"}


def write_trn(place: Path, lists: list[Utterance]) -> dict[str, object]:
    return {"path": save(place / "hyp.trn", (f"{text} ({name})" for name, _, text, _ in rows(lists)))}


def write_k2(place: Path, lists: list[Utterance]) -> dict[str, object]:
    lines = []
    for one in lists:
        lines.append(f"{one.name}:\tref={str(one.reference).split()}")
        for text, score in zip(one.texts, one.scores["am"], strict=True):
            lines.append(f"{one.name}:\thyp={text.split()}\tam={score!r}")
    return {"path": save(place / "recogs.txt", lines)}


WRITERS: dict[str, Callable[[Path, list[Utterance]], dict[str, object]]] = {
    "kaldi": write_kaldi,
    "jsonl": write_jsonl,
    "tsv": write_tsv,
    "nemo": write_nemo,
    "espnet": write_espnet,
    "trn": write_trn,
    "k2": write_k2,
}
# What a format cannot hold.
NO_SCORES, NO_REFERENCES = {"trn"}, {"kaldi", "tsv", "espnet", "trn"}


def read(arguments: dict[str, object], form: str = "auto") -> NBest:
    return read_nbest(form=form, **arguments)  # type: ignore[arg-type]
