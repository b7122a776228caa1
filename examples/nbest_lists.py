"""Write n-best lists of NeMo, icefall or SCTK as JSON lines, which bnce rescore reads.

python examples/nbest_lists.py nemo beams.tsv manifest.json > dev.jsonl
python examples/nbest_lists.py icefall recogs-dev.txt > dev.jsonl
python examples/nbest_lists.py sctk hyp.trn ref.trn > dev.jsonl

A reader gives one object per utterance: its name, its reference if it is known, and its hypotheses, the best first. If
your recogniser writes something else, write another reader like these.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

Utterance = dict[str, Any]  # {"utt": name, "ref": reference, "hyps": [{"text": hypothesis, "score": score}, ...]}


def read_nemo(beams: Sequence[str], manifest: Sequence[str]) -> Iterator[Utterance]:
    """Read `text<TAB>score` lines, as many for each utterance; the manifest has the utterances in the same order."""
    size, rest = divmod(len(beams), len(manifest))
    if rest:
        raise SystemExit(f"{len(beams)} hypotheses cannot be shared out evenly among {len(manifest)} utterances.")
    for place, line in enumerate(manifest):
        utterance = json.loads(line)
        pairs = [beam.rsplit("\t", 1) for beam in beams[place * size : (place + 1) * size]]
        hypotheses = [{"text": text, "score": float(score)} for text, score in pairs]
        yield {"utt": utterance["audio_filepath"], "ref": utterance.get("text"), "hyps": hypotheses}


def read_icefall(lines: Sequence[str]) -> Iterable[Utterance]:
    """Read `utterance:<TAB>ref=['a', 'b']` lines, each before its `hyp=` lines; lines with times are left out."""
    utterances: dict[str, Utterance] = {}
    for line in lines:
        name, _, said = line.partition(":\t")
        kind, _, words = said.partition("=")
        if kind == "ref":
            utterances[name] = {"utt": name, "ref": " ".join(ast.literal_eval(words)), "hyps": []}
        elif kind == "hyp":
            utterances[name]["hyps"].append(" ".join(ast.literal_eval(words)))
    return utterances.values()


def read_sctk(lines: Sequence[str], references: Sequence[str]) -> Iterable[Utterance]:
    """Read `words… (utterance)` lines, one per hypothesis; those with `;;` are comments."""
    said = dict(reversed(split_transcript(line)) for line in references if not line.startswith(";;"))
    utterances: dict[str, Utterance] = {}
    for line in lines:
        if not line.startswith(";;"):
            text, name = split_transcript(line)
            known = {"ref": said[name]} if references else {}
            utterances.setdefault(name, {"utt": name, **known, "hyps": []})["hyps"].append(text)
    return utterances.values()


def split_transcript(line: str) -> tuple[str, ...]:
    """Split a transcript into its words and its utterance."""
    match = re.fullmatch(r"(.*)\(([^()\s]+)\)\s*", line)
    if match is None:
        raise SystemExit(f"'{line}' does not end in an utterance in brackets.")
    return match[1].strip(), match[2]


def read_lines(path: str) -> list[str]:
    """Read the lines of a file that are not blank."""
    with open(path, encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file if line.strip()]


def main(argv: Sequence[str] | None = None) -> None:
    """Read lists, and print them as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    formats = parser.add_subparsers(required=True, metavar="nemo|icefall|sctk")
    nemo, icefall, sctk = (formats.add_parser(name) for name in ("nemo", "icefall", "sctk"))
    nemo.add_argument("beams", type=read_lines, help="what the beam search wrote")
    nemo.add_argument("manifest", type=read_lines, help="manifest with names and references")
    nemo.set_defaults(read=lambda given: read_nemo(given.beams, given.manifest))
    icefall.add_argument("lists", type=read_lines, help="recogs text with all hypotheses")
    icefall.set_defaults(read=lambda given: read_icefall(given.lists))
    sctk.add_argument("lists", type=read_lines, help="transcripts, one per hypothesis, the best first")
    sctk.add_argument("references", type=read_lines, nargs="?", default=[], help="transcripts of what was said")
    sctk.set_defaults(read=lambda given: read_sctk(given.lists, given.references))
    given = parser.parse_args(argv)
    for utterance in given.read(given):
        print(json.dumps(utterance, ensure_ascii=False))


if __name__ == "__main__":
    main()
