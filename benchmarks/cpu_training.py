"""Training speed on a CPU, beside faster-rnnlm and an earlier version. Runs alternate; figures are medians.

    python benchmarks/cpu_training.py --train train.txt --valid valid.txt --test test.txt --work work
    python benchmarks/cpu_training.py … --faster-rnnlm path/to/rnnlm     # github.com/yandex/faster-rnnlm, built by you
    python benchmarks/cpu_training.py … --before OTHER/src               # also another version's source, for ratios
    python benchmarks/cpu_training.py … --perplexities                   # also one epoch each, and test perplexities

Sizes are 256–256, V = 40,000; bnce trains with the recipe `small` (B = 64, T = 20, so 63 noise words for each position)
and faster-rnnlm with as many noise words as given. Words are tokens, `</s>` among them. Every time is taken by a
process of its own. CPU seconds count the work of all threads, so that what else the machine does counts less.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

HERE = Path(__file__).parents[1] / "src"
SIZE, VOCAB_SIZE, NUM_TIMED_STEPS, NUM_FIRST_STEPS = 256, 40_000, 150, 20
NUM_RIVAL_SENTENCES = 12_000  # of which it is timed
NUM_TEST_TOKENS = 20_000
SETTINGS = (f"model.embedding_size={SIZE}", f"model.hidden_size={SIZE}", "training.epochs=1")
Speed = tuple[float, float]  # tokens per second, tokens per CPU second


def main() -> None:
    """Measure, print, and write a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for split in ("train", "valid", "test"):
        parser.add_argument(f"--{split}", type=Path, help=f"text of the {split} split")
    parser.add_argument("--work", type=Path, required=True, help="a directory for the corpus and the runs")
    parser.add_argument("--faster-rnnlm", type=Path, help="its program rnnlm")
    parser.add_argument("--noise", type=int, nargs="*", default=[15, 50], help="noise words of faster-rnnlm")
    parser.add_argument("--before", type=Path, help="the source of another version")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="0: no speeds")
    parser.add_argument("--perplexities", action="store_true")
    parser.add_argument("--out", type=Path, help="a file for the page")
    parser.add_argument("--once", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(time_steps(options.work / "corpus", options.threads, *options.once)))
        return
    prepare(options)
    lines = measure_speeds(options) if options.rounds else []
    if options.perplexities:
        lines += ["", *measure_perplexities(options)]
    print("\n".join(lines))
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def bnce(arguments: Sequence[object], source: Path = HERE) -> str:
    """Run a command of bnce from a source."""
    command = [sys.executable, "-m", "bnce", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def prepare(options: argparse.Namespace) -> None:
    """Prepare the corpus, and write its words as faster-rnnlm reads them: a sentence per line."""
    corpus = options.work / "corpus"
    if not corpus.is_dir():
        splits = ("--valid", options.valid, "--test", options.test)
        bnce(["prepare", options.train, *splits, "--vocab-size", VOCAB_SIZE, "--out", corpus])
    words = (corpus / "vocab.txt").read_text(encoding="utf-8").splitlines()
    parts = {"train": None, "valid": 100, "test": NUM_TEST_TOKENS}
    for split, limit in parts.items():
        ids = np.load(corpus / f"{split}.npy")[:limit].tolist()
        text = " ".join("\n" if word == 0 else words[word] for word in ids)
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        (options.work / f"{split}.words").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if split == "train":
            (options.work / "part.words").write_text("\n".join(lines[:NUM_RIVAL_SENTENCES]) + "\n", encoding="utf-8")


def time_steps(corpus: Path, num_threads: int, model: str, precision: str) -> Speed:
    """Time training steps on the text, in this process."""
    import torch

    from bnce.corpus.store import Corpus
    from bnce.corpus.streams import open_streams, training_streams
    from bnce.machine.threads import use_threads
    from bnce.machine.world import World
    from bnce.optimisers.schedule import Schedule
    from bnce.recipes.recipe import load_recipe
    from bnce.runs.model_file import build_model
    from bnce.training.network import Network
    from bnce.training.plan import create_run

    device, opened = torch.device("cpu"), Corpus.open(corpus)
    use_threads(num_threads, 1)
    settings = [*SETTINGS, f"training.precision={precision}"]
    config = load_recipe("small", model=model, loss="bnce", corpus=str(corpus), settings=settings)
    torch.manual_seed(1)
    text = training_streams(config.training, opened)
    with tempfile.TemporaryDirectory() as place:
        network_model = build_model(create_run(Path(place) / "run", config, opened, device), text=text.ids)
    network = Network(network_model, config, device, World())
    streams = open_streams(text.ids, config.training.batch_size, config.training.num_steps, 0, device, network.columns)
    schedule = Schedule(config.optimiser, len(streams))
    num_tokens, begin, used = 0, 0.0, 0.0
    for index in range(NUM_FIRST_STEPS + NUM_TIMED_STEPS):
        if index == NUM_FIRST_STEPS:
            num_tokens, begin, used = 0, time.monotonic(), time.process_time()
        chunk = streams.chunk(index)
        network.step(chunk, schedule.factor(index))  # at full rates from the start it would diverge
        num_tokens += chunk.target_TB.numel()
    return num_tokens / (time.monotonic() - begin), num_tokens / (time.process_time() - used)


def time_bnce(options: argparse.Namespace, source: Path, model: str, precision: str) -> Speed:
    """Time training steps in a process of their own, with this or another version's source."""
    place = ["--work", str(options.work), "--threads", str(options.threads)]
    command = [sys.executable, __file__, *place, "--once", model, precision]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    speed: list[float] = json.loads(done.stdout)
    return speed[0], speed[1]


def rival(options: argparse.Namespace, num_noise: int, text: str, model: Path) -> Speed:
    """Let faster-rnnlm train for one epoch; words per second are its own, and CPU seconds those of the process."""
    for old in model.parent.glob(f"{model.name}*"):
        old.unlink()
    files = ["-rnnlm", model, "-train", options.work / text, "-valid", options.work / "valid.words"]
    sizes = ["-hidden", SIZE, "-hidden-type", "sigmoid", "-nce", num_noise, "-threads", options.threads, "-seed", 1]
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen([str(part) for part in (options.faster_rnnlm, *files, *sizes)], stderr=subprocess.PIPE)
    assert process.stderr is not None
    told = b""
    # Its model is written after the figures of an epoch, and before the next one begins.
    while b"Epoch" not in told.partition(b"elapsed")[2] and (more := process.stderr.read1(4096)):
        told += more
    process.kill()
    process.communicate()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime - begun.ru_utime - begun.ru_stime
    lines = (options.work / text).read_text(encoding="utf-8").splitlines()
    num_tokens = sum(len(line.split()) + 1 for line in lines)
    elapsed = float(re.findall(rb"elapsed: ([\d.]+)s", told)[0])
    return num_tokens / elapsed, num_tokens / seconds


def measure_speeds(options: argparse.Namespace) -> list[str]:
    """Time all ways in turns."""
    bodies = [(model, precision) for model in ("rnn", "lstm") for precision in ("float32", "bf16")]
    ways = {f"bnce {model}, {precision}": ("bnce", HERE, model, precision) for model, precision in bodies}
    if options.before is not None:
        ways |= {f"bnce {model}, before": ("bnce", options.before, model, "float32") for model in ("rnn", "lstm")}
    found: dict[str, list[Speed]] = {name: [] for name in ways}
    noises = options.noise if options.faster_rnnlm is not None else []
    if not noises:
        print("faster-rnnlm is skipped: build it, and give its program with --faster-rnnlm.", file=sys.stderr)
    found |= {f"faster-rnnlm, sigmoid, NCE {num_noise}": [] for num_noise in noises}
    loads = []
    for _ in range(options.rounds):
        for name, (_, source, model, precision) in ways.items():
            found[name].append(time_bnce(options, source, model, precision))
        for num_noise in noises:
            speed = rival(options, num_noise, "part.words", options.work / "rival")
            found[f"faster-rnnlm, sigmoid, NCE {num_noise}"].append(speed)
        loads.append(f"{os.getloadavg()[0]:.1f}")
    first = found["bnce rnn, float32"]
    rows = [
        f"{options.threads} threads, {options.rounds} rounds, load after each: {', '.join(loads)}.",
        "",
        "| training, 256–256, V = 40,000 | tokens/s | ratio | tokens per CPU second | ratio |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, speeds in found.items():
        cells = [name]
        for place in (0, 1):
            values = [speed[place] for speed in speeds]
            times = [value / other[place] for value, other in zip(values, first, strict=True)]
            span = f"{statistics.median(values) / 1e3:.1f}K ({min(values) / 1e3:.1f}–{max(values) / 1e3:.1f}K)"
            cells += [span, f"{statistics.median(times):.2f}"]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def measure_perplexities(options: argparse.Namespace) -> list[str]:
    """Train for one epoch each; the first test tokens are read on, and sentence by sentence as faster-rnnlm does."""
    rows = [
        f"| one epoch, first {NUM_TEST_TOKENS:,} test tokens | PPLf | PPLf, sentence by sentence |",
        "|---|---:|---:|",
    ]
    for model in ("rnn", "lstm"):
        for precision in ("float32", "bf16"):
            out = options.work / f"{model}-{precision}"
            changed = [*SETTINGS, f"training.precision={precision}", f"training.max_test_tokens={NUM_TEST_TOKENS}"]
            sets = [part for setting in changed for part in ("--set", setting)]
            if not (out / "evaluation.json").is_file():
                names = ["--model", model, "--loss", "bnce", "--threads", options.threads]
                bnce(["train", "small", "--corpus", options.work / "corpus", *names, *sets, "--out", out])
            record = json.loads(bnce(["evaluate", out, "--max-tokens", NUM_TEST_TOKENS, "--json"]))
            alone = record["by_sentence"]["ppl_f"]
            rows.append(f"| bnce {model}, {precision} | {record['ppl_f']:.1f} | {alone:.1f} |")
            print(rows[-1], file=sys.stderr)
    for num_noise in options.noise if options.faster_rnnlm is not None else []:
        model_file = options.work / f"rival-{num_noise}"
        rival(options, num_noise, "train.words", model_file)
        command = [options.faster_rnnlm, "-rnnlm", model_file, "-test", options.work / "test.words"]
        done = subprocess.run(
            [*map(str, command), "-nce-accurate-test", "1"], capture_output=True, text=True, check=True
        )
        bits = float(re.findall(r"entropy.*?([\d.]+)\s*$", done.stdout + done.stderr, flags=re.MULTILINE)[-1])
        rows.append(f"| faster-rnnlm, sigmoid, NCE {num_noise} | – | {2.0**bits:.1f} |")
        print(rows[-1], file=sys.stderr)
    return rows


if __name__ == "__main__":
    main()
