"""Words with B-NCE against BPE pieces with the softmax: one Transformer, the same text, the same search.

    bnce prepare train.txt --valid valid.txt --test test.txt --vocab-size 80000 --out words
    bnce prepare train.txt --valid valid.txt --test test.txt --tokens bpe --vocab-size 32768 \\
        --known-words words/vocab.txt --out pieces
    python benchmarks/bodies.py words pieces --search --final --out bodies.jsonl
    python benchmarks/bodies.py words pieces --frontier --out bodies.jsonl
    python benchmarks/bodies.py --table bodies.jsonl --plot docs/images/bodies.svg

Three sides: words with chunk B-NCE, words with the softmax, pieces with the softmax. Both corpora have the same words,
and the same words are <unk>. The context of pieces is longer by the number of pieces per word. Every side is searched
alike: the tables' rate, the body's rate, eps and the embedding's start are gone through once, each value is tried with
the best of those before, and validation text alone decides. The final runs train the choice with other seeds.
Perplexities are per word, `</s>` counted, with the full softmax (PPLf) and the constant Z (PPLn). Seconds are of
training alone. The frontier trains bodies of three sizes for 1, 2 and 4 epochs with the rates that were chosen. A
line is written as a run ends, and runs that are in the file are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bnce
from bnce.corpus.store import Corpus
from bnce.machine.memory import release_memory

Line = dict[str, Any]
Settings = dict[str, Any]

RATES: Settings = {
    "optimiser.learning_rate": 0.002,
    "optimiser.body_learning_rate": 0.002,
    "optimiser.eps": 1e-8,
    "model.embedding_range": 0.035,
}
# In the order in which they are searched; each value is tried with the best of what was searched before.
VALUES: dict[str, list[float]] = {
    "optimiser.learning_rate": [0.001, 0.004],
    "optimiser.body_learning_rate": [0.001],
    "optimiser.eps": [1e-6],
    "model.embedding_range": [0.1, 0.01],  # after 0.035
}
CONTEXT = 128  # words
# Sizes of body: (hidden units, layers) of Transformers, (embedding, hidden, bottleneck) of the ReLu-LSTM.
TRANSFORMERS = {"256 x 4": (256, 4), "384 x 6": (384, 6), "512 x 6": (512, 6)}
LSTMS = {"200-600-400": (200, 600, 400), "300-1000-400": (300, 1000, 400), "400-1600-400": (400, 1600, 400)}
SIDES = {
    "words chunk-bnce": ("words", "chunk-bnce"),
    "words softmax": ("words", "softmax"),
    "pieces softmax": ("pieces", "softmax"),
    "words bnce": ("words", "bnce"),
    "words chunk-softmax": ("words", "chunk-softmax"),
}
SEARCHED = ("words chunk-bnce", "pieces softmax", "words softmax")
SIZE = "512 x 6"
EPOCHS = (1, 2, 4)
# Streams and steps of equal chunks, for the noise of few long streams: B x T.
CHUNKS = ((16, 512), (32, 256), (64, 128), (128, 64), (256, 32))
NOISES = (("bnce", 0), ("bnce", 1000), ("chunk-bnce", 0))
TEST_WORDS = 400_000
VALID_WORDS = 200_000
UNUSED_WORDS = 1_000  # of test, which a search does not look at


class Bodies:
    """The corpora, and the lines that are written."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.began = given, time.monotonic()
        self.corpora = {"words": Corpus.open(given.words), "pieces": Corpus.open(given.pieces)}
        self.lines: list[Line] = read_lines(given.out) if given.out.exists() else []
        self.num_words = {
            name: {split: part.num_words for split, part in corpus.statistics.items()}
            for name, corpus in self.corpora.items()
        }
        if self.num_words["words"] != self.num_words["pieces"]:
            raise SystemExit(f"The corpora do not have the same words: {self.num_words}.")

    def train(self, stage: str, side: str, size: str, settings: Settings, seed: int, epochs: int = 1) -> Line | None:
        """Train one model, or find its line; None if there is no time left."""
        units, loss = SIDES[side]
        about = {
            "side": side,
            "size": size,
            "seed": seed,
            "epochs": epochs,
            "settings": settings,
            "train_words": self.given.train_words or self.num_words[units]["train"],
        }
        whole = stage == "final"
        for line in self.lines:
            if all(line.get(key) == value for key, value in about.items()) and (
                stage == "search" or line["test"] is not None
            ):
                return line
        if time.monotonic() - self.began > self.given.seconds:
            return None
        corpus = self.corpora[units]
        per_word = corpus.statistics["train"].num_tokens / self.num_words[units]["train"]
        recipe, shape = self.shape(size, per_word)
        asked = {
            **shape,
            **settings,
            "training.max_train_tokens": self.first(corpus, "train", self.given.train_words),
            "training.seed": seed,
            "training.epochs": epochs,
            "training.evaluations_per_epoch": 1,
            "training.max_valid_tokens": self.first(corpus, "valid", VALID_WORDS),
            "training.max_test_tokens": self.first(corpus, "test", UNUSED_WORDS if stage == "search" else TEST_WORDS),
        }
        directory = Path(tempfile.mkdtemp(dir=self.given.work)) / "run"
        line = {"stage": stage, **about, "valid": None, "test": None, "whole": None}
        try:
            summary = bnce.train(recipe, corpus=corpus, out=directory, loss=loss, settings=asked)
            valid = bnce.evaluate(
                directory, split="valid", max_tokens=asked["training.max_valid_tokens"], by_sentence=False
            )
            line["valid"] = figures(valid)
            if stage != "search":
                line["test"] = figures(summary["test"])
            if whole:
                line["whole"] = figures(bnce.evaluate(directory, split="test", by_sentence=False))
            seconds = summary["train_seconds"]
            line.update(
                seconds=seconds,
                words_per_second=epochs * about["train_words"] / seconds,
                per_word=per_word,
                known_words=len(self.corpora["words"].vocabulary),
                num_parameters=summary["num_parameters"],
                device=summary["device"],
                torch=summary["torch"],
                bnce=summary["bnce"],
                commit=summary["commit"],
            )
        except bnce.UserError as error:  # a run that does not stay finite is the search's to leave
            line["error"] = str(error)
        finally:
            if self.given.keep is not None and whole:
                shutil.copytree(directory, self.given.keep / f"{side} {size} {seed}".replace(" ", "-"))
            shutil.rmtree(directory.parent)
            release_memory(bnce_device())
        self.lines.append(line)
        print(json.dumps(line), flush=True)
        with open(self.given.out, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return line

    @staticmethod
    def shape(size: str, per_word: float) -> tuple[str, Settings]:
        """Give the recipe and the settings of a size."""
        if size in LSTMS:
            names = ("model.embedding_size", "model.hidden_size", "model.bottleneck_size")
            return "wiki", dict(zip(names, LSTMS[size], strict=True))
        units, layers = TRANSFORMERS[size]
        # A multiple of 8 fits matrix products best.
        num_steps = CONTEXT if per_word == 1 else 8 * round(CONTEXT * per_word / 8)
        return "transformer", {
            "model.embedding_size": units,
            "model.hidden_size": units,
            "model.num_layers": layers,
            "model.num_heads": units // 64,
            "training.num_steps": num_steps,
        }

    @staticmethod
    def first(corpus: Corpus, split: str, num_words: int) -> int:
        """Count the tokens that the first words of a split have, so that both corpora have one text; 0: all."""
        if not num_words:
            return 0
        begins = corpus.vocabulary.starts_word[np.asarray(corpus.split(split))]
        ends = np.flatnonzero(begins)
        return len(begins) if len(ends) <= num_words else int(ends[num_words])

    def search(self, side: str, size: str) -> Settings | None:
        """Find the settings with the lowest validation perplexity; None if time ran out."""
        best, lowest = dict(RATES), math.inf
        for name, values in [("", [0.0]), *VALUES.items()]:
            found = dict(best)
            for value in values:
                tried = {**best, name: value} if name else best
                line = self.train("search", side, size, tried, seed=1)
                if line is None:
                    return None
                if line["valid"] is not None and line["valid"]["ppl_f"] < lowest:
                    lowest, found = line["valid"]["ppl_f"], tried
            best = found
        return best

    def chosen(self, side: str) -> Settings:
        """Give the settings that a search has found; the ReLu-LSTM has its recipe's, which were searched before."""
        settings = choice(self.lines if self.given.searched is None else read_lines(self.given.searched), side)
        if settings is None:
            raise SystemExit(f"There is no search of {side} in {self.given.searched or self.given.out}: add --search.")
        return settings

    def frontier(self) -> None:
        """Train bodies of all sizes, the quickest runs first."""
        runs: list[tuple[str, str, Settings]] = []
        for lstm, transformer in zip(LSTMS, TRANSFORMERS, strict=True):
            runs += [("words bnce", lstm, {}), ("words chunk-bnce", lstm, {})]
            runs += [(side, transformer, self.chosen(side)) for side in ("words chunk-bnce", "pieces softmax")]
        for epochs in EPOCHS:
            for side, size, settings in runs:
                self.train("frontier", side, size, settings, seed=2, epochs=epochs)

    def noise(self) -> None:
        """Train on chunks of one size that are cut into few long or many short streams, with every noise."""
        settings = self.chosen("words chunk-bnce")
        for num_streams, num_steps in CHUNKS:
            for loss, num_noise in NOISES:
                shape = {"training.batch_size": num_streams, "training.num_steps": num_steps}
                drawn = {"loss.num_noise": num_noise} if num_noise else {}
                self.train("noise", f"words {loss}", SIZE, {**settings, **shape, **drawn}, seed=1)


def choice(lines: Iterable[Line], side: str) -> Settings | None:
    """Give the settings of the trial with the lowest validation perplexity, if there was a search."""
    tried = [line for line in lines if line["stage"] == "search" and line["side"] == side and line["valid"]]
    return min(tried, key=lambda line: line["valid"]["ppl_f"])["settings"] if tried else None


def figures(evaluation: Any) -> Line:
    """Take what a table needs from an evaluation."""
    record = evaluation if isinstance(evaluation, dict) else evaluation.to_dict()
    return {
        "ppl_f": record["ppl_f_word"],
        "ppl_n": record["ppl_n_word"],
        "words": record["num_words"],
        "bits_per_byte": record["bits_per_byte"],
        "log_z_std": record["log_z_std"],
    }


def bnce_device() -> Any:
    """Give the device that runs use by themselves."""
    from bnce.machine.devices import choose_device

    return choose_device("auto")


def read_lines(path: Path) -> list[Line]:
    """Read lines of JSON."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def markdown(lines: Sequence[Line]) -> str:
    """Write what is known as tables: the search, the final runs with their deviation, the frontier and the noise."""
    parts = []
    for stage in dict.fromkeys(line["stage"] for line in lines):
        parts.append(f"### {stage}\n")
        parts.append(
            "| side | body | words | epochs | settings | seeds | valid PPLf | test PPLf | test PPLn "
            "| whole test PPLf, PPLn | bits per byte | seconds | words/s |\n"
            "|---|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"
        )
        kept = [line for line in lines if line["stage"] == stage]
        groups: dict[tuple[Any, ...], list[Line]] = {}
        for line in kept:
            side = f"{line['side']}, {line['known_words']:,} known" if "known_words" in line else line["side"]
            key = (side, line["size"], line["train_words"], line["epochs"], json.dumps(line["settings"]))
            groups.setdefault(key, []).append(line)
        for (side, size, words, epochs, settings), same in groups.items():
            shown = ", ".join(f"{name.partition('.')[2]} {value:g}" for name, value in json.loads(settings).items())
            good = [line for line in same if line["valid"] is not None]
            if not good:
                parts.append(
                    f"| {side} | {size} | {words:,} | {epochs} | {shown} | {len(same)} | not finite |" + " |" * 6
                )
                continue
            test = [line["test"] for line in good if line["test"] is not None]
            whole = [line["whole"] for line in good if line["whole"] is not None]
            parts.append(
                f"| {side} | {size} | {words:,} | {epochs} | {shown} | {len(good)} "
                f"| {mean(line['valid']['ppl_f'] for line in good)} | {mean(part['ppl_f'] for part in test)} "
                f"| {mean(part['ppl_n'] for part in test)} "
                f"| {mean(part['ppl_f'] for part in whole)}, {mean(part['ppl_n'] for part in whole)} "
                f"| {mean((part['bits_per_byte'] for part in whole), 4)} "
                f"| {mean(line['seconds'] for line in good)} "
                f"| {mean(line['words_per_second'] / 1e6 for line in good)}M |"
            )
        parts.append("")
    conditions = sorted(
        {f"{line['device']}, torch {line['torch']}, bnce {line['bnce']}" for line in lines if "device" in line}
    )
    parts.append(
        f"{'; '.join(conditions)}. Perplexities are per word, `</s>` counted: valid is its first {VALID_WORDS:,} "
        f"words, test its first {TEST_WORDS:,}. Bits per byte are of the whole test; its `<unk>` are not spelled. ± is "
        "the standard deviation over seeds. Seconds are those of training alone. Words/s counts words and `</s>`, not "
        "pieces."
    )
    return "\n".join(parts)


def draw(lines: Sequence[Line], out: Path) -> None:
    """Draw test perplexity per word by seconds of training: a line per body and side, a point per number of epochs."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator, ScalarFormatter

    series: dict[tuple[str, str], dict[int, Line]] = {}
    for line in lines:
        chosen = {} if line["size"] in LSTMS else choice(lines, line["side"])
        if line["test"] is not None and line["stage"] in ("final", "frontier") and line["settings"] == chosen:
            series.setdefault((line["side"], line["size"]), {}).setdefault(line["epochs"], line)
    names = {
        ("words bnce", True): ("ReLu-LSTM, words, B-NCE", "#0072b2"),
        ("words chunk-bnce", True): ("ReLu-LSTM, words, chunk B-NCE", "#009e73"),
        ("words chunk-bnce", False): ("Transformer, words, chunk B-NCE", "#d55e00"),
        ("words softmax", False): ("Transformer, words, softmax", "#57606a"),
        ("pieces softmax", False): ("Transformer, BPE pieces, softmax", "#cc79a7"),
    }
    with mpl.rc_context({"font.size": 11, "svg.hashsalt": "bnce", "axes.grid": True, "grid.alpha": 0.3}):
        figure, axes = plt.subplots(figsize=(8, 5.2), layout="constrained")
        shown: set[str] = set()
        best = [(line["seconds"], line["test"]["ppl_f"]) for runs in series.values() for line in runs.values()]
        front = [pair for pair in sorted(best) if all(pair[1] < other[1] for other in best if other[0] < pair[0])]
        axes.plot(
            *zip(*front, strict=True), color="#24292f", linewidth=6, alpha=0.15, label="nothing better in less time"
        )
        for (side, size), runs in sorted(series.items()):
            name, colour = names[side, size in LSTMS]
            marker = "os^"[list(LSTMS if size in LSTMS else TRANSFORMERS).index(size)]
            points = [(line["seconds"], line["test"]["ppl_f"]) for _, line in sorted(runs.items())]
            label = None if name in shown else name
            shown.add(name)
            axes.plot(*zip(*points, strict=True), marker=marker, color=colour, label=label, markersize=5)
            axes.annotate(size, points[-1], (4, 2), textcoords="offset points", color=colour, fontsize=9)
        axes.set(xscale="log", yscale="log", xlabel="seconds of training (log scale)")
        axes.set_ylabel("test perplexity per word (log scale)")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(ScalarFormatter())
        axes.set_xticks([2, 5, 10, 20, 50, 100, 200])
        axes.set_yticks([50, 55, 60, 65, 70, 80, 90])
        axes.legend(frameon=False, fontsize=9)
        for spine in ("top", "right"):
            axes.spines[spine].set_visible(False)
        figure.savefig(out, metadata={"Date": None})


def mean(values: Iterable[float | None], digits: int = 2) -> str:
    """Write a mean with its deviation, where there are several values."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    deviation = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.{digits}f}{deviation}"


def main() -> None:
    """Train what is asked for, and write a line per run as it ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="?", type=Path, help="corpus of words")
    parser.add_argument("pieces", nargs="?", type=Path, help="corpus of pieces, of the same text")
    parser.add_argument("--search", action="store_true", help="search the rates of every side on validation text")
    parser.add_argument(
        "--final", action="store_true", help="train the choice with every seed, and read the whole test"
    )
    parser.add_argument("--frontier", action="store_true", help="train bodies of all sizes for 1, 2 and 4 epochs")
    parser.add_argument("--noise", action="store_true", help="train few long and many short streams with every noise")
    parser.add_argument("--table", type=Path, metavar="JSONL", help="print the tables of a file")
    parser.add_argument("--plot", type=Path, metavar="SVG", help="--table: draw perplexity by seconds of training")
    parser.add_argument("--sides", default=",".join(SEARCHED), help="sides to search, divided by commas (all)")
    parser.add_argument("--seeds", default="2,3,4", help="seeds of the final runs (2,3,4)")
    parser.add_argument("--train-words", type=int, default=0, help="train on the first N words (all)")
    parser.add_argument("--searched", type=Path, metavar="JSONL", help="whose search has made the choice (--out)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no run after N seconds (never)")
    parser.add_argument("--work", type=Path, help="where runs are kept while they are trained (temporary)")
    parser.add_argument("--keep", type=Path, help="keep the final runs in this directory")
    parser.add_argument("--out", type=Path, default=Path("bodies.jsonl"), help="add a JSON line per run to this file")
    given = parser.parse_args()
    if given.table is not None:
        lines = read_lines(given.table)
        print(markdown(lines))
        if given.plot is not None:
            draw(lines, given.plot)
        return
    if given.pieces is None:
        parser.error("give a corpus of words and a corpus of pieces (or --table)")
    bodies, sides = Bodies(given), given.sides.split(",")
    if given.search:
        for side in sides:
            bodies.search(side, SIZE)
    if given.final:
        for side in sides:
            for seed in map(int, given.seeds.split(",")):
                bodies.train("final", side, SIZE, bodies.chosen(side), seed)
    if given.noise:
        bodies.noise()
    if given.frontier:
        bodies.frontier()


if __name__ == "__main__":
    main()
