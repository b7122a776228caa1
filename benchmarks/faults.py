"""What the program does with damage: 10,000 seeded cases of it, 100 killed commands and 30 stops.

    python benchmarks/faults.py
    python benchmarks/faults.py --cases 500 --seed 2 --only run
    python benchmarks/faults.py --kills 30 --only 'kill train'
    python benchmarks/faults.py --stops 60 --only 'signal prepare,worker prepare' --text large.txt
    python benchmarks/faults.py --case run-1-123 --keep

Kinds of cases: damaged files of a corpus and of runs, damaged inputs (text, packed files, records, n-best lists, ARPA
files, mixtures, recipes), options with values that nobody meant, requests to the server, SIGKILLs of training,
experiments and prepare, and stops: SIGINT, SIGTERM and killed workers of prepare and filter. A case must end with the
result of the undamaged input, or with status 2 (4xx of the server) and one sentence. It must not end in a traceback,
take damage that a checksum or a length shows, hang, or leave litter. A killed run that is continued must end equal to
the unbroken one. A stop must end the command within five seconds.

Every case is a process of its own, forked from one that has everything imported; every 200th is started by the system,
as a person's is. Status 1 if anything failed, with the command that does it again.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import json
import os
import platform
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import chain, groupby, islice
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).parents[1]
# One thread per case: as many cases run at once as there are cores.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
sys.path.insert(0, str(ROOT / "src"))

from fault_kinds import files, kills, options, requests, stops  # noqa: E402
from fault_kinds.bed import Bed, make_bed, make_devices  # noqa: E402
from fault_kinds.process import Case, run_cases  # noqa: E402
from fault_kinds.verdict import BAD, GOOD, Outcome, Verdict  # noqa: E402
from provenance import commit  # noqa: E402

SHARES = {"corpus": 0.2, "run": 0.25, "input": 0.2, "options": 0.2, "server": 0.15}
KILLS = {"kill train": 0.5, "kill experiment": 0.25, "kill prepare": 0.25}
STOPS = {"signal prepare": 0.4, "signal filter": 0.3, "worker prepare": 0.3}
KINDS = [*SHARES, *KILLS, *STOPS]
NUM_NAMED = 8
OPTIONS = "options of "
REAL_EVERY = 200


def import_everything() -> None:
    """Import what commands import when they run, so that a forked case has it."""
    import importlib
    import pkgutil
    import warnings

    import torch

    import bnce

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(bnce.__path__, "bnce."):
            # Transformers takes seconds to import, and only an export to it does.
            if "kernels" not in module.name and not module.name.endswith(("__main__", "modeling_bnce")):
                importlib.import_module(module.name)
        for name in ("rapidfuzz", "kenlm", "pyarrow.parquet", "pyarrow.json", "torch.utils.tensorboard", "uvicorn"):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)


def set_up(path: Path, names: list[str], jobs: int, text: Path | None) -> Bed:
    """Make what the cases of these names are done to, and see what their commands say of it while it is whole."""
    bed = Bed(path / "bed")
    bed.path.mkdir()
    expected = path / "expected"
    expected.mkdir()

    def complain(case: Case, verdict: Verdict) -> None:
        if verdict.failed:
            raise SystemExit(f"The cases could not be set up: {verdict.detail or verdict.what}")

    def make(_: object) -> Verdict:
        make_bed(bed.path)
        return Verdict("done")

    run_cases(iter([Case("bed", 0, 0, make, max_seconds=300)]), path, 1, complain, keep=False)
    bed.devices = make_devices(path / "devices")
    if any(name.rsplit("-", 2)[0] in stops.KINDS for name in names):
        stops.write_texts(bed, text)
    work: dict[str, Callable[[], Any]] = {}
    for case in names:
        kind = case.rsplit("-", 2)[0]
        if kind in files.SCENES:
            name = files.choose_scene(kind, Random(case))
            work[name] = partial(expect_scene, files.SCENES[kind][name], bed)
        elif kind in kills.KINDS:
            name = kills.choose(kind, Random(case))
            work[name] = partial(kills.expect, name, bed)
        elif kind in stops.KINDS:
            work[kind] = partial(stops.expect, kind, bed)
        elif kind == "options" and (name := options.choose_command(Random(case))) in options.BASES:
            work[f"{OPTIONS}{name}"] = partial(options.check_base, bed, name)  # some scenes have names of commands, too

    def keep(name: str, expect: Callable[[], Any], _: object) -> Verdict:
        (expected / f"{name}.json").write_text(json.dumps(expect()), encoding="utf-8")
        return Verdict("done")

    cases = (Case("expected", 0, number, partial(keep, *item)) for number, item in enumerate(work.items()))
    run_cases(cases, path, jobs, complain, keep=False)
    for name in work:
        if name.startswith(OPTIONS):
            continue
        record = json.loads((expected / f"{name}.json").read_text(encoding="utf-8"))
        if "left" in record or name in stops.KINDS:
            bed.unbroken[name] = record
        else:
            bed.expected[name] = Outcome(**record)
    return bed


def expect_scene(scene: files.Scene, bed: Bed) -> dict[str, Any]:
    """See what a command says of undamaged files."""
    return asdict(scene.expect(bed))


def make_cases(bed: Bed, kinds: dict[str, int], seed: int) -> Iterator[Case]:
    """List the cases, kinds in turn."""
    runs: dict[str, Callable[[Random], Verdict]] = {
        **{kind: partial(files.run, bed, kind) for kind in files.SCENES},
        "options": partial(options.run, bed),
        "server": partial(requests.run, bed),
        **{kind: partial(kills.run, bed, kind) for kind in kills.KINDS},
        **{kind: partial(stops.run, bed, kind) for kind in stops.KINDS},
    }
    for kind, number in kinds.items():
        for place in range(number):
            is_real = kind in SHARES and kind != "server" and place % REAL_EVERY == REAL_EVERY - 1
            seconds = 20.0 if kind in SHARES else 120.0
            yield Case(kind, seed, place, runs[kind], is_real, seconds)


def find_case(bed: Bed, name: str) -> Iterator[Case]:
    """Find a case by its name."""
    kind, seed, number = name.rsplit("-", 2)
    return islice(make_cases(bed, {kind: int(number) + 1}, int(seed)), int(number), None)


def plan(options: argparse.Namespace) -> dict[str, int]:
    """Say how many cases of each kind there are."""
    if options.case:
        return Counter(name.rsplit("-", 2)[0] for name in options.case.split(","))
    chosen = options.only.split(",") if options.only else KINDS
    for kind in chosen:
        if kind not in KINDS:
            raise SystemExit(f"Unknown kind '{kind}': choose among {', '.join(KINDS)}.")
    total = sum(share for kind, share in SHARES.items() if kind in chosen)
    kinds = {kind: round(options.cases * share / total) for kind, share in SHARES.items() if kind in chosen}
    total = sum(share for kind, share in KILLS.items() if kind in chosen)
    kinds |= {kind: ceil(options.kills * share / total) for kind, share in KILLS.items() if kind in chosen}
    total = sum(share for kind, share in STOPS.items() if kind in chosen)
    return kinds | {kind: round(options.stops * share / total) for kind, share in STOPS.items() if kind in chosen}


class Tally:
    """Counts verdicts and keeps what failed."""

    def __init__(self, num_cases: int) -> None:
        self.num_cases = num_cases
        self.counts: dict[str, Counter[str]] = {}
        self.kills: dict[str, Counter[str]] = {}  # by kind and place
        self.failures: list[tuple[Case, Verdict]] = []
        self.num_real = 0
        self.stops: list[str] = []

    def add(self, case: Case, verdict: Verdict) -> None:
        """Take in one case."""
        self.counts.setdefault(case.kind, Counter())[verdict.word] += 1
        self.num_real += case.real
        if case.kind in kills.KINDS and verdict.word == "equal":
            self.kills.setdefault(case.kind, Counter()).update(filter(None, verdict.detail.split(", ")))
        if case.kind in stops.KINDS:
            self.num_real += 1
            self.stops.append(verdict.what)
        if verdict.failed:
            self.failures.append((case, verdict))
            print(f"\r{case.name}: {verdict.word}: {verdict.what[:200]}", file=sys.stderr)
        number = sum(counts.total() for counts in self.counts.values())
        if sys.stderr.isatty() or number % 500 == 0:
            print(f"\r{number:,} of {self.num_cases:,} cases, {len(self.failures)} failures ", end="", file=sys.stderr)
            sys.stderr.flush()

    def table(self) -> str:
        """Write the counts: a row a kind, a column a verdict that occurred, failures always."""
        words = [word for word in GOOD if any(counts[word] for counts in self.counts.values())]
        columns = [*words, *(word for word in BAD if word != "broken" or self._total(word))]
        rows = [f"| kind | cases | {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) + 1)]
        for kind, counts in self.counts.items():
            name = f"{kind} ({self.kills.get(kind, Counter()).total()} kills)" if kind in kills.KINDS else kind
            rows.append(f"| {name} | {counts.total():,} | {' | '.join(f'{counts[word]:,}' for word in columns)} |")
        totals = " | ".join(f"{self._total(word):,}" for word in columns)
        rows.append(f"| all | {sum(counts.total() for counts in self.counts.values()):,} | {totals} |")
        legend = [f"- {word}: {text}" for word, text in {**GOOD, **BAD}.items() if word in columns]
        of_training = self.kills.get("kill train", Counter()).most_common()
        places = ", ".join(f"{number} {place}" for place, number in of_training)
        return "\n".join([*rows, "", *legend, *([f"- kills of training: {places}"] if places else [])])

    def stops_table(self) -> str:
        """Write what happened to every command that was stopped, and how it ended; empty without any."""
        return "\n".join(["", stops.COLUMNS, *sorted(self.stops), ""]) if self.stops else ""

    def _total(self, word: str) -> int:
        return sum(counts[word] for counts in self.counts.values())


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="How many cases beside the kills.")
    parser.add_argument("--kills", type=int, default=100, help="How many commands get SIGKILLs, up to three each.")
    parser.add_argument("--stops", type=int, default=30, help="How many signals and killed workers.")
    parser.add_argument("--text", type=Path, help="Text of the commands that are stopped (default: 24 MB, made up).")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help=f"Kinds, comma-separated: {', '.join(KINDS)}.")
    parser.add_argument("--case", help="Single cases, as failures name them, comma-separated.")
    parser.add_argument("--keep", action="store_true", help="Keep the directories of the cases, and say where.")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="Cases at a time.")
    parser.add_argument("--out", type=Path, help="Write the table here, with the machine and the commit.")
    chosen = parser.parse_args()
    begin = time.monotonic()
    # As Ctrl-C does: what was begun is cleared up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    import_everything()
    kinds = plan(chosen)
    path = Path(tempfile.mkdtemp(prefix="bnce-faults-"))
    tally = Tally(sum(kinds.values()))
    names = [f"{kind}-{chosen.seed}-{number}" for kind, num_cases in kinds.items() for number in range(num_cases)]
    server = None
    try:
        bed = set_up(path, chosen.case.split(",") if chosen.case else names, chosen.jobs, chosen.text)
        if "server" in kinds:
            (path / "server").mkdir()
            server = requests.Server(bed, path / "server")
        if chosen.case:
            cases = chain.from_iterable(find_case(bed, name) for name in chosen.case.split(","))
        else:
            cases = make_cases(bed, kinds, chosen.seed)
        run_cases(cases, path, chosen.jobs, tally.add, chosen.keep)
    finally:
        if server is not None and (verdict := server.stop()).failed:
            tally.add(Case("server", chosen.seed, -1, lambda _: verdict), verdict)
        if not chosen.keep:
            shutil.rmtree(path, ignore_errors=True)
    report(chosen, tally, time.monotonic() - begin)
    if chosen.keep:
        print(f"The directories of the cases are in {path}.")
    sys.stdout.flush()
    # At once: what libraries say when they are taken down is not for the table.
    os._exit(1 if tally.failures else 0)


def report(chosen: argparse.Namespace, tally: Tally, seconds: float) -> None:
    """Print what failed, with the commands that do it again, and the table last; and keep it where that is wished."""
    print(file=sys.stderr)
    script = Path(__file__).relative_to(ROOT)
    # Alike ones together: the first of them is shown.
    alike = groupby(sorted(tally.failures, key=lambda failure: signature(failure[1])), lambda one: signature(one[1]))
    for _, group in alike:
        (case, verdict), *others = group
        print(f"{verdict.word}: {verdict.what}\n    {verdict.detail}")
        print(f"    again: python {script} --case '{case.name}' --keep")
        names = ", ".join(other.name for other, _ in others[:NUM_NAMED])
        print(f"    and {len(others)} like it: {names}\n" if others else "")
    told = f"{tally.num_real} cases started a new Python process. The others ran in forked processes."
    table = f"{tally.table()}\n{tally.stops_table()}"
    print(f"{table}\n{told} {seconds:.0f} s.")
    if chosen.out is not None:
        command = shlex.join(["python", str(script), *sys.argv[1:]])
        chosen.out.write_text(
            f"# Faults\n\n    {command}\n\nMachine: {machine()}. Python {platform.python_version()}, "
            f"commit {commit()}. The run took {seconds / 60:.1f} minutes.\n\n{table}\n{told}\n",
            encoding="utf-8",
        )


def signature(verdict: Verdict) -> str:
    """Say what failures that have one cause share: the last line, without what differs."""
    where = re.findall(r'File ".*/(\S+)", line (\d+)', verdict.detail)[-1:]
    last = re.sub(r"'[^']*'|[\d.]+", "…", (verdict.detail.strip().splitlines() or [""])[-1])
    return f"{verdict.word} {where} {last[:100]}"


def machine() -> str:
    """Name the processor and the number of cores."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return f"{found[1] if found else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


if __name__ == "__main__":
    main()
