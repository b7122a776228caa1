"""Training, start-up and scoring on a CPU, beside what people use instead. Runs alternate; figures are medians.

    python benchmarks/cpu_peers.py --train train.txt --valid valid.txt --test test.txt --work work --out cpu-peers.md
    python benchmarks/cpu_peers.py … --faster-rnnlm path/to/rnnlm      # github.com/yandex/faster-rnnlm, built by you
    python benchmarks/cpu_peers.py … --pytorch-nce DIR                 # github.com/Stonesjtu/Pytorch-NCE
    python benchmarks/cpu_peers.py … --before OTHER/src                # also another version's source, for ratios

Sizes are 256–256, V = 40,000. bnce trains with the recipe `small` (B = 64, T = 20, so 63 noise words per position).
Rivals are in cpu_rivals.py; the ones that are not installed are left out, and the page says so. KenLM is its Python
package. Words are tokens, `</s>` among them. Every figure comes from a process of its own. CPU seconds count the work
of all threads, so that what else the machine does counts less; the load is told. What was measured before is kept in
the work directory (figures.jsonl) and not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cpu_rivals as rivals
import numpy as np
import torch

from bnce.corpus.vocabulary import SPECIALS, Vocabulary
from bnce.registry import BatchNce, Lstm, SgdConfig
from bnce.runs.directory import Run
from bnce.runs.model_file import build_model, save_weights
from bnce.settings import RunConfig, TrainingConfig
from bnce.text.normalise import Normaliser

HERE = Path(__file__).parents[1] / "src"
SIZES = {"embedding_size": rivals.SIZE, "hidden_size": rivals.SIZE}
SETTINGS = (*(f"model.{name}={size}" for name, size in SIZES.items()), "training.epochs=1")
VOCAB_SIZE, LARGE_VOCABULARY = 40_000, 800_000
NUM_TIMED_STEPS, NUM_FIRST_STEPS = 150, 20
NUM_RIVAL_SENTENCES = 12_000  # of which faster-rnnlm is timed
LOOP_SECONDS, TIMED_LOOP_SECONDS = 100.0, 12.0
LINE_WORDS = 6  # of a short line
# Name, model, loss, precision.
OURS = {
    "bnce LSTM, B-NCE": ("lstm", "bnce", "float32"),
    "bnce LSTM, B-NCE, bf16": ("lstm", "bnce", "bf16"),
    "bnce LSTM, chunk B-NCE": ("lstm", "chunk-bnce", "float32"),
    "bnce RNN, B-NCE": ("rnn", "bnce", "float32"),
    "bnce RNN, B-NCE, bf16": ("rnn", "bnce", "bf16"),
}
CPP = {
    "faster-rnnlm, GRU, NCE 50": ("-hidden-type", "gru", "-nce", 50),
    "faster-rnnlm, sigmoid, NCE 15": ("-hidden-type", "sigmoid", "-nce", 15),
    "faster-rnnlm, sigmoid, NCE 50": ("-hidden-type", "sigmoid", "-nce", 50),
    "faster-rnnlm, sigmoid, hierarchical softmax": ("-hidden-type", "sigmoid"),
}
KENLM = "KenLM 5-gram"
NEW_SETTINGS = ("budget",)  # of this version, which do not change how a run scores

# A process starts with the peak of the one that it is forked from: a small one stands between.
LAUNCH = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss, done.stdout]))
"""

Speed = tuple[float, float]  # tokens per second, tokens per CPU second


class Book:
    """What was measured, one line each, kept as it comes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        if path.exists():
            self.lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def get(self, what: str, name: str, measure: Callable[[], Any], number: int = 0) -> Any:
        """Give what was measured, or measure it now."""
        for line in self.lines:
            if (line["what"], line["name"], line["round"]) == (what, name, number):
                return line["found"]
        found = measure()
        self.lines.append(
            {"what": what, "name": name, "round": number, "found": found, "load": round(os.getloadavg()[0], 1)}
        )
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(self.lines[-1]) + "\n")
        print(json.dumps(self.lines[-1]), file=sys.stderr, flush=True)
        return found


def run(command: Sequence[object], source: Path = HERE, **variables: str) -> tuple[float, int, str]:
    """Run a program, also with these variables; give its CPU seconds, its peak memory in KB, and what it printed."""
    launched = [sys.executable, "-I", "-S", "-c", LAUNCH, *map(str, command)]
    environment = {**os.environ, "PYTHONPATH": str(source), **variables}
    told = subprocess.run(launched, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    status, seconds, memory, printed = json.loads(told)
    if status:
        raise SystemExit(f"{' '.join(map(str, command))} ended with status {status}")
    return seconds, memory, printed


def use_of(command: Sequence[object]) -> list[float]:
    """Give the CPU seconds and the peak memory of a program."""
    seconds, memory, _ = run(command)
    return [seconds, memory]


def bnce(*arguments: object) -> list[object]:
    """Give the command of a Python process that is `bnce`."""
    return [sys.executable, "-m", "bnce", *arguments]


def time_steps(corpus: Path, num_threads: int, model: str, loss: str, precision: str) -> Speed:
    """Time training steps on the text, in this process."""
    from bnce.corpus.store import Corpus
    from bnce.corpus.streams import open_streams, training_streams
    from bnce.machine.processes import World
    from bnce.machine.threads import use_threads
    from bnce.optimisers.optimiser import Schedule
    from bnce.recipes import load_recipe
    from bnce.training.step import TrainingStep

    device, opened = torch.device("cpu"), Corpus.open(corpus)
    torch.set_num_threads(num_threads)
    use_threads(num_threads)
    settings = [*SETTINGS, f"training.precision={precision}"]
    config = load_recipe("small", model=model, loss=loss, corpus=str(corpus), settings=settings)
    torch.manual_seed(1)
    text = training_streams(config.training, opened)
    with tempfile.TemporaryDirectory() as place:
        network = build_model(Run.create(Path(place) / "run", config, opened))
    step = TrainingStep(network, config, World(), device)
    streams = open_streams(text.ids, config.training.batch_size, config.training.num_steps, 0, device)
    schedule = Schedule(config.optimiser, len(streams))
    num_tokens, begin, used = 0, 0.0, 0.0
    for index in range(NUM_FIRST_STEPS + NUM_TIMED_STEPS):
        if index == NUM_FIRST_STEPS:
            num_tokens, begin, used = 0, time.monotonic(), time.process_time()
        chunk = streams.chunk(index)
        step(chunk, schedule.factor(index), index)  # at full rates from the start it would diverge
        num_tokens += chunk.target_TB.numel()
    return num_tokens / (time.monotonic() - begin), num_tokens / (time.process_time() - used)


def training_ways(given: argparse.Namespace) -> dict[str, Callable[[], Speed]]:
    """List what can be timed here, by name."""
    work, threads = given.work, given.threads

    def ours(source: Path, *kind: str) -> Speed:
        told = [sys.executable, __file__, "--work", work, "--threads", threads, "--once", *kind]
        speed: list[float] = json.loads(run(told, source)[2])
        return speed[0], speed[1]

    def loop(kind: str) -> Speed:
        found = train_loop(given, kind, TIMED_LOOP_SECONDS)
        return found["tokens_per_second"], found["tokens_per_cpu_second"]

    def cpp(options: Sequence[object]) -> Speed:
        files = (work / "part.words", work / "valid.words", work / "timed")
        return rivals.train_rnnlm(given.faster_rnnlm, options, *files, threads)

    ways: dict[str, Callable[[], Speed]] = {}
    for name, kind in OURS.items():
        ways[name] = partial(ours, HERE, *kind)
        if given.before is not None and kind[1:] == ("bnce", "float32"):
            ways[f"{name}, before"] = partial(ours, given.before, *kind)
    ways |= {loop_name(kind): partial(loop, kind) for kind in loops(given)}
    if given.faster_rnnlm is not None:
        ways |= {name: partial(cpp, options) for name, options in CPP.items()}
    return ways


def loops(given: argparse.Namespace) -> list[str]:
    """List the PyTorch loops that can be run."""
    return [kind for kind in rivals.LOOPS if kind != "nce" or given.pytorch_nce is not None]


def loop_name(kind: str) -> str:
    """Name a PyTorch loop."""
    return f"PyTorch LSTM, Adam, {rivals.LOOPS[kind]}"


def train_loop(given: argparse.Namespace, kind: str, seconds: float) -> dict[str, float]:
    """Train a PyTorch loop in a process of its own."""
    options = ["--seconds", seconds, "--threads", given.threads]
    options += ["--pytorch-nce", given.pytorch_nce] if kind == "nce" else []
    found: dict[str, float] = json.loads(
        run([sys.executable, rivals.__file__, given.work / "corpus", kind, *options])[2]
    )
    return found


def train_ours(given: argparse.Namespace, name: str) -> list[float]:
    """Train one epoch; give test PPLf in context and sentence by sentence, on the first tokens."""
    model, loss, precision = OURS[name]
    out = run_of(given, name)
    changed = [*SETTINGS, f"training.precision={precision}", f"training.max_test_tokens={rivals.NUM_TEST_TOKENS}"]
    sets = [part for setting in changed for part in ("--set", setting)]
    if not (out / "evaluation.json").is_file():
        names = ["--model", model, "--loss", loss, "--threads", given.threads]
        run(bnce("train", "small", "--corpus", given.work / "corpus", *names, *sets, "--out", out))
    record = json.loads(run(bnce("evaluate", out, "--max-words", rivals.NUM_TEST_TOKENS, "--json"))[2])
    return [record["ppl_f"], record["by_sentence"]["ppl_f"]]


def run_of(given: argparse.Namespace, name: str) -> Path:
    """Give the place of a run."""
    path: Path = given.work / "-".join(OURS[name])
    return path


def train_cpp(given: argparse.Namespace, name: str) -> float:
    """Train faster-rnnlm for one epoch; give its test perplexity, sentence by sentence."""
    model = given.work / f"cpp-{list(CPP).index(name)}"
    files = (given.work / "train.words", given.work / "valid.words", model)
    rivals.train_rnnlm(given.faster_rnnlm, CPP[name], *files, given.threads)
    return rivals.rnnlm_perplexity(given.faster_rnnlm, model, given.work / "test.words")


def training_table(given: argparse.Namespace, book: Book) -> list[str]:
    """Time all ways in turns, train each, and lay out speeds, ratios and perplexities."""
    ways = training_ways(given)
    found: dict[str, list[Speed]] = {name: [] for name in ways}
    for number in range(given.rounds):
        for name, way in ways.items():
            found[name].append(book.get(f"training, {given.threads} threads", name, way, number))
    rows = [
        f"| training, {given.threads} threads | tokens/s | ratio | tokens per CPU second | ratio | "
        "test PPLf in context | sentence by sentence |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, speeds in found.items():
        cells = [name]
        for place in (0, 1):
            values = [speed[place] for speed in speeds]
            first = [speed[place] for speed in found[next(iter(OURS))]]
            times = [value / other for value, other in zip(values, first, strict=True)]
            span = f"{statistics.median(values) / 1e3:.1f}K ({min(values) / 1e3:.1f}–{max(values) / 1e3:.1f}K)"
            cells += [span, f"{statistics.median(times):.2f}"]
        cells += perplexities(given, book, name)
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def perplexities(given: argparse.Namespace, book: Book, name: str) -> list[str]:
    """Train one way for its perplexities, if that was asked for."""
    if not given.perplexities or name.endswith("before"):
        return ["", ""]
    if name in OURS:
        return [f"{value:.1f}" for value in book.get("perplexity", name, lambda: train_ours(given, name))]
    if name in CPP:
        return ["", f"{book.get('perplexity', name, lambda: train_cpp(given, name)):.1f}"]
    kind = next(kind for kind in rivals.LOOPS if loop_name(kind) == name)
    value = book.get("perplexity", name, lambda: train_loop(given, kind, LOOP_SECONDS)["perplexity"])
    return [f"{value:.1f} after {LOOP_SECONDS:.0f} s", ""]


def make_large(place: Path) -> None:
    """Write a run over 800,000 words with random weights: start-up does not depend on what it has learned."""
    generator = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    sizes = generator.integers(3, 14, int(LARGE_VOCABULARY * 1.3))
    drawn = ("".join(letters[(generator.random(size) ** 1.7 * len(letters)).astype(int)]) for size in sizes)
    words = list(dict.fromkeys([*SPECIALS, "the", "cat", "sat", "on", "mat", *drawn]))[:LARGE_VOCABULARY]
    config = RunConfig(
        recipe="random",
        corpus="",
        model=Lstm(**SIZES),
        loss=BatchNce(),
        optimiser=SgdConfig(),
        training=TrainingConfig(),
    )
    path = place / "large-run"
    path.mkdir(parents=True)
    normaliser = Normaliser(True, "words", "split")
    opened = Run.lay_out(path, config, Vocabulary(words), normaliser, np.ones(len(words), int), texts={})
    torch.manual_seed(1)
    save_weights(opened, build_model(opened).state_dict(), 1)


def startup_table(given: argparse.Namespace, book: Book) -> list[str]:
    """Time one line of text with a run over 800,000 words, with the rivals, and the help."""
    work = given.work
    if not (work / "large").is_dir():
        make_large(work)
    line = work / "line.txt"
    line.write_text("the cat sat on the mat\n", encoding="utf-8")
    ways = {
        "`bnce score RUN`, V = 800,000": bnce("score", work / "large-run", line, "--json"),
        "`bnce --help`": bnce("--help"),
    }
    if given.faster_rnnlm is not None:
        sigmoid = "faster-rnnlm, sigmoid, NCE 50"
        model = work / f"cpp-{list(CPP).index(sigmoid)}"
        if model.exists():
            ways[f"{sigmoid}, V = 40,000"] = [given.faster_rnnlm, "-rnnlm", model, "-test", line]
    rows = ["| one line | CPU seconds | peak memory, MB |", "|---|---:|---:|"]
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    for number in range(given.rounds):
        for name, command in ways.items():
            found[name].append(book.get("one line", name, partial(use_of, command), number))
    for name, figures in found.items():
        memory = statistics.median(one[1] for one in figures) / 1e3
        rows.append(f"| {name} | {median([one[0] for one in figures])} | {memory:.0f} |")
    return rows


def without_new_settings(path: Path) -> Path:
    """Copy a run without the settings that an earlier version does not know and refuses."""
    copy = Path(f"{path}-before")
    if not copy.exists():
        shutil.copytree(path, copy)
        config = copy / "config.toml"
        lines = config.read_text(encoding="utf-8").splitlines(keepends=True)
        config.write_text("".join(line for line in lines if not line.startswith(NEW_SETTINGS)), encoding="utf-8")
    return copy


def scoring_table(given: argparse.Namespace, book: Book) -> list[str]:
    """Time short lines on one thread, without what a single line takes; words are tokens, `</s>` among them."""
    line, text = given.work / "line.txt", given.work / "short.txt"
    rows = ["| short lines, one thread | tokens per CPU second | ratio | perplexity |", "|---|---:|---:|---:|"]

    def measure(path: Path, source: Path) -> list[float]:
        seconds, _, printed = run(bnce("score", path, text, "--json"), source, OMP_NUM_THREADS="1")
        idle, _, _ = run(bnce("score", path, line, "--json"), source, OMP_NUM_THREADS="1")
        record = json.loads(printed)
        return [(record["num_words"] + record["num_sentences"]) / (seconds - idle), record["ppl"]]

    for name in ("bnce LSTM, B-NCE", "bnce RNN, B-NCE"):
        path = run_of(given, name)
        ways = {name: (path, HERE)}
        if given.before is not None:
            ways = {f"{name}, before": (without_new_settings(path), given.before), **ways}
        found: dict[str, list[list[float]]] = {way: [] for way in ways}
        for number in range(given.rounds):
            for way, arguments in ways.items():
                found[way].append(book.get("short lines", way, partial(measure, *arguments), number))
        first = next(iter(found.values()))
        for way, values in found.items():
            speeds = [value[0] for value in values]
            times = [one / other[0] for one, other in zip(speeds, first, strict=True)]
            told = f"{statistics.median(speeds) / 1e3:.0f}K ({min(speeds) / 1e3:.0f}–{max(speeds) / 1e3:.0f}K)"
            rows.append(f"| {way} | {told} | {median(times)} | {values[0][1]:.4f} |")
    return rows


def kenlm_line(given: argparse.Namespace, book: Book) -> list[str]:
    """Time KenLM's 5-gram of the same words on the same lines, if it is installed."""
    try:
        import kenlm  # noqa: F401
    except ModuleNotFoundError:
        return ["KenLM is not installed and was left out: `pip install kenlm`."]
    work, arpa = given.work, given.work / "five.arpa"
    if not arpa.is_file():
        run(bnce("ngram", given.train, "--order", 5, "--vocab", work / "corpus" / "vocab.txt", "--out", arpa))

    def measure() -> list[float]:
        seconds, memory, printed = run(bnce("score", arpa, work / "short.txt", "--json"))
        return [seconds, memory, json.loads(printed)["ppl"]]

    figures = [book.get("short lines", KENLM, measure, number) for number in range(given.rounds)]
    seconds, memory = median([one[0] for one in figures]), figures[0][1] / 1e3
    return [
        f"`bnce score` with a {KENLM} on all short lines, including the loading of the ARPA file, takes {seconds} CPU "
        f"seconds and {memory:.0f} MB. Its perplexity is {figures[0][2]:.1f}."
    ]


def median(values: Sequence[float]) -> str:
    """Write a median with the least and the most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def main() -> None:
    """Measure, and write a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for split in ("train", "valid", "test"):
        parser.add_argument(f"--{split}", type=Path, help=f"text of the {split} split, a line per paragraph")
    parser.add_argument("--work", type=Path, required=True, help="directory for corpus, runs and figures")
    parser.add_argument("--faster-rnnlm", type=Path, help="its program rnnlm")
    parser.add_argument("--pytorch-nce", type=Path, help="its directory")
    parser.add_argument("--before", type=Path, help="the src directory of another version")
    parser.add_argument("--threads", type=int, default=2, help="threads for training (2)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--perplexities", action="store_true", help="also train each for one epoch")
    parser.add_argument("--num-lines", type=int, default=30_000, help="short lines to score")
    parser.add_argument("--only", default=",".join(TABLES), help=f"tables, divided by commas: {', '.join(TABLES)}")
    parser.add_argument("--out", type=Path, help="file for the page")
    parser.add_argument("--once", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    work: Path = given.work
    if given.once:
        print(json.dumps(time_steps(work / "corpus", given.threads, *given.once)))
        return
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "corpus").is_dir():
        splits = ("--valid", given.valid, "--test", given.test, "--vocab-size", VOCAB_SIZE)
        run(bnce("prepare", given.train, *splits, "--out", work / "corpus"))
    rivals.write_words(work / "corpus", work, NUM_RIVAL_SENTENCES)
    words = given.test.read_text(encoding="utf-8").split()[: given.num_lines * LINE_WORDS]
    lines = (" ".join(words[begin : begin + LINE_WORDS]) for begin in range(0, len(words), LINE_WORDS))
    (work / "short.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    book = Book(work / "figures.jsonl")
    parts = [
        ["# Training and scoring on a CPU, compared with other programs"],
        [f"    python benchmarks/cpu_peers.py {' '.join(told())}"],
        *(TABLES[name](given, book) for name in given.only.split(",")),
        absent(given),
        [conditions(given, book)],
    ]
    page = "\n\n".join("\n".join(part) for part in parts if part) + "\n"
    print(page)
    if given.out is not None:
        given.out.write_text(page, encoding="utf-8")


TABLES = {"training": training_table, "startup": startup_table, "scoring": scoring_table, "kenlm": kenlm_line}


def absent(given: argparse.Namespace) -> list[str]:
    """Say which rivals were left out."""
    missing = {"faster-rnnlm": given.faster_rnnlm, "Pytorch-NCE": given.pytorch_nce}
    return [f"{name} was not given and is left out." for name, path in missing.items() if path is None]


def conditions(given: argparse.Namespace, book: Book) -> str:
    """Say what the figures were taken on."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, PyTorch {torch.__version__}"
    loads = sorted(line["load"] for line in book.lines)
    return (
        f"{machine}, {given.rounds} rounds in which the programs take turns. Figures are medians (lowest–highest); a "
        "ratio is the median of the ratios within the rounds. "
        f"Load averages after the measurements: {loads[0]} to {loads[-1]}, median {statistics.median(loads)}."
    )


def told() -> list[str]:
    """Give the arguments, paths by their last names."""
    return [Path(one).name if "/" in one else one for one in sys.argv[1:]]


if __name__ == "__main__":
    main()
