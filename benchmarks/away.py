"""Self-normalisation on text of another kind: PPLn beside PPLf, as trained, and after the constant was fitted.

    python benchmarks/away.py RUN [RUN …] --text docstrings=FILE --text books=FILE --work DIR --out away.jsonl
    python benchmarks/away.py --table away.jsonl

Every run is measured in context on the test split of its corpus and on the texts given: as it was trained, with its
constant fitted to validation text (`bnce calibrate`), with a head that predicts ln Z fitted to validation text, and
with a constant fitted to the first part of the text itself, measured on the rest of it. A line per measurement.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bnce

FITTED_PART = 0.2  # of a text: its first lines
HOME = "its own test"


def read_text(path: Path) -> list[str]:
    """Read the lines of a text."""
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else open(path, encoding="utf-8") as file:
        return list(file)


def measure(run: Path, texts: dict[str, Path], work: Path) -> Iterator[dict[str, Any]]:
    """Measure a run as it is, and its calibrated copies."""
    fitted = {"as trained": run}
    for kind in ("constant", "head"):
        fitted[f"{kind} fitted to validation text"] = work / f"{run.name}-{kind}"
        bnce.calibrate(run, kind=kind, out=work / f"{run.name}-{kind}")
    for how, path in fitted.items():
        for name, text in {HOME: None, **texts}.items():
            yield figures(run, how, name, path, text)
    for name, text in texts.items():
        lines = read_text(text)
        cut = int(FITTED_PART * len(lines))
        parts = []
        for part, some in (("first", lines[:cut]), ("rest", lines[cut:])):
            parts.append(work / f"{name}-{part}.txt")
            parts[-1].write_text("".join(some), encoding="utf-8")
        path = work / f"{run.name}-to-{name}"
        bnce.calibrate(run, text=parts[0], out=path)
        yield figures(run, "as trained, on the rest", name, run, parts[1])
        yield figures(run, "constant fitted to its first fifth, on the rest", name, path, parts[1])


def figures(run: Path, how: str, name: str, path: Path, text: Path | None) -> dict[str, Any]:
    """Evaluate one of them on a text."""
    found = bnce.evaluate(path, text=text, by_sentence=False).to_dict()
    kept = ("ppl_f", "ppl_n", "log_z_mean", "log_z_std", "num_tokens", "num_oov")
    return {"run": run.name, "how": how, "text": name, **{key: found[key] for key in kept}}


def table(lines: list[dict[str, Any]]) -> str:
    """Lay out by how much PPLn is above or below PPLf."""
    texts = list(dict.fromkeys(line["text"] for line in lines))
    rows = ["| run | constant | " + " | ".join(texts) + " |", "|---|---|" + "---:|" * len(texts)]
    for run, how in dict.fromkeys((line["run"], line["how"]) for line in lines):
        own = {line["text"]: line for line in lines if (line["run"], line["how"]) == (run, how)}
        cells = []
        for text in texts:
            line = own.get(text)
            if line is None or line["ppl_n"] is None:
                cells.append("" if line is None else f"{line['ppl_f']:.1f}, –")
                continue
            above = 100 * (line["ppl_n"] / line["ppl_f"] - 1)
            cells.append(f"{line['ppl_f']:.1f}, {line['ppl_n']:.1f} ({above:+.1f}%), {line['log_z_std']:.2f}")
        rows.append(f"| {run} | {how} | {' | '.join(cells)} |")
    return "\n".join([*rows, "", "Cells: PPLf, PPLn (how far from PPLf), deviation of ln Z(context)."])


def main() -> None:
    """Measure, and write a line at a time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, help="runs with a constant Z")
    parser.add_argument("--text", action="append", default=[], metavar="NAME=FILE", help="a text of another kind")
    parser.add_argument("--work", type=Path, help="directory for calibrated runs")
    parser.add_argument("--out", type=Path, default=Path("away.jsonl"), help="add a JSON line per measurement")
    parser.add_argument("--table", type=Path, metavar="JSONL", help="print the table of a file")
    given = parser.parse_args()
    if given.table is not None:
        print(table([json.loads(line) for line in given.table.read_text(encoding="utf-8").splitlines()]))
        return
    given.work.mkdir(parents=True, exist_ok=True)
    texts = {name: Path(path) for name, _, path in (text.partition("=") for text in given.text)}
    for run in given.runs:
        for line in measure(run, texts, given.work):
            print(json.dumps(line), flush=True)
            with open(given.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
