"""Does this tree still answer what version 0.2.0 answered? 102 cases, run by both trees and compared.

    git worktree add build/old c547e02                             # once: the code of 0.2.0
    python benchmarks/same.py check                                # two minutes on two cores
    python benchmarks/same.py check --only rescore --only 'train*lstm'
    python benchmarks/same.py check --tolerances                   # numbers may move as far as each case allows
    python benchmarks/same.py record                               # check, and write benchmarks/results/same.jsonl

`check` prints a line per case: the seconds of 0.2.0 and of this tree, how many facts were compared, and ok, what
differs, or why the case is gone or changed on purpose. Status 1 if anything differs that is not declared below CASES.
What both trees wrote stays in build/same, with every fact that differs in build/same/differences.txt.

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
import platform
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import tomllib
import traceback
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from provenance import commit  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "same.jsonl"
OLD_COMMIT = "c547e02"
MAX_SECONDS = 300  # of a command
CONVERTED = "of-0.2.0"  # where this tree has runs of 0.2.0

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
SAME_MEAN = Within()  # of numbers of several seeds: means within two standard errors
# Of a trained run: its weights cannot keep their bits once code is replaced, its perplexity after 300 steps can. In
# float64 all figures can, which differ by 1e-14 after 150 steps: there another order of sums has no time to grow.
OF_TRAINING = {
    "*/sha256": ANYTHING,
    "runs/*-double/*": Within(relative=1e-11),
    "*histogram*": ANYTHING,
    "*worst_sentences*": ANYTHING,
    "*detail*": Within(relative=1e-2),  # of few words each
    "*log_z_std*": Within(relative=1e-2),
    "*grad_norm": ANYTHING,
    "*err": Within(relative=2e-3),  # three digits are printed
    "*": Within(relative=1e-3),
}
OF_SEEDS = {"means/*": SAME_MEAN, "*num_parameters": Within(), "*/step": Within(), "*": ANYTHING}
# Of a run in which the last digit grows to a percent. The first steps of row-wise Adagrad have the size of its rate,
# 0.4, be a row's gradient large or nearly 0, and each unit of the feed-forward network is on or off. If its first
# weights are moved by 2e-7 of themselves, 0.2.0 differs from itself by 1.6% of PPLf, and this tree by 1.2%; with
# a tenth of the rate, or where a row's squares begin at 1e-4, by 1e-7.
OF_FIRST_STEPS = {**OF_TRAINING, "*detail*": Within(5e-2), "*log_z_std*": Within(5e-2), "*err": Within(2e-2)}
OF_FIRST_STEPS["*"] = Within(2e-2)
PERPLEXITIES = {"*histogram*": ANYTHING, "*": Within(relative=1e-6)}
# A word that is nearly sure has a logarithm near 0, which is a difference of two scores near 10 in float32.
OF_WORDS = {"*": Within(relative=1e-6, absolute=1e-5)}
OF_LISTS = {"*": Within(absolute=1e-4)}
OF_CALIBRATION = {"*/sha256": ANYTHING, "*": Within(relative=1e-5)}
OF_TABLES = {"*": Within(relative=2e-6, absolute=3e-5)}
OF_DOCUMENTS = {"*": Within(relative=1e-5)}
OF_EXPORTS = {"*/sha256": ANYTHING, "*.onnx/sha256": ANYTHING, "*": Within(relative=1e-6, absolute=1e-5)}


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
        found = (re.findall(r"(?:--out|--save-weights|^settle) (\S+)", command) for command in self.commands)
        return tuple(dict.fromkeys(place for places in found for place in places))


SETS = "model.embedding_size=16 model.hidden_size=24 model.bottleneck_size=20 optimiser.warmup_steps=5"
SETS += " training.batch_size=16 training.num_steps=10 training.epochs=1"


def cases(later: Mapping[str, Within], commands: Mapping[str, str | tuple[str, ...]], also: str = "") -> list[Case]:
    """Make cases of one kind; what they all have is written once, and `+a.b=c` stands for `--set a.b=c`."""
    made = []
    for name, given in commands.items():
        all_of_it = (f"{one} {also}" for one in ((given,) if isinstance(given, str) else given))
        made.append(Case(name, tuple(map(_written, all_of_it)), later))
    return made


def _written(command: str) -> str:
    """Write `+a.b=c` as an option; a model without a bottleneck refuses its size."""
    has_none = re.search(r"--model (rnn|lstm|transformer)\b", command)
    command = command.replace(" +model.bottleneck_size=20", "") if has_none else command
    return command.strip().replace(" +", " --set ")


SMALL = " ".join(f"+{setting}" for setting in SETS.split())
WIKI = f"train wiki --corpus corpora/plain {SMALL} --device cpu --json"
SETTLED = "settled/relu-lstm settled/softmax settled/chunk settled/rnn"
SPLITS = "--valid valid.txt --test test.txt"
OFTEN = "+training.evaluations_per_epoch=6 +training.checkpoint_seconds=0.01"


DRAWN = {
    "drawn": "--model relu-lstm --loss bnce +loss.num_noise=50 +loss.learn_log_z=true",
    "nce": "--model relu-lstm --loss nce +loss.num_noise=20",
    "snce": "--model relu-lstm --loss snce +loss.num_noise=50",
    "sampled": "--model ffnn --loss sampled-softmax +loss.num_noise=100 +loss.replacement=false",
}


def train(out: str, options: str) -> tuple[str, str]:
    """Train a run, and the beginning of the same in float64."""
    return f"{WIKI} {options} --out runs/{out}", train_double(out, options)


def train_double(out: str, options: str) -> str:
    """Train half an epoch in float64."""
    return f"double {WIKI} {options} --out runs/{out}-double +training.epochs=0.5"


def train_seeds(out: str, options: str) -> tuple[str, ...]:
    """Train a run with several seeds."""
    return tuple(f"{WIKI} {options} --out runs/{out}-{seed} +training.seed={seed}" for seed in range(1, 6))


# The names of cases begin with their command; {old} is where 0.2.0 works, whose runs `convert` gives this tree.
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
            "train rnn": train("rnn", "--model rnn --loss bnce"),
            "train relu-rnn": train(
                "relu-rnn", "--model relu-rnn --loss bnce +optimiser.name=sgd +optimiser.clip_norm=1"
            ),
            "train lstm": train("lstm", "--model lstm --loss bnce +training.reset_rate=0.2 +model.num_layers=2"),
            "train relu-lstm": train("relu-lstm", "--model relu-lstm --loss bnce +optimiser.learning_rate=0.02"),
            "train transformer": train(
                "transformer",
                "--model transformer --loss bnce +model.num_layers=2 +model.num_heads=2 +model.embedding_size=24",
            ),
            "train softmax": train("softmax", "--model relu-lstm --loss softmax"),
            "train adaptive-softmax": train("adaptive", "--model relu-lstm --loss adaptive-softmax"),
            "train self-normalised": train("self", "--model relu-lstm --loss self-normalised-softmax"),
            "train chunk-bnce": train("chunk", "--model relu-lstm --loss chunk-bnce"),
            "train chunk-softmax": train(
                "chunk-softmax", "--model lstm --loss chunk-softmax +optimiser.schedule=cosine"
            ),
            "train two groups": train("groups", "--model relu-lstm --loss chunk-bnce +training.groups=2"),
            "train with equal draws": train_double("equal", DRAWN["drawn"]),
            "train nce with equal draws": train_double("equal-nce", DRAWN["nce"]),
            "train snce with equal draws": train_double("equal-snce", DRAWN["snce"]),
            "train sampled-softmax with equal draws": train_double("equal-sampled", DRAWN["sampled"]),
            "train on a part": train("part", "--model ffnn --loss bnce +training.max_train_tokens=8000"),
            "train --init": f"train --init runs/relu-lstm --corpus corpora/shards --out runs/init {SMALL} "
            "--device cpu --json",
            "train from a run": f"train --init runs/relu-lstm --corpus corpora/plain --out runs/longer {SMALL} "
            "--device cpu --json",
            "train killed, resumed": (
                f"killed {WIKI} --model relu-lstm --loss bnce --out runs/killed {OFTEN} +optimiser.learning_rate=0.02",
                "train --out runs/killed --resume --device cpu --json",
            ),
        },
    ),
    *cases(OF_FIRST_STEPS, {"train ffnn": train("ffnn", "--model ffnn --loss bnce")}),
    *cases(
        OF_SEEDS,
        {
            "train with dropout": train_seeds("dropout", "--model lstm --loss bnce +model.dropout=0.1"),
            "train with drawn words": train_seeds("drawn", DRAWN["drawn"]),
            "train nce": train_seeds("nce", DRAWN["nce"]),
            "train snce": train_seeds("snce", DRAWN["snce"]),
            "train sampled-softmax": train_seeds("sampled", DRAWN["sampled"]),
        },
    ),
    *cases(
        OF_TRAINING,
        {"train messages": f"{WIKI} --model rnn --loss softmax --out runs/told".replace("--json", "")},
    ),
    *cases(
        {"*": Within(absolute=1e-5)},
        {
            "ngram": "ngram train.txt --vocab runs/relu-lstm --out trigram.arpa --json",
            "ngram pruned": "ngram corpora/cased --order 4 --prune 0,0,1,1 --out fourgram.arpa --json",
        },
    ),
    *cases(
        {"*weight*": Within(absolute=1e-4), "*.toml*": Within(absolute=1e-4), "*": Within(relative=1e-5)},
        {
            "interpolate n-gram": "interpolate runs/relu-lstm trigram.arpa --valid lines.txt --out mixture.toml --json",
            "interpolate runs": "interpolate runs/lstm runs/rnn runs/chunk --valid lines.txt --mode normalised --json",
        },
        also="--device cpu",
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
            "evaluate n-gram": "evaluate trigram.arpa --text lines.txt --json",
            "evaluate messages": "evaluate runs/relu-lstm --detail",
        },
        also="--device cpu",
    ),
    *cases(
        OF_CALIBRATION,
        {
            "calibrate constant": "calibrate runs/relu-lstm --text valid.txt --out runs/constant --json",
            "calibrate head": "calibrate runs/softmax --text valid.txt --kind head --out runs/head --json",
            "calibrate by sentence": "calibrate runs/lstm --text valid.txt --by-sentence --out runs/by-sentence --json",
        },
        also="--device cpu",
    ),
    *cases(
        OF_WORDS,
        {
            "score unnormalised": "score runs/relu-lstm lines.txt --json",
            "score a run of 0.2.0": "score {old}/runs/relu-lstm lines.txt --json",
            "score calibrated": "score runs/constant lines.txt --json",
            "score with a head": "score runs/head lines.txt --per-word",
            "score normalised": "score runs/lstm lines.txt --mode normalised --json",
            "score checked": "score runs/relu-lstm lines.txt --mode checked --json",
            "score kenlm": "score runs/relu-rnn lines.txt --per-word",
            "score srilm": "score runs/relu-lstm lines.txt --per-word --layout srilm",
            "score jsonl": "score runs/transformer lines.txt --jsonl",
            "score carry": "score runs/rnn lines.txt --carry --per-word",
            "score split": "score runs/relu-lstm docs.txt --split --per-word",
            "score spell": "score runs/relu-lstm lines.txt --spell --per-word",
            "score adaptive": "score runs/adaptive lines.txt --mode normalised --per-word",
            "score n-gram": "score fourgram.arpa lines.txt --per-word",
            "score mixture": "score mixture.toml lines.txt --per-word",
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
            "rescore n-gram": "rescore fourgram.arpa nbest/dev.jsonl --json --out best-by-ngram.txt",
        },
        also="--device cpu",
    ),
    *cases(
        OF_TABLES,
        {
            "surprisal TSV": "surprisal runs/relu-lstm words.tsv --text story --out surprisal.tsv --json",
            "surprisal Parquet": "surprisal runs/transformer words.parquet --text story --out surprisal.parquet --json",
            "surprisal glued": "surprisal runs/lstm words.tsv --glued glued --spell --out glued.tsv --json",
            "surprisal text": "surprisal runs/rnn docs.txt --unnormalised --entropy --out surprisal-of-text.csv --json",
            "surprisal mixture": "surprisal mixture.toml words.tsv --text story --out surprisal-of-mixture.tsv",
        },
        also="--device cpu",
    ),
    *cases(
        OF_DOCUMENTS,
        {
            "filter jsonl.gz": "filter runs/relu-lstm shards --field body --out filtered/all --json",
            "filter Parquet": "filter runs/transformer web.parquet --max-perplexity 90 --out filtered/parquet --json",
            "filter --rest": "filter runs/lstm shards --field body --max-perplexity 90 --rest --out filtered/b --json",
            "filter --shard": "filter runs/ffnn shards --field body --shard 1/2 --out filtered/half --json",
            "filter n-gram": "filter trigram.arpa shards --field body --scores-only --out filtered/ngram --json",
            "filter --dry-run": "filter runs/relu-lstm shards --field body --dry-run --json",
        },
        also="--device cpu",
    ),
    *cases(
        OF_WORDS,
        {
            "generate": "generate runs/relu-lstm --prompt 'Stapuploro pli' -n 4 --seed 3 --temperature 0.9 --json",
            "generate next": "generate runs/transformer --prompt 'Stapuploro pli' --next 12 --json",
            "generate mixture": "generate mixture.toml -n 2 --max-words 10 --top-k 40",
        },
        also="--device cpu",
    ),
    *cases(
        OF_EXPORTS,
        {
            "vocab add": "vocab runs/relu-lstm --add add.txt --out runs/added --json",
            "export ONNX": ("export runs/relu-lstm --to onnx --out exported/lstm --json", "run-onnx exported/lstm"),
            "export ONNX transformer": (
                "export runs/transformer --to onnx --out exported/transformer --json",
                "run-onnx exported/transformer",
            ),
            "export transformers": (
                "export runs/relu-rnn --to transformers --out exported/hub --json",
                "run-transformers exported/hub",
            ),
            "export safetensors": (
                "export runs/lstm --to safetensors --rows int8 --out exported/small --json",
                "score exported/small lines.txt --device cpu --per-word",
            ),
            "serve": "ask-server runs/relu-lstm",
        },
    ),
    *cases(
        {"*": Within(relative=1e-3)},
        {
            "compare": (
                "settle settled runs/relu-lstm runs/softmax runs/chunk runs/rnn",
                f"compare {SETTLED} --out report",
            ),
            "compare JSON": f"compare {SETTLED} --json",
            "info run": "info settled/relu-lstm",
            "info corpus": "info corpora/plain --batch-size 50 --json",
            "info recipe": "info obwb --model relu-lstm --json",
        },
    ),
    *cases(
        OF_TRAINING,
        {
            "experiment": f"experiment ltcb --corpus corpora/plain --models rnn --losses softmax,bnce {SMALL} "
            "--device cpu --json --out experiment",
        },
    ),
]

# How this tree is told what 0.2.0 was told otherwise, wherever a command has it.
SAID_NOW: dict[str, str] = {
    "--am-scores ": "--scores am=",
    "--lm-scores ": "--scores lm=",
    "--jsonl": "--layout jsonl",
    "--carry ": "--carry text ",
    "--models rnn --losses softmax,bnce": "--rows rnn-softmax,rnn-bnce",
    "--text story --out": "--text story --mode normalised --out",
    "--glued glued": "--glued glued --mode normalised",
    "--unnormalised": "--mode unnormalised",
}
# How this tree prints what 0.2.0 printed otherwise: expressions, and what they are replaced by.
PRINTED_NOW: dict[str, str] = {
    r"Validation PPLf is \S+ at step \d+, worse than at": "Validation PPLf has become worse than at",
    r"--threads sets": "OMP_NUM_THREADS sets",
    r"use --carry for that": "use --carry text for that",
    r"Wrote table.md, table.tex, table.csv, table.json, report.html": "Wrote report.html, table.md and table.json",
    r" Words corrected: \d+; broken: \d+; inserted words removed: \d+; added: \d+\.": "",
    r"(?m)^ *(unit|tables|wire|row_capacity|tokens_per_word|num_words|ppl_[nf]_word): .*\n": "",
    r"(?m)^ *(remove_hits|num_classes|softmax): .*\n": "",
    r"(?m)^  corpus_sha256\n(?:    \w+: [0-9a-f]{64}\n)+": "",
    r"max_test_tokens: 0": "max_test_tokens: 50,000",
    r"(?m)^ *budget: .*\n": "",
    r"(http://127\.0\.0\.1:\d+) on CPU, 1 thread": r"\1 on cpu",
}
# Cases that this tree cannot do any more, and why.
GONE: dict[str, str] = {}
# Keys of records that this tree does not have any more, and why: these may be absent, and nothing else may.
ONLY_WORDS = "tokens are words"
ALL_TABLES = "every process has all tables"
ONE_MANIFEST = "run.json, and model.json of an export, have the hashes of all files, and what is fixed of a run"
SHARED_UNKNOWN = "new words start as <unk> and share its probability"
ONE_MODE = "every command has one default, takes --mode, and tells which mode was used"
NO_EXPORTED_MODELS = "graphs are for other programs, with rows as they are in the run; a run is used as it is"
OF_THE_WHOLE = ("run", "out", "perplexity", "unknown_rate", "parts/*", "problems", "num_words", "num_tokens")
OF_THE_WHOLE += ("num_unknown", "num_empty", "num_problems")
FEWER_FIGURES = "documents are told by few percentiles, as in the text"
TOLD_OF_LISTS = "rescoring says what it left out and what it was told of"
OWN_RECORD = "a model, a loss and an optimiser have the settings that they use"
GONE_KEYS: dict[str, str] = {
    **dict.fromkeys(
        [
            f"model/{key}"
            for key in ("bottleneck_size", "order", "num_layers", "num_heads", "context", "embedding_range")
        ]
        + [
            f"loss/{key}"
            for key in ("num_noise", "noise", "noise_power", "replacement", "penalty", "cutoffs", "div_value")
        ]
        + [f"loss/{key}" for key in ("log_z", "learn_log_z")]
        + [f"optimiser/{key}" for key in ("body_learning_rate", "initial_accumulator", "beta2", "eps")]
        + ["hub/config.json/order", "hub/config.json/num_heads"],
        OWN_RECORD,
    ),
    "unit": ONLY_WORDS,
    "tokens_per_word": ONLY_WORDS,
    "num_words": ONLY_WORDS,
    "ppl_n_word": ONLY_WORDS,
    "ppl_f_word": ONLY_WORDS,
    "ppl_n_word_by_sentence": ONLY_WORDS,
    "ppl_f_word_by_sentence": ONLY_WORDS,
    "pieces": ONLY_WORDS,
    "known_words": ONLY_WORDS,
    "has_pieces": ONLY_WORDS,
    "oov_share_of": ONLY_WORDS,
    "neighbours": SHARED_UNKNOWN,
    "dropped": "words are added, never dropped",
    "not_known": "words are added, never dropped",
    "num_unknown_words": "only --spell shares <unk>",
    "tables": ALL_TABLES,
    "wire": ALL_TABLES,
    "row_capacity": ALL_TABLES,
    "num_classes": "class-softmax is a loss of benchmarks/losses",
    "loss/softmax": "there is one softmax, and no setting that chooses",
    "remove_hits": "hits are left out of words drawn without replacement, and never else",
    "json/context": "surprisals are predicted from the words of the text",
    "json/base": "surprisals are in bits",
    "json/ends": "surprisals are of words",
    "carry": "rescoring has no context",
    "num_documents": "rescoring has no context",
    "num_cached": "rescoring has no cache",
    "changes": "rescoring counts the utterances that changed, not their words",
    "normaliser.json": ONE_MANIFEST,
    "lexicon.json": ONE_MANIFEST,
    "corpus_sha256": ONE_MANIFEST,
    "record_sha256": ONE_MANIFEST,
    "model.json/sha256": ONE_MANIFEST,
    "training/budget": "a budget is a number of seconds",
    "normalised": ONE_MODE,
    "probabilities": ONE_MODE,
    "spell": "filter spells no words",
    "precision": "filter tells how a precision was checked",
    "log10_prob": "words that follow have natural logarithms",
    "quantiles": FEWER_FIGURES,
    "json/counts": FEWER_FIGURES,
    "json/percentiles": FEWER_FIGURES,
    "json/parts": FEWER_FIGURES,
    "json/limits": FEWER_FIGURES,
    "json/rows": NO_EXPORTED_MODELS,
    "max_row_error": NO_EXPORTED_MODELS,
    **dict.fromkeys(
        ["enter.onnx", "step.onnx", "vocab.index.npy", "model.json/rows", "model.json/weights", "num_words_seen"]
        + [
            f"exported/{run}/{name}"
            for run in ("lstm", "transformer")
            for name in ("counts.npy", "spelling.safetensors")
        ],
        NO_EXPORTED_MODELS,
    ),
    **dict.fromkeys(["json/check/log_z", "json/check/log_z_mean", "json/check/log_z_std"], FEWER_FIGURES),
}
# What is another on purpose, as 'case: fact', both patterns, and why.
ON_PURPOSE: dict[str, str] = {
    "*: *config.toml/format": "the settings are records, and are written as format 3",
    "*: *loss/penalty": OWN_RECORD,
    "*: *training/epochs": "epochs may have a fraction",
    "*: *json/mode": ONE_MODE,
    "serve: json/3/mode": ONE_MODE,
    "surprisal *: json/check/*": ONE_MODE,
    "rescore --weights: err": ONE_MODE,
    "score checked: json/check/*": "the first words are compared, not some of all",
    "*: *json/left_out": TOLD_OF_LISTS,
    "*: *ignores_case": TOLD_OF_LISTS,
    "rescore tune: json/tuning/changes/*": TOLD_OF_LISTS,
    "surprisal *: err": "a text that looks like several is told of, and the mode in other words",
    "filter *: json/percentiles/*": FEWER_FIGURES,
    "filter *: json/percentiles_are_exact": FEWER_FIGURES,
    "filter *: json/precision_check": "filter tells how a precision was checked",
    **{f"filter --dry-run: json/{name}": "a sample is told as the whole is" for name in OF_THE_WHOLE},
    "score n-gram: err": "how many words an n-gram model sees is told",
    "export ONNX transformer: */tolerance": "the inputs of the comparison are others",
    "export ONNX transformer: */state_known_after/*": "a number of words is whole, which our inputs are not",
    "generate next: */log_prob": "words that follow have natural logarithms",
    "export transformers: *.py/sha256": "the model's code is in one file for each thought",
    "*: *loss/beta": "the chunk losses are one",
    "train *: */warnings": "the warning of a run that is worse than its start names no step",
    "compare JSON: json/conditions/statements": OWN_RECORD,
    "compare: *conditions/statements": OWN_RECORD,
    "compare: 1/out": OWN_RECORD,
    "compare: report/table.md": OWN_RECORD,
    "info run: *": OWN_RECORD,
    "experiment: err": OWN_RECORD,
    "info recipe: *": OWN_RECORD,
    "*: */training/max_test_tokens": "training evaluates the first 50,000 tokens of test",
    "train on a part: *": "words that are never trained on share Good-Turing's probability",
    "train --init: *": SHARED_UNKNOWN,
    "vocab add: *": SHARED_UNKNOWN,
    "rescore ESPnet: */ln_prob": "a Transformer reads hypotheses side by side: equal to 1e-7, summed in another order",
    "rescore ESPnet: */total": "a Transformer reads hypotheses side by side: equal to 1e-7, summed in another order",
    "*: */ppl_[nf]_by_sentence": ONLY_WORDS,
    "*: */corpus.json/sha256": "a record of fewer keys",
    "export *: */model.json/files/*": ONE_MANIFEST,
    "export *: */model.json/format": ONE_MANIFEST,
    "export *: */model.json/sha256": ONE_MANIFEST,
    "*: *run.json/*": ONE_MANIFEST,
    "export *: */num_bytes": "a record of fewer keys",
    "export *: */model_bytes": "a record of fewer keys",
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
    write_table(place, Writer(14))
    (place / "add.txt").write_text("stapuli\nplimura\nnetrano\n", encoding="utf-8")


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


def write_table(place: Path, writer: Writer) -> None:
    """Write words in the rows of a table, beside cells that must stay as they are, as TSV and as Parquet."""
    import pyarrow
    import pyarrow.parquet

    rows = []
    for story, document in enumerate(writer.documents(6), start=1):
        for place_in, word in enumerate(document.split()):
            glued = word.endswith(",") and place_in % 2 == 0
            cells = [f"{story:02d}", f"{place_in}.50", " NA" if place_in % 9 == 4 else f"{place_in * 7.1:.3f}", 'é;"x"']
            parts = [(word[:-1], 0), (",", 1)] if glued else [(word, 0)]
            rows += [[*cells, part, str(is_glued)] for part, is_glued in parts]
    names = ["story", "place", "ms", "note", "word", "glued"]
    lines = ["\t".join(row) for row in [names, *rows]]
    (place / "words.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    pyarrow.parquet.write_table(pyarrow.table(columns), place / "words.parquet")


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
        env |= {"HF_HOME": str(place / ".hub"), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
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
    for name in ("rapidfuzz", "kenlm", "pyarrow.parquet", "pyarrow.json", "pyarrow.csv", "torch.utils.tensorboard"):
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
    if kind == "double":
        compute_in_float64()
    return call_bnce(rest if kind in ("killed", "double") else arguments)


def call_bnce(arguments: list[str]) -> int:
    """Call the command line, and give its status."""
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


def compute_in_float64() -> None:
    """Let models of this process be of float64, which the command line does not offer, and draw the same words."""
    import torch

    from bnce import noise
    from bnce.language_model import LanguageModel

    make, drawing = LanguageModel.__init__, torch.Generator().manual_seed(5)

    def make_double(self: LanguageModel, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        self.double()

    def sample(self: noise.Noise, shape: Iterable[int], *_: Any) -> torch.Tensor:
        slot = torch.randint(len(self.keep_V), tuple(shape), generator=drawing)
        coin = torch.rand(tuple(shape), dtype=torch.float32, generator=drawing)
        return torch.where(coin < self.keep_V[slot], slot, self.alias_V[slot])

    LanguageModel.__init__ = make_double
    noise.Noise.sample = sample
    torch.set_default_dtype(torch.float64)


def ask_server(arguments: list[str]) -> None:
    """Start a server, ask it for everything it answers, and end it."""
    from bnce.serve.messages import NextRequest

    reading, writing = os.pipe()
    server = os.fork()
    if server == 0:
        os.dup2(writing, 1)
        os._exit(call_bnce(["serve", *arguments, "--port", "0", "--device", "cpu", "--json"]))
    os.close(writing)
    url = json.loads(os.fdopen(reading).readline())["url"].rstrip("/")
    exactly = {"mode": "normalised"} if "mode" in NextRequest.model_fields else {}  # what 0.2.0 does unless told
    hypotheses = [
        {"text": "stapuploro pli", "am": -3.5, "lm": -9.25},
        {"text": "Stapuploro samu", "am": -3.0, "lm": -9.5},
    ]
    questions: list[tuple[str, Any]] = [
        ("/score", {"sentences": ["Stapuploro pli netra, zzzz.", "Fo."], "exact": True}),
        ("/score", {"texts": ["Stapuploro pli. Samu netra!"], "mode": "normalised", "spell": True}),
        ("/rescore", {"utterances": [{"id": "u", "hypotheses": hypotheses}], "lm_weight": 0.5}),
        ("/next", {"prompt": "Stapuploro", "k": 7} | exactly),
    ]
    for path, question in questions:
        body, headers = json.dumps(question).encode(), {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url + path, body, headers), timeout=60) as answer:
            print(json.dumps(json.load(answer)))
    os.kill(server, signal.SIGTERM)
    os.waitpid(server, 0)


def run_onnx(arguments: list[str]) -> None:
    """Run every graph in a directory on inputs of its declared shapes: small whole numbers, or numbers below 1."""
    import numpy as np
    import onnxruntime

    graphs = {}
    for path in sorted(Path(arguments[0]).rglob("*.onnx")):
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        inputs = {}
        for number, one in enumerate(session.get_inputs()):
            shape = [size if isinstance(size, int) else 3 for size in one.shape]
            values = (np.arange(math.prod(shape)) * 7 + number) % (3 if "int" in one.type else 11)
            inputs[one.name] = values.reshape(shape).astype("int64" if "int" in one.type else "float32")
            if "int" not in one.type:
                inputs[one.name] = inputs[one.name] / 20
        outputs = dict(zip([one.name for one in session.get_outputs()], session.run(None, inputs), strict=True))
        found = {name: [list(value.shape), *value.ravel()[:200].tolist()] for name, value in outputs.items()}
        graphs[path.name] = {"inputs": sorted(inputs), **found}
    print(json.dumps({"graphs": graphs}))


def run_transformers(arguments: list[str]) -> None:
    """Load an exported model as its users do, and ask it for logits."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(arguments[0], trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(arguments[0])
    ids = tokenizer("Stapuploro pli netra, zzzz.", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits_TV = model(ids).logits[0]
    print(json.dumps({"ids": ids[0].tolist(), "shape": list(logits_TV.shape), "logits": logits_TV[:, :40].tolist()}))


def settle(arguments: list[str]) -> None:
    """Copy runs, with one number for every time and speed in their records, so that tables of them can be compared."""

    def settled(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: settled(name, one) for name, one in value.items()}
        return (1000 if isinstance(value, float | int) else "settled") if VOLATILE.fullmatch(key) else value

    out, *runs = map(Path, arguments)
    for run in runs:
        copy = out / run.name
        shutil.copytree(run, copy)
        for path in copy.glob("*.json*"):
            texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            path.write_text("".join(json.dumps(settled("", json.loads(text))) + "\n" for text in texts))


def convert(arguments: list[str]) -> None:
    """Write a run of 0.2.0 in the form of this tree, with the settings that are left."""
    import numpy as np
    from safetensors.torch import load_file

    from bnce import Normaliser
    from bnce.api import load_recipe
    from bnce.corpus.vocabulary import Vocabulary
    from bnce.runs.directory import Run
    from bnce.runs.model_file import save_weights

    source, target = map(Path, arguments)
    then = tomllib.loads((source / "config.toml").read_text())
    read = partial(load_recipe, "wiki", model=then["model"]["name"], loss=then["loss"]["name"], corpus=then["corpus"])
    given = [(table, key, value) for table, one in then.items() if isinstance(one, dict) for key, value in one.items()]
    settings = []
    for table, key, value in given:
        setting = f"{table}.{key}={value if isinstance(value, float) else json.dumps(value)}"
        with suppress(ValueError):  # of another loss or model, or of none any more
            read(settings=[setting])
            settings.append(setting)
    target.mkdir(parents=True)
    shutil.copyfile(source / "spelling.safetensors", target / "spelling.safetensors")
    vocabulary = Vocabulary.read(source / "vocab.txt")
    normaliser = Normaliser.from_dict(json.loads((source / "normaliser.json").read_text()))
    counts = np.load(source / "counts.npy", allow_pickle=False)
    run = Run.lay_out(target, read(settings=settings), vocabulary, normaliser, counts, texts={})
    save_weights(run, load_file(source / "model.safetensors"), step=1)


def borrow(arguments: list[str]) -> None:
    """Give a run the weights and figures that 0.2.0 has trained: later cases then use one model in both trees."""
    from safetensors.torch import load_file

    from bnce.runs.directory import Run
    from bnce.runs.model_file import read_metadata, save_weights

    source, target = map(Path, arguments)
    step = int(read_metadata(target / "model.safetensors")["step"])
    for name in ("metrics.jsonl", "evaluation.json"):
        shutil.copyfile(source / name, target / name)
    save_weights(Run.open(target), load_file(source / "model.safetensors"), step)


ACTIONS: dict[str, Callable[[list[str]], None]] = {
    "ask-server": ask_server,
    "borrow": borrow,
    "convert": convert,
    "run-onnx": run_onnx,
    "run-transformers": run_transformers,
    "settle": settle,
}


# -------------------------------------------------------------------------------------------------------------- facts


# What differs from time to time, or from place to place.
VOLATILE = re.compile(r".*seconds.*|speedup.*|date|\w+_per_second|peak_memory_bytes|command|commit|bnce")
TIMES = re.compile(
    r"(?<=127\.0\.0\.1:)\d+|\b\d[\d,.]*[KM]? ?(words/s|tokens/s|(words )?per second|ms|s|min|seconds|minutes|MB|GB)\b"
)
# What has times in it, is not read again, or is made for eyes.
SKIPPED = re.compile(
    r"(^|/)(\.bnce/.*|events\.out\.tfevents.*|state-.*|report\.html|.*\.(svg|png)|table\.(tex|csv)|experiment/.*\.md)$"
)


def facts_of(place: Path, printed: list[dict[str, Any]], outputs: Iterable[str]) -> Facts:
    """Gather all facts of a case."""
    facts: Facts = {}
    for number, command in enumerate(printed):
        prefix = f"{number}/" if len(printed) > 1 else ""
        facts[f"{prefix}status"] = command["status"]
        add_text(facts, prefix, command["out"], place)
        add_lines(facts, f"{prefix}err", command["err"], place)
    if len(printed) > 2:
        facts["means/ppl_f"] = [facts[f"{number}/json/test/ppl_f"] for number in range(len(printed))]
    for name in outputs:
        path = place / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and not SKIPPED.search(file.relative_to(place).as_posix()):
                add_file(facts, file.relative_to(place).as_posix(), file, place)
    return facts


def add_text(facts: Facts, prefix: str, text: str, place: Path) -> None:
    """Add what a command printed: an object, objects on lines, or text."""
    lines = text.splitlines()
    if lines and all(line.startswith("{") for line in lines):
        records = [json.loads(line) for line in lines]
        flatten(facts, f"{prefix}json", records[0] if len(records) == 1 else records, place)
    else:
        add_lines(facts, f"{prefix}out", text, place)


def add_lines(facts: Facts, name: str, text: str, place: Path) -> None:
    """Add a text as one fact, a list of lines, without times and without where it lies."""
    facts[name] = [TIMES.sub("TIME", line) for line in anywhere(text, place).split("\n")]


def anywhere(text: str, place: Path) -> str:
    """Leave out which tree a path leads to."""
    return re.sub(rf"{re.escape(str(place.parent))}/(old|new/{CONVERTED}|new)\b", "HERE", text)


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
    """Add what is in a file by its ending; of what is no record, every byte counts."""
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        add_tensors(facts, name, path)
    elif path.suffix == ".parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
        facts[f"{name}/types"] = str(table.schema.remove_metadata()).split("\n")
        facts.update({f"{name}/{key}": column for key, column in table.to_pydict().items()})
    elif path.suffix == ".json":
        flatten(facts, name, json.loads(content), place)
    elif path.suffix == ".jsonl":
        flatten(facts, name, [json.loads(line) for line in content.splitlines()], place)
    elif path.suffix == ".toml":
        flatten(facts, name, tomllib.loads(content.decode()), place)
    elif path.suffix == ".gz":
        add_lines(facts, name, gzip.decompress(content).decode(), place)
    elif path.suffix in (".txt", ".tsv", ".csv", ".md", ".arpa", ".trn"):
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


ABSENT = "is not there any more"


def differences(then: Facts, now: Facts, later: Mapping[str, Within] | None) -> dict[str, str]:
    """Give the facts that differ, and how; with `later`, those that differ by more than it allows."""
    found = {}
    for name in [*then, *(name for name in now if name not in then)]:
        if name not in now:
            found[name] = ABSENT
        elif name not in then:
            found[name] = f"is new: {shown(now[name])}"
        else:
            rule = next((rule for pattern, rule in (later or {}).items() if fnmatch.fnmatch(name, pattern)), None)
            if not equal(then[name], now[name], rule):
                found[name] = told(then[name], now[name], rule)
    return found


def reason(case: Case, name: str, how: str) -> str | None:
    """Say why a fact of a case is gone or another on purpose, if it is."""
    if how == ABSENT:
        return next((why for key, why in GONE_KEYS.items() if f"/{key}/" in f"/{name}/"), None)
    return next((why for both, why in ON_PURPOSE.items() if fnmatch.fnmatch(f"{case.name}: {name}", both)), None)


NUMBER = re.compile(r"[-+]?\d+\.\d+(?:[eE][-+]?\d+)?|[-+]?\d+[eE][-+]?\d+")


def equal(then: Any, now: Any, rule: Within | None) -> bool:
    """Compare two values; without a rule, to the bit. Whole numbers are always exact."""
    if rule is ANYTHING:
        return True
    if rule is SAME_MEAN and isinstance(then, list):
        return same_mean(then, now)
    if isinstance(then, float) and isinstance(now, float):
        same_bits = then.hex() == now.hex()
        return same_bits or (rule is not None and rule.allows(then, now))
    if isinstance(then, list) and isinstance(now, list):
        return len(then) == len(now) and all(equal(*pair, rule) for pair in zip(then, now, strict=True))
    if isinstance(then, str) and isinstance(now, str) and rule is not None and then != now:
        numbers = [[float(number) for number in NUMBER.findall(text)] for text in (then, now)]
        return NUMBER.sub("#", then) == NUMBER.sub("#", now) and equal(*numbers, rule)
    return type(then) is type(now) and bool(then == now)


def same_mean(then: list[float], now: list[float]) -> bool:
    """Compare the means of two samples: they are within two standard errors of their difference."""
    error = sum(statistics.variance(sample) / len(sample) for sample in (then, now)) ** 0.5
    return abs(statistics.mean(then) - statistics.mean(now)) <= 2 * error


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
    gone: dict[str, str] = field(default_factory=dict)  # facts that are gone on purpose, and why
    changed: dict[str, str] = field(default_factory=dict)  # facts that are others on purpose, and why

    @property
    def verdict(self) -> str:
        """Say it in a word."""
        if self.case.name in GONE:
            return "gone"
        if self.failed:
            return "failed"
        return "differs" if self.differing else "changed" if self.gone or self.changed else "ok"


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


def printed_now(text: str) -> str:
    """Print what 0.2.0 printed as this tree does."""
    for expression, replacement in PRINTED_NOW.items():
        text = re.sub(expression, replacement, text)
    return text


class Race:
    """Both trees on their way through the cases; each tells the other what it has done."""

    def __init__(self, cases: list[Case], trees: dict[str, Tree], borrows: bool) -> None:
        """`borrows` has this tree go on with what 0.2.0 trained: a difference in the last digit grows in training."""
        self.cases, self.borrows = cases, borrows
        self.results = {one.name: Result(one) for one in cases}
        self.done = {(name, one.name): threading.Event() for name in trees for one in cases}
        self.trees = trees
        for name in trees:
            threading.Thread(target=self._run, args=(name,), daemon=True).start()

    def _run(self, name: str) -> None:
        tree, old = self.trees[name], self.trees["old"]
        for result in self.results.values():
            one = result.case
            place = old.place
            if name == "new" and any("{old}" in command for command in one.commands):
                for maker in filter(partial(needs, one), self.cases):
                    self.done["old", maker.name].wait()
                place = tree.place / CONVERTED
                for run in re.findall(r"\{old\}/(\S+)", " ".join(one.commands)):
                    tree.run([f"convert {old.place / run} {place / run}"])
            commands = tuple(command.replace("{old}", str(place)) for command in one.commands)
            if name == "new":
                commands = () if one.name in GONE else tuple(map(said_now, commands))
            try:
                printed = tree.run(commands)
                for command in printed if name == "old" else ():
                    command |= {key: printed_now(command[key]) for key in ("out", "err")}
                result.seconds[name] = sum(command["seconds"] for command in printed)
                result.facts[name] = facts_of(tree.place, printed, one.outputs)
                result.failed = result.failed or failure(name, commands, printed)
                if name == "new" and self.borrows and one.name.startswith("train "):
                    self.done["old", one.name].wait()
                    for run in (place for place in one.outputs if not place.endswith("-double")):
                        tree.run([f"borrow {old.place / run} {tree.place / run}"])
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
            return f"in the {name} tree, status {one['status']}: {last} ({command})"
    return ""


def check(cases: list[Case], old: Path, new: Path, place: Path, tolerances: bool = False) -> list[Result]:
    """Run the cases in both trees, print a line for each, and give the results."""
    shutil.rmtree(place, ignore_errors=True)
    places = {name: place / name for name in ("old", "new")}
    for one in places.values():
        one.mkdir(parents=True)
        write_texts(one)
    trees = {"old": Tree(old, places["old"]), "new": Tree(new, places["new"])}
    results = []
    for result in Race(cases, trees, tolerances).finished():
        if not result.failed and result.case.name not in GONE:
            later = result.case.later if tolerances else None
            for name, how in differences(result.facts["old"], result.facts["new"], later).items():
                declared = result.gone if how == ABSENT else result.changed
                if why := reason(result.case, name, how):
                    declared[name] = why
                else:
                    result.differing.append(f"{name} {how}")
        print_result(result)
        with (place / "differences.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{result.case.name}: {line}\n" for line in result.differing)
        results.append(result)
    for tree in trees.values():
        tree.close()
    return results


def print_result(result: Result) -> None:
    """Print the line of a case."""
    one = result.case
    seconds = [f"{result.seconds.get(name, 0):6.1f}" for name in ("old", "new")]
    what = f"ok, {len(result.gone)} facts gone" if result.gone else "ok"
    if result.changed:
        what += f", {len(result.changed)} changed on purpose: {'; '.join(dict.fromkeys(result.changed.values()))}"
    what = {"failed": f"FAILED {result.failed}", "gone": f"gone: {GONE.get(one.name)}"}.get(result.verdict, what)
    if result.differing:
        what = f"DIFFERS {result.differing[0]} ({len(result.differing)} facts)"
    num_facts = len(result.facts.get("old", {}))
    print(f"{one.name:24} {seconds[0]} {seconds[1]} {num_facts:6} facts  {what}", flush=True)


def write_record(results: list[Result], command: str) -> None:
    """Write what both trees answered as digests and counts: enough to see later what changed, and no text."""
    origin = {
        "old": OLD_COMMIT,
        "new": commit(),
        "command": command,
        "machine": platform.processor() or platform.machine(),
    }
    origin |= {"python": platform.python_version()}
    origin |= {name: version(name) for name in ("torch", "numpy", "pyarrow", "onnxruntime", "transformers")}
    records: list[dict[str, Any]] = [origin]
    for result in results:
        record: dict[str, Any] = {"case": result.case.name, "commands": result.case.commands, "is": result.verdict}
        record |= {"why": sorted({*result.gone.values(), *result.changed.values()})}
        for name, facts in result.facts.items():
            digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
            record[name] = {"facts": len(facts), "sha256": digest, "counts": counts_of(facts)}
        records.append(record)
    RESULTS.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def counts_of(facts: Facts) -> dict[str, int]:
    """Give the numbers of things among the facts."""
    names = re.compile(r"(.*/)?(json|corpus\.json/splits/\w+)/(num_\w+|step)")
    return {name: value for name, value in facts.items() if names.fullmatch(name) and type(value) is int}


def print_totals(results: list[Result], seconds: float) -> None:
    """Print how many cases are what, and the seconds of both trees."""
    verdicts = [result.verdict for result in results]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
    then, now = (sum(result.seconds.get(name, 0) for result in results) for name in ("old", "new"))
    facts = sum(len(result.facts.get("old", {})) for result in results)
    print(f"\n{len(results)} cases, {facts} facts: {counts}.")
    print(f"{then:.0f} s in the old tree, {now:.0f} s in the new one, {seconds:.0f} s by the clock.")


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
    wanted = chosen(CASES, given.only)
    results = check(wanted, given.old.resolve(), given.new.resolve(), given.place.resolve(), given.tolerances)
    print_totals(results, time.monotonic() - began)
    if given.command == "record":
        write_record(results, shlex.join(["python", "benchmarks/same.py", *sys.argv[1:]]))
    sys.exit(any(result.verdict in ("differs", "failed") for result in results))


if __name__ == "__main__":
    main()
