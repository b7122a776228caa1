"""Keep the figures of runs in one file, and lay them out again, so that an experiment can go on elsewhere.

    python benchmarks/kept_runs.py pack EXPERIMENT FILE.jsonl --rename OLD=NEW
    python benchmarks/kept_runs.py unpack FILE.jsonl EXPERIMENT --corpus CORPUS

A line per finished run: its settings, summary, evaluations and speeds, without model, words and details of evaluations.
Words and their counts come from the corpus, prepared from the same text. `bnce experiment` takes such a run as done and
does not train it again. --rename replaces paths of one machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILES = (
    *("config.toml", "summary.json", "metrics.jsonl", "evaluation.json", "scoring.json"),
    *("run.json", "normaliser.json"),  # the second of a run of 0.2
)
OF_CORPUS = ("vocab.txt", "counts.npy")
SHARED = "choices.json"  # of the experiment, not of a run


def pack(experiment: Path, renamed: dict[str, str]) -> Iterable[dict[str, Any]]:
    """Give what is kept of the experiment and of each of its finished runs."""
    if (experiment / SHARED).is_file():
        yield {"run": ".", "files": {SHARED: (experiment / SHARED).read_text(encoding="utf-8")}}
    for path in sorted(experiment.rglob("summary.json")):
        if json.loads(path.read_text(encoding="utf-8"))["status"] != "finished":
            continue
        found = {
            name: path.with_name(name).read_text(encoding="utf-8") for name in FILES if path.with_name(name).is_file()
        }
        if "evaluation.json" in found:
            evaluation = json.loads(found["evaluation.json"])
            evaluation.pop("detail", None)  # per word class and position: most of the file
            found["evaluation.json"] = json.dumps(evaluation, indent=1) + "\n"
        for old, new in renamed.items():
            found = {name: text.replace(old, new) for name, text in found.items()}
        yield {"run": str(path.parent.relative_to(experiment)), "files": found}


def unpack(lines: Iterable[str], experiment: Path, corpus: Path) -> None:
    """Write the files of all runs; what is there stays."""
    for line in lines:
        record = json.loads(line)
        directory = experiment / record["run"]
        if not directory.resolve().is_relative_to(experiment.resolve()):
            raise SystemExit(f"'{record['run']}' is not in the experiment.")
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in record["files"].items():
            if name not in (*FILES, SHARED):
                raise SystemExit(f"'{name}' is no file of a run that is kept.")
            if not (directory / name).exists():
                (directory / name).write_text(text, encoding="utf-8")
        for name in OF_CORPUS if "config.toml" in record["files"] else ():
            if not (directory / name).exists():
                shutil.copyfile(corpus / name, directory / name)


def main() -> None:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path, help="pack: an experiment's directory; unpack: a file")
    parser.add_argument("target", type=Path, help="pack: the file; unpack: the directory")
    parser.add_argument("--corpus", type=Path, help="unpack: the corpus that the runs are of")
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW", help="replace a text in all files")
    given = parser.parse_args()
    if given.what == "unpack":
        if given.corpus is None:
            parser.error("give --corpus, the directory of the corpus that the runs are of")
        unpack(given.source.read_text(encoding="utf-8").splitlines(), given.target, given.corpus)
        return
    renamed = dict(one.split("=", 1) for one in given.rename)
    lines = [json.dumps(record, ensure_ascii=False) for record in pack(given.source, renamed)]
    given.target.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
