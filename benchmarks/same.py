"""Does this tree still answer what version 0.2.0 answered? About 80 commands, run by both trees and compared.

    git worktree add build/old c547e02                             # once: the code of 0.2.0
    python benchmarks/same.py check                                # two minutes on two cores
    python benchmarks/same.py check --only rescore --only 'train*lstm'
    python benchmarks/same.py check --tolerances                   # numbers may move as far as each case allows
    python benchmarks/same.py record                               # check, and write benchmarks/results/same.jsonl

`check` prints a line per case: the seconds of 0.2.0 and of this tree, how many facts were compared, and ok, what
differs, or why the case is gone or changed on purpose. Status 1 if anything differs that is not declared below CASES.
What both trees wrote stays in build/same.

Both trees run at once on this machine, with one interpreter, on the CPU, in one thread and in float32. The texts are
made here. A case is a command of 0.2.0, or several; where this tree says it otherwise, SAID_NOW has both. Commands
build on each other: a later case reads the corpora and runs that an earlier one made in the same tree. `--only` takes
the beginnings of names, and runs the cases that these need, too.

What is compared are facts: each has a name, such as `json/ppl_f` or `runs/lstm/model.safetensors/embedding/sha256`, and
a value. Places, times and versions are left out. Each case says how far its facts may move once code is replaced, not
only taken out: `later` has patterns of names with tolerances. All other facts stay exact.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import hashlib
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "same.jsonl"
OLD_COMMIT = "c547e02"
MAX_SECONDS = 300  # of a command

Facts = dict[str, Any]


# --------------------------------------------------------------------------------------------------------- tolerances


@dataclass(frozen=True)
class Within:
    """How far a number may be from that of 0.2.0; a text may differ in its numbers, as far as these allow."""

    relative: float = 0.0
    absolute: float = 0.0

    def allows(self, then: float, now: float) -> bool:
        """Compare two numbers."""
        return math.isclose(then, now, rel_tol=self.relative, abs_tol=self.absolute)


ANYTHING = Within(math.inf, math.inf)  # only that the fact is there
# Of a trained run: its weights cannot keep their bits once code is replaced, its perplexity after 200 steps can.
OF_TRAINING = {"*/sha256": ANYTHING, "*grad_norm": ANYTHING, "*": Within(relative=1e-3)}
OF_SEEDS = {"*/sha256": ANYTHING, "*": ANYTHING}
PERPLEXITIES = {"*histogram*": ANYTHING, "*": Within(relative=1e-6)}
OF_WORDS = {"json/*": Within(relative=1e-6), "*": Within(absolute=1e-5)}
OF_LISTS = {"*": Within(absolute=1e-4)}


# -------------------------------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A command of 0.2.0, or several, and how far their numbers may move later."""

    name: str
    commands: tuple[str, ...]
    later: Mapping[str, Within] = field(default_factory=dict)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The files and directories that the commands write, all of which are compared."""
        found = (re.findall(r"--(?:out|save-weights) (\S+)", command) for command in self.commands)
        return tuple(dict.fromkeys(place for places in found for place in places))


SETS = "model.embedding_size=16 model.hidden_size=24 model.bottleneck_size=20 optimiser.warmup_steps=5"
SETS += " training.batch_size=16 training.num_steps=10 training.epochs=1"


def cases(later: Mapping[str, Within], commands: Mapping[str, str | tuple[str, ...]], also: str = "") -> list[Case]:
    """Make cases of one kind; what they all have is written once, and `+a.b=c` stands for `--set a.b=c`."""
    made = []
    for name, given in commands.items():
        all_of_it = (f"{one} {also}" for one in ((given,) if isinstance(given, str) else given))
        made.append(Case(name, tuple(one.strip().replace(" +", " --set ") for one in all_of_it), later))
    return made


SMALL = " ".join(f"+{setting}" for setting in SETS.split())
WIKI = f"train wiki --corpus corpora/plain {SMALL} --device cpu --json"
SPLITS = "--valid valid.txt --test test.txt"
OFTEN = "+training.evaluations_per_epoch=6 +training.checkpoint_seconds=0.01"

# The names of cases begin with their command; {old} is where 0.2.0 works, whose runs this tree must open.
CASES = [
    *cases(
        {},
        {
            "prepare plain": f"prepare train.txt --out corpora/plain --vocab-size 1500 {SPLITS} --workers 1",
            "prepare cased": f"prepare train.txt --out corpora/cased --cased --min-count 2 {SPLITS} --workers 1",
            "prepare whitespace": "prepare train.txt --out corpora/white --tokens whitespace --sentences lines "
            f"--min-count 2 {SPLITS} --workers 1",
            "prepare spoken": f"prepare train.txt --out corpora/spoken --tokens spoken {SPLITS} --workers 1",
            "prepare numbers zero": f"prepare train.txt --out corpora/zero --numbers zero {SPLITS} --workers 1",
            "prepare numbers word": f"prepare train.txt --out corpora/num --numbers word {SPLITS} --workers 1",
            "prepare vocab": f"prepare test.txt --out corpora/vocab --vocab corpora/plain/vocab.txt {SPLITS} "
            "--workers 1",
            "prepare jsonl.gz": "prepare shards --out corpora/shards --field body --workers 1",
            "prepare Parquet": "prepare web.parquet --out corpora/parquet --workers 1",
            "prepare 3 workers": f"prepare train.txt --out corpora/three --vocab-size 1500 {SPLITS} --workers 3",
        },
        also="--json",
    ),
    *cases({}, {"prepare messages": f"prepare train.txt --out corpora/told --vocab-size 900 {SPLITS} --workers 1"}),
    *cases(
        OF_TRAINING,
        {
            "train ffnn": f"{WIKI} --model ffnn --loss bnce --out runs/ffnn",
            "train rnn": f"{WIKI} --model rnn --loss bnce --out runs/rnn",
            "train relu-rnn": f"{WIKI} --model relu-rnn --loss bnce --out runs/relu-rnn +optimiser.name=sgd "
            "+optimiser.learning_rate=0.2",
            "train lstm": f"{WIKI} --model lstm --loss bnce --out runs/lstm +training.reset_rate=0.2 "
            "+model.num_layers=2",
            "train relu-lstm": f"{WIKI} --model relu-lstm --loss bnce --out runs/relu-lstm "
            "+optimiser.learning_rate=0.02",
            "train transformer": f"{WIKI} --model transformer --loss bnce --out runs/transformer +model.num_layers=2 "
            "+model.num_heads=2 +model.embedding_size=24 +model.dropout=0.1",
            "train softmax": f"{WIKI} --model relu-lstm --loss softmax --out runs/softmax",
            "train adaptive-softmax": f"{WIKI} --model relu-lstm --loss adaptive-softmax --out runs/adaptive",
            "train self-normalised": f"{WIKI} --model relu-lstm --loss self-normalised-softmax --out runs/self",
            "train chunk-bnce": f"{WIKI} --model relu-lstm --loss chunk-bnce --out runs/chunk +training.groups=2",
            "train chunk-softmax": f"{WIKI} --model relu-lstm --loss chunk-softmax --out runs/chunk-softmax "
            "+training.evaluations_per_epoch=3",
            "train with drawn words": f"{WIKI} --model relu-lstm --loss bnce --out runs/drawn +loss.num_noise=50 "
            "+loss.learn_log_z=true",
            "train on a part": f"{WIKI} --model ffnn --loss bnce --out runs/part +training.max_train_tokens=8000",
            "train --init": f"train --init {{old}}/runs/relu-lstm --corpus corpora/shards --out runs/init {SMALL} "
            "--device cpu --json",
            "train killed, resumed": (
                f"killed {WIKI} --model relu-lstm --loss bnce --out runs/killed {OFTEN} +optimiser.learning_rate=0.02",
                "train --out runs/killed --resume --device cpu --json",
            ),
        },
    ),
    *cases(
        OF_SEEDS,
        {
            "train nce": f"{WIKI} --model relu-lstm --loss nce --out runs/nce +loss.num_noise=20",
            "train snce": f"{WIKI} --model relu-lstm --loss snce --out runs/snce +loss.num_noise=50",
            "train sampled-softmax": f"{WIKI} --model relu-lstm --loss sampled-softmax --out runs/sampled "
            "+loss.num_noise=100 +loss.replacement=false",
        },
    ),
    *cases(
        PERPLEXITIES,
        {
            "evaluate valid": "evaluate runs/relu-lstm --split valid --json",
            "evaluate text": "evaluate runs/lstm --text lines.txt --json",
            "evaluate in context": "evaluate runs/rnn --in-context-only --json",
            "evaluate detail": "evaluate runs/relu-lstm --detail --json",
            "evaluate max words": "evaluate runs/ffnn --max-words 500 --json",
            "evaluate transformer": "evaluate runs/transformer --json",
            "evaluate softmax": "evaluate runs/softmax --json",
            "evaluate adaptive": "evaluate runs/adaptive --json",
            "evaluate messages": "evaluate runs/relu-lstm --detail",
        },
        also="--device cpu",
    ),
    *cases(
        OF_WORDS,
        {
            "score unnormalised": "score runs/relu-lstm lines.txt --json",
            "score normalised": "score runs/lstm lines.txt --mode normalised --json",
            "score checked": "score runs/relu-lstm lines.txt --mode checked --json",
            "score kenlm": "score runs/relu-rnn lines.txt --per-word",
            "score srilm": "score runs/ffnn lines.txt --per-word --layout srilm",
            "score jsonl": "score runs/transformer lines.txt --jsonl",
            "score carry": "score runs/rnn lines.txt --carry --per-word",
            "score split": "score runs/relu-lstm docs.txt --split --per-word",
            "score spell": "score runs/relu-lstm lines.txt --spell --per-word",
            "score adaptive": "score runs/adaptive lines.txt --mode normalised --per-word",
        },
        also="--device cpu",
    ),
    *cases(
        OF_LISTS,
        {
            "rescore jsonl": "rescore runs/relu-lstm nbest/dev.jsonl --json --out best.jsonl",
            "rescore tsv": "rescore runs/lstm nbest/dev.tsv --refs nbest/dev.ref --json --out best-of-tsv.txt",
            "rescore Kaldi": "rescore runs/rnn nbest/dev.nbest --am-scores nbest/dev.am --lm-scores nbest/dev.lm "
            "--json --out best-of-kaldi.txt",
            "rescore ESPnet": "rescore runs/transformer nbest/espnet --json --out best-of-espnet.jsonl",
            "rescore tune": "rescore runs/relu-lstm --tune nbest/dev.jsonl --test nbest/test.jsonl --json "
            "--save-weights weights.json --out tuned.jsonl",
            "rescore --weights": "rescore runs/lstm nbest/test.jsonl --weights weights.json --mode normalised "
            "--out weighted.trn",
        },
        also="--device cpu",
    ),
]

# How this tree says what 0.2.0 said otherwise, wherever a command has it.
SAID_NOW: dict[str, str] = {"--am-scores ": "--scores am=", "--lm-scores ": "--scores lm="}
# Cases that this tree cannot do any more, those whose numbers are others on purpose, and keys of records that are
# gone; each with the reason.
GONE: dict[str, str] = {}
CHANGED: dict[str, str] = {"rescore --weights": "it says how many utterances changed, but not how many words"}
GONE_KEYS: dict[str, str] = {
    **dict.fromkeys(
        ("unit", "tokens_per_word", "num_words", "ppl_n_word", "ppl_f_word", "pieces", "known_words", "has_pieces"),
        "tokens are words: there are no figures per piece",
    ),
    **dict.fromkeys(("carry", "num_documents", "num_cached"), "rescoring has neither context nor a cache"),
    **dict.fromkeys(
        (
            *("corrected", "broken", "insertions_removed", "insertions_added"),
            *("num_corrected", "num_broken", "num_insertions_removed", "num_insertions_added"),
        ),
        "rescoring counts the utterances that changed, not their words",
    ),
}


# -------------------------------------------------------------------------------------------------------------- texts


ONSETS, VOWELS = (*"bdfgklmnprstv", "st", "tr", "pl"), "aeiou"
NUMBERS = ["7", "12", "1999", "2,500", "3.14", "$12.50", "20%", "3rd", "1st", "10:30", "1980s", "No. 5"]
ODD = ["don't", "it's", "café", "naïve", "U.S.", "e.g.", "well-known", "A/B", "me@site.org", "…", "(so)", "“oh”"]


class Writer:
    """Writes text by chance, with a seed: words by Zipf's law that follow each other, as sentences and documents."""

    def __init__(self, seed: int, num_words: int = 2500) -> None:
        of_words = random.Random(0)  # the language is one; the texts are many
        words: dict[str, None] = {}
        while len(words) < num_words:
            syllables = (of_words.choice(ONSETS) + of_words.choice(VOWELS) for _ in range(of_words.randint(1, 4)))
            words["".join(syllables)] = None
        self.words = list(words)
        self.weights = [1 / (place + 2) for place in range(num_words)]
        self.followers = [of_words.choices(range(num_words), self.weights, k=3) for _ in range(num_words)]
        self.chance = random.Random(seed)

    def sentence(self, plain: bool = False) -> str:
        """Write a sentence; a plain one has neither capitals nor marks, as a recogniser writes it."""
        chance, words, place = self.chance, [], self.chance.choices(range(len(self.words)), self.weights)[0]
        for _ in range(chance.randint(2, 18)):
            word = self.words[place]
            if not plain:
                word = word.capitalize() if place % 17 == 3 else word
                draw = chance.random()
                if draw < 0.03:
                    word = chance.choice(NUMBERS)
                elif draw < 0.05:
                    word = chance.choice(ODD)
                elif draw < 0.06:
                    word = f"Mr. {word.capitalize()}"
                elif draw < 0.12:
                    word += ","
            words.append(word)
            if chance.random() < 0.5:
                place = chance.choice(self.followers[place])
            else:
                place = chance.choices(range(len(self.words)), self.weights)[0]
        if plain:
            return " ".join(words)
        words[0] = words[0][0].upper() + words[0][1:]
        return " ".join(words).rstrip(",") + chance.choice("....!?")

    def document(self) -> str:
        """Write some lines, of one or two sentences each."""
        lines = range(self.chance.randint(2, 10))
        return "\n".join(" ".join(self.sentence() for _ in range(self.chance.choice((1, 1, 2)))) for _ in lines)

    def documents(self, number: int) -> list[str]:
        """Write so many documents."""
        return [self.document() for _ in range(number)]


def write_texts(place: Path) -> None:
    """Write everything that commands read."""
    for seed, (name, number) in enumerate({"train": 450, "valid": 40, "test": 40, "docs": 12}.items(), start=1):
        (place / f"{name}.txt").write_text("\n\n".join(Writer(seed).documents(number)) + "\n", encoding="utf-8")
    sentences = Writer(11)
    lines = [sentences.sentence() for _ in range(120)]
    (place / "lines.txt").write_text("\n".join([*lines, "zzzz, Qqqq!", "a <unk> b"]) + "\n", encoding="utf-8")
    write_records(place, Writer(12))
    write_nbest(place / "nbest", Writer(13))


def write_records(place: Path, writer: Writer) -> None:
    """Write documents as shards of JSON lines, and as Parquet."""
    import pyarrow
    import pyarrow.parquet

    (place / "shards").mkdir()
    for shard in range(3):
        rows = [{"id": f"{shard}-{row}", "body": text, "n": row / 3} for row, text in enumerate(writer.documents(60))]
        # Without a name and a time in its header, the file is the same in both trees.
        with gzip.GzipFile(place / "shards" / f"{shard}.jsonl.gz", "wb", mtime=0) as file:
            file.write("".join(json.dumps(row, ensure_ascii=shard == 0) + "\n" for row in rows).encode())
    texts = writer.documents(150)
    table = pyarrow.table({"url": [f"https://x.org/{row}" for row in range(len(texts))], "text": texts})
    pyarrow.parquet.write_table(table, place / "web.parquet", row_group_size=40)


def write_nbest(place: Path, writer: Writer) -> None:
    """Write n-best lists in four formats: hypotheses with some words wrong, and scores that know half of it."""
    place.mkdir()
    for name, number in (("dev", 40), ("test", 30)):
        lists = [make_list(f"{name}{one:02d}", writer) for one in range(number)]
        (place / f"{name}.ref").write_text("".join(f"{one['utt']} {one['ref']}\n" for one in lists), encoding="utf-8")
        (place / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lists), encoding="utf-8")
        rows = [(one["utt"], rank, hyp) for one in lists for rank, hyp in enumerate(one["hyps"], 1)]
        tsv = (f"{utt}\t{hyp['am']}\t{hyp['lm']}\t{hyp['text']}\n" for utt, _, hyp in rows)
        (place / f"{name}.tsv").write_text("".join(tsv), encoding="utf-8")
        for ending, key in (("nbest", "text"), ("am", "am"), ("lm", "lm")):
            kaldi = (f"{utt}-{rank} {hyp[key]}\n" for utt, rank, hyp in rows)
            (place / f"{name}.{ending}").write_text("".join(kaldi), encoding="utf-8")
        if name == "dev":
            for rank in range(1, 7):
                best = place / "espnet" / f"{rank}best_recog"
                best.mkdir(parents=True)
                ranked = [(utt, hyp) for utt, own, hyp in rows if own == rank]
                (best / "text").write_text("".join(f"{utt} {hyp['text']}\n" for utt, hyp in ranked), encoding="utf-8")
                (best / "score").write_text(
                    "".join(f"{utt} tensor({hyp['am']})\n" for utt, hyp in ranked), encoding="utf-8"
                )


def make_list(name: str, writer: Writer) -> dict[str, Any]:
    """Make a list of six hypotheses for a sentence."""
    chance, spoken = writer.chance, writer.sentence(plain=True)
    hypotheses = []
    for _ in range(6):
        words, errors = [], 0
        for word in spoken.split():
            draw = chance.random()
            errors += draw < 0.2
            words += [] if draw < 0.05 else [chance.choice(writer.words)] if draw < 0.2 else [word]
        am = round(-3.0 * errors + chance.gauss(0, 3), 4)
        hypotheses.append({"text": " ".join(words), "am": am, "lm": round(-6.0 * len(words) + chance.gauss(0, 4), 4)})
    hypotheses.sort(key=lambda one: -one["am"])
    return {"utt": name, "ref": spoken, "hyps": hypotheses}


# -------------------------------------------------------------------------------------------------- a tree and its work


class Tree:
    """A process with the code of a tree imported, which runs commands in a directory, each in a fork of its own."""

    def __init__(self, source: Path, place: Path) -> None:
        self.place = place
        env = {name: value for name, value in os.environ.items() if not name.startswith("BNCE_")}
        env |= {"PYTHONPATH": str(source / "src"), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
        env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUTF8": "1", "COLUMNS": "100"}
        command = [sys.executable, str(Path(__file__).resolve()), "drive"]
        self.process = subprocess.Popen(
            command, cwd=place, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def run(self, commands: Iterable[str]) -> list[dict[str, Any]]:
        """Run the commands of a case; each has a status, seconds, and what it printed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(list(commands)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"The process of {self.place.name} ended: see above.")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def drive() -> None:
    """Be the process of a tree: read cases, run their commands, tell what came of them."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import_everything()
    for line in sys.stdin:
        answers.write(json.dumps([run_forked(shlex.split(command)) for command in json.loads(line)]) + "\n")
        answers.flush()


def import_everything() -> None:
    """Import what commands import when they run, so that forks have it."""
    import importlib
    import pkgutil
    import warnings

    import torch

    import bnce

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for module in pkgutil.walk_packages(bnce.__path__, "bnce."):
        if "kernels" not in module.name and not module.name.endswith(("__main__", "modeling_bnce")):
            importlib.import_module(module.name)
    for name in (
        "jiwer",
        "kenlm",
        "pyarrow.parquet",
        "pyarrow.json",
        "pyarrow.csv",
        "torch.utils.tensorboard",
        "uvicorn",
    ):
        with suppress(ImportError):
            importlib.import_module(name)


def run_forked(arguments: list[str]) -> dict[str, Any]:
    """Run a command in a fork, so that nothing it leaves in memory reaches the next."""
    paths = [Path(f".printed-{name}") for name in ("out", "err")]
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = run_here(arguments, *paths)
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seconds = time.monotonic() - began
    out, err = (path.read_text(encoding="utf-8", errors="backslashreplace") for path in paths)
    return {"status": status, "seconds": seconds, "out": out, "err": err}


def run_here(arguments: list[str], out: Path, err: Path) -> int:
    """Run a command in this process, which is only there for it."""
    signal.alarm(MAX_SECONDS)
    for path, descriptor in ((Path(os.devnull), 0), (out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
    kind, *rest = arguments
    if kind in ACTIONS:
        ACTIONS[kind](rest)
        return 0
    if kind == "killed":
        kill_after_states(3)
        arguments = rest
    from bnce.cli import main

    sys.argv = ["bnce", *arguments]
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def kill_after_states(number: int) -> None:
    """Have this process killed as soon as it has saved its state so many times."""
    num_saved = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal num_saved
        if event == "os.rename" and "metrics.jsonl" in str(arguments[1]):
            num_saved += 1
            if num_saved > number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


ACTIONS: dict[str, Callable[[list[str]], None]] = {}


# -------------------------------------------------------------------------------------------------------------- facts


# What differs from time to time, or from place to place.
VOLATILE = re.compile(r".*seconds|\w+_per_second|peak_memory_bytes|command|commit|bnce")
TIMES = re.compile(r"\b\d[\d,.]*[KM]? ?(words/s|tokens/s|(words )?per second|ms|s|min|seconds|minutes|MB|GB)\b")
SKIPPED = re.compile(r"(^|/)(events\.out\.tfevents.*|state-.*|\.lock|\.printed-.*|log\.txt)$")


def facts_of(place: Path, printed: list[dict[str, Any]], outputs: Iterable[str]) -> Facts:
    """Gather all facts of a case."""
    facts: Facts = {}
    for number, command in enumerate(printed):
        prefix = f"{number}/" if len(printed) > 1 else ""
        facts[f"{prefix}status"] = command["status"]
        add_text(facts, f"{prefix}out", command["out"], place)
        add_lines(facts, f"{prefix}err", command["err"], place)
    for name in outputs:
        path = place / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and not SKIPPED.search(file.relative_to(place).as_posix()):
                add_file(facts, file.relative_to(place).as_posix(), file, place)
    return facts


def add_text(facts: Facts, name: str, text: str, place: Path) -> None:
    """Add what a command printed: an object, objects on lines, or text."""
    lines = text.splitlines()
    if lines and all(line.startswith("{") for line in lines):
        records = [json.loads(line) for line in lines]
        flatten(facts, "json", records[0] if len(records) == 1 else records, place)
    else:
        add_lines(facts, name, text, place)


def add_lines(facts: Facts, name: str, text: str, place: Path) -> None:
    """Add a text as one fact, a list of lines, without times and without where it lies."""
    facts[name] = [TIMES.sub("TIME", line) for line in anywhere(text, place).splitlines()]


def anywhere(text: str, place: Path) -> str:
    """Leave out which tree a path leads to."""
    return re.sub(rf"{re.escape(str(place.parent))}/(then|now)\b", "HERE", text)


def flatten(facts: Facts, name: str, value: Any, place: Path) -> None:
    """Add a record, each of its leaves as a fact."""
    if isinstance(value, dict):
        for key, one in value.items():
            if not VOLATILE.fullmatch(str(key)):
                flatten(facts, f"{name}/{key}", one, place)
        return
    if isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        for number, one in enumerate(value):
            flatten(facts, f"{name}/{number}", one, place)
        return
    facts[name] = anywhere(value, place) if isinstance(value, str) else value


def add_file(facts: Facts, name: str, path: Path, place: Path) -> None:
    """Add what is in a file; compressed ones are read, tables and tensors by their names."""
    if path.suffix == ".gz":
        content = gzip.decompress(path.read_bytes())
        add_bytes(facts, name, name.removesuffix(".gz"), content, place)
    elif path.suffix == ".safetensors":
        add_tensors(facts, name, path)
    elif path.suffix == ".parquet":
        import pyarrow.parquet

        for key, column in pyarrow.parquet.read_table(path).to_pydict().items():
            facts[f"{name}/{key}"] = column
    else:
        add_bytes(facts, name, name, path.read_bytes(), place)


def add_bytes(facts: Facts, name: str, ending: str, content: bytes, place: Path) -> None:
    """Add the content of a file by its ending."""
    if ending.endswith(".json"):
        record = json.loads(content)
        if ending.endswith("corpus.json"):
            del record["sha256"]  # of the record itself, whose keys are compared
        flatten(facts, name, record, place)
    elif ending.endswith(".jsonl"):
        flatten(facts, name, [json.loads(line) for line in content.splitlines()], place)
    elif ending.endswith(".toml"):
        flatten(facts, name, tomllib.loads(content.decode()), place)
    elif ending.endswith((".txt", ".tsv", ".csv", ".md", ".arpa", ".trn")):
        add_lines(facts, name, content.decode(), place)
    else:
        facts[f"{name}/sha256"] = hashlib.sha256(content).hexdigest()


def add_tensors(facts: Facts, name: str, path: Path) -> None:
    """Add a digest of each tensor."""
    from safetensors.numpy import load_file

    for key, tensor in sorted(load_file(path).items()):
        facts[f"{name}/{key}/shape"] = [str(tensor.dtype), *tensor.shape]
        facts[f"{name}/{key}/sha256"] = hashlib.sha256(tensor.tobytes()).hexdigest()


# --------------------------------------------------------------------------------------------------------- comparison


def differences(then: Facts, now: Facts, later: Mapping[str, Within] | None) -> list[str]:
    """Name the facts that differ; with `later`, those that differ by more than it allows."""
    found = []
    for name in [*then, *(name for name in now if name not in then)]:
        if name not in now:
            if not any(key in name.split("/") for key in GONE_KEYS):
                found.append(f"{name} is not there any more")
        elif name not in then:
            found.append(f"{name} is new: {shown(now[name])}")
        else:
            rule = next((rule for pattern, rule in (later or {}).items() if fnmatch.fnmatch(name, pattern)), None)
            if not equal(then[name], now[name], rule):
                found.append(f"{name}: {told(then[name], now[name], rule)}")
    return found


NUMBER = re.compile(r"[-+]?\d+\.\d+(?:[eE][-+]?\d+)?|[-+]?\d+[eE][-+]?\d+")


def equal(then: Any, now: Any, rule: Within | None) -> bool:
    """Compare two values; without a rule, to the bit. Whole numbers are always exact."""
    if rule is ANYTHING:
        return True
    if isinstance(then, float) and isinstance(now, float):
        same_bits = then.hex() == now.hex()
        return same_bits or (rule is not None and rule.allows(then, now))
    if isinstance(then, list) and isinstance(now, list):
        return len(then) == len(now) and all(equal(*pair, rule) for pair in zip(then, now, strict=True))
    if isinstance(then, str) and isinstance(now, str) and rule is not None and then != now:
        numbers = [[float(number) for number in NUMBER.findall(text)] for text in (then, now)]
        return NUMBER.sub("#", then) == NUMBER.sub("#", now) and equal(*numbers, rule)
    return type(then) is type(now) and bool(then == now)


def told(then: Any, now: Any, rule: Within | None) -> str:
    """Say how two values differ; of lists, the first place that does."""
    if isinstance(then, list) and isinstance(now, list):
        for place, (one, other) in enumerate(zip(then, now, strict=False)):
            if not equal(one, other, rule):
                return f"[{place}] {told(one, other, rule)}"
        return f"{len(then)} items → {len(now)}"
    return f"{shown(then)} → {shown(now)}"


def shown(value: Any) -> str:
    """Show a value shortly."""
    text = repr(value)
    return text if len(text) <= 90 else text[:87] + "…"


# -------------------------------------------------------------------------------------------------------------- check


@dataclass
class Result:
    """What came of a case."""

    case: Case
    facts: dict[str, Facts] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: str = ""
    differing: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Say it in a word."""
        if self.case.name in GONE:
            return "gone"
        if self.failed:
            return "failed"
        return ("changed" if self.case.name in CHANGED else "differs") if self.differing else "ok"


def chosen(cases: list[Case], patterns: list[str]) -> list[Case]:
    """Choose the cases that match, and those that make what they read, in the order of all."""
    wanted = [one for one in cases if not patterns or any(fnmatch.fnmatch(one.name, f"{p}*") for p in patterns)]
    for one in reversed(cases):
        if one not in wanted and any(needs(other, one) for other in wanted):
            wanted.append(one)
    return [one for one in cases if one in wanted]


def needs(one: Case, maker: Case) -> bool:
    """Tell whether a case reads what another one makes."""
    return one is not maker and any(place in command for place in maker.outputs for command in one.commands)


def said_now(command: str) -> str:
    """Say a command of 0.2.0 as this tree does."""
    for then, now in SAID_NOW.items():
        command = command.replace(then, now)
    return command


class Race:
    """Both trees on their way through the cases; each tells the other what it has done."""

    def __init__(self, cases: list[Case], trees: dict[str, Tree]) -> None:
        self.cases = cases
        self.results = {one.name: Result(one) for one in cases}
        self.done = {(name, one.name): threading.Event() for name in trees for one in cases}
        self.trees = trees
        for name in trees:
            threading.Thread(target=self._run, args=(name,), daemon=True).start()

    def _run(self, name: str) -> None:
        tree, old = self.trees[name], self.trees["then"]
        for result in self.results.values():
            one = result.case
            if name == "now" and any("{old}" in command for command in one.commands):
                for maker in filter(partial(needs, one), self.cases):
                    self.done["then", maker.name].wait()
            commands = tuple(command.replace("{old}", str(old.place)) for command in one.commands)
            if name == "now":
                commands = () if one.name in GONE else tuple(map(said_now, commands))
            try:
                printed = tree.run(commands)
                result.seconds[name] = sum(command["seconds"] for command in printed)
                result.facts[name] = facts_of(tree.place, printed, one.outputs)
                result.failed = result.failed or failure(name, commands, printed)
            except Exception as error:
                traceback.print_exc()
                result.failed = f"{name}: {error}"
            self.done[name, one.name].set()

    def finished(self) -> Iterator[Result]:
        """Give the results, each as soon as both trees have it."""
        for result in self.results.values():
            for name in self.trees:
                self.done[name, result.case.name].wait()
            yield result


def failure(name: str, commands: Iterable[str], printed: list[dict[str, Any]]) -> str:
    """Say which command failed: a case of failures would be equal in both trees and say nothing."""
    for command, one in zip(commands, printed, strict=True):
        expected = -signal.SIGKILL if command.startswith("killed ") else 0
        if one["status"] != expected:
            last = (one["err"].strip().splitlines() or ["nothing on standard error"])[-1]
            return f"{name}: status {one['status']} of '{command}': {last}"
    return ""


def check(cases: list[Case], old: Path, new: Path, place: Path, tolerances: bool = False) -> list[Result]:
    """Run the cases in both trees, print a line for each, and give the results."""
    shutil.rmtree(place, ignore_errors=True)
    places = {name: place / name for name in ("then", "now")}
    for one in places.values():
        one.mkdir(parents=True)
        write_texts(one)
    trees = {"then": Tree(old, places["then"]), "now": Tree(new, places["now"])}
    results = []
    for result in Race(cases, trees).finished():
        if not result.failed and result.case.name not in GONE:
            later = result.case.later if tolerances else None
            result.differing = differences(result.facts["then"], result.facts["now"], later)
        print_result(result)
        results.append(result)
    for tree in trees.values():
        tree.close()
    return results


def print_result(result: Result) -> None:
    """Print the line of a case."""
    one, verdict = result.case, result.verdict
    seconds = [f"{result.seconds.get(name, 0):6.1f}" for name in ("then", "now")]
    what = {"failed": f"FAILED {result.failed}", "differs": "DIFFERS"}.get(verdict, verdict)
    what = f"{what} on purpose: {(GONE | CHANGED)[one.name]}" if verdict in ("gone", "changed") else what
    if result.differing:
        what += f" {result.differing[0]} ({len(result.differing)} facts)"
    num_facts = len(result.facts.get("then", {}))
    print(f"{one.name:24} {seconds[0]} {seconds[1]} {num_facts:6} facts  {what}", flush=True)


def print_totals(results: list[Result], seconds: float) -> None:
    """Print how many cases are what, and the seconds of both trees."""
    verdicts = [result.verdict for result in results]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
    then, now = (sum(result.seconds.get(name, 0) for result in results) for name in ("then", "now"))
    facts = sum(len(result.facts.get("then", {})) for result in results)
    print(
        f"\n{len(results)} cases, {facts} facts: {counts}. {then:.0f} s then, {now:.0f} s now, {seconds:.0f} s in all."
    )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("check", "record", "drive"))
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="cases whose names begin so")
    parser.add_argument("--old", type=Path, default=ROOT / "build" / "old", help="worktree of 0.2.0")
    parser.add_argument("--new", type=Path, default=ROOT, help="worktree that is checked")
    parser.add_argument("--place", type=Path, default=ROOT / "build" / "same", help="where the trees work")
    parser.add_argument("--tolerances", action="store_true", help="allow what each case allows later")
    given = parser.parse_args()
    if given.command == "drive":
        return drive()
    if not (given.old / "src" / "bnce").is_dir():
        sys.exit(f"'{given.old}' has no code: git worktree add build/old {OLD_COMMIT}, or give --old DIR.")
    began = time.monotonic()
    results = check(
        chosen(CASES, given.only), given.old.resolve(), given.new.resolve(), given.place.resolve(), given.tolerances
    )
    print_totals(results, time.monotonic() - began)
    sys.exit(any(result.verdict in ("differs", "failed") for result in results))


if __name__ == "__main__":
    main()
