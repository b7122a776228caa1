"""What surprisals explain of reading times: an n-gram model, ReLu-LSTMs, LSTMs and Transformers on Natural Stories.

    python benchmarks/reading.py --books DIR --wiki DIR --reading DIR --work DIR --stage clean             # CPU
    python benchmarks/reading.py --books DIR --wiki DIR --reading DIR --work DIR --stage prepare,ngram     # needs kenlm
    python benchmarks/reading.py --books DIR --wiki DIR --reading DIR --work DIR --stage prepare,train,surprisal  # GPU
    python benchmarks/reading.py --reading DIR --work DIR --stage fit --out FILE.md     # CPU, without models

Books and encyclopedia text (train-*.txt.xz; of the books also valid.txt.xz and test.txt.xz) are the training text.
The stage `clean` finds what they share with the stories (reading_text.py) and writes dropped.json. The reading
directory has natural-stories.tsv.xz and fit.py, which says how much a surprisal adds to position, length and frequency.
Each stage leaves what it made in the work directory and does not make it again. Models and seeds can be trained by
several processes at once (--only). The stage `fit` needs only dropped.json, trained/, commands/ and surprisals/.
--small tries everything in one to two minutes on a CPU: tiny models, two seeds, and the validation texts as training
text.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import lzma
import os
import shlex
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import NamedTuple

from reading_table import CONSTANT, GPT3, NGRAM, make_report, means_over_seeds, other_ways, parse
from reading_text import find_all, read_words, stories_of, write_json, write_kept

STAGES = ("clean", "prepare", "ngram", "train", "surprisal", "fit")
VOCAB_SIZE = 80_000
MAX_TEST_TOKENS = 400_000
TABLE = "natural-stories.tsv.xz"
BITS = "surprisal_bits"


class Trained(NamedTuple):
    """A model: how it is called, and the arguments of `bnce train`."""

    shown: str
    arguments: tuple[str, ...]
    settings: tuple[str, ...] = ()


MODELS = {
    "relu-lstm": Trained(
        "ReLu-LSTM 400–1600–400",
        ("wiki", "--model", "relu-lstm", "--loss", "chunk-bnce"),
        ("model.embedding_size=400", "model.hidden_size=1600", "model.bottleneck_size=400"),
    ),
    "lstm": Trained(
        "LSTM 512–1024",
        ("wiki", "--model", "lstm", "--loss", "chunk-bnce"),
        ("model.embedding_size=512", "model.hidden_size=1024"),
    ),
    "transformer": Trained("Transformer 512 × 6", ("transformer",)),
}
SETTINGS = (
    *("training.epochs=1", "training.evaluations_per_epoch=1"),
    *("training.max_valid_tokens=200000", f"training.max_test_tokens={MAX_TEST_TOKENS}"),
)
SMALL = (
    *("model.embedding_size=16", "model.hidden_size=16", "training.batch_size=16", "training.num_steps=10"),
    *("training.max_train_tokens=20000", "training.max_valid_tokens=2000", "training.max_test_tokens=2000"),
)


class Work:
    """A place for everything, and the commands that were run there."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.directory: Path = given.work
        self.vocab_size = 2000 if given.small else VOCAB_SIZE
        self.max_test_tokens = 2000 if given.small else MAX_TEST_TOKENS
        self.corpus = self.directory / "corpus"
        self.arpa = self.directory / f"{NGRAM}.arpa"

    def run(self, *arguments: object, makes: Path, name: str) -> str:
        """Run a command of bnce, unless what it makes is there; each has its file in commands/, so that processes can
        share the directory.
        """
        if makes.exists():
            return ""
        line = shlex.join(("bnce", *map(str, arguments)))
        started, begin = time.time(), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "bnce", *map(str, arguments)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{line}\n{done.stderr[-4000:]}")
        seconds = time.monotonic() - begin
        print(f"{seconds:7.1f} s  {line}", flush=True)
        write_json(
            self.directory / "commands" / f"{name}.json",
            {
                "command": line.replace(f"{self.directory}/", "WORK/"),
                "started": round(started),
                "seconds": round(seconds, 1),
                "said": done.stderr.splitlines()[-8:],
            },
        )
        return done.stdout

    def sources(self) -> dict[str, Path]:
        """List training text; of the small trial the smallest files."""
        given = self.given
        if given.books is None or given.wiki is None:
            raise SystemExit("Give --books DIR and --wiki DIR: the training text is read from them.")
        pattern = "valid.txt.xz" if given.small else "train-*.txt.xz"
        found: dict[str, Path] = {}
        for kind, directory in (("books", given.books), ("wiki", given.wiki)):
            paths = sorted(directory.glob(pattern))
            if not paths:
                raise SystemExit(f"{directory} has no {pattern}. Give the directory of the {kind} with --{kind}.")
            found |= {f"{kind}/{path.name}": path for path in paths}
        return found

    def words(self) -> Path:
        """Unpack the words with their reading times."""
        path = self.directory / "words.tsv"
        if not path.exists():
            part = path.with_suffix(f".{os.getpid()}")  # several processes may want it at once
            with lzma.open(self.given.reading / TABLE, "rb") as packed, open(part, "wb") as file:
                shutil.copyfileobj(packed, file)
            part.rename(path)
        return path


def clean(work: Work) -> None:
    """Find the lines of the training text that share nine words in a row with the stories."""
    path = work.directory / "dropped.json"
    if path.exists():
        return
    begin = time.monotonic()
    found = find_all(work.sources(), stories_of(read_words(work.given.reading / TABLE)), work.given.processes)
    write_json(path, found)
    for name, one in found.items():
        print(
            f"{name}: of {one['documents']:,} documents, {one['lines']:,} lines and {one['words']:,} words dropped "
            f"{one['documents_with_drops']:,} (some or all lines), {one['dropped_lines']:,} and "
            f"{one['dropped_words']:,}."
        )
    print(f"{time.monotonic() - begin:7.1f} s  clean", flush=True)


def prepare(work: Work) -> None:
    """Write the text that is left, and prepare the corpus of it."""
    if not work.corpus.exists():
        path = work.directory / "dropped.json"
        if not path.exists():
            raise SystemExit(f"{path} is not there. Run the stage clean first, or copy the file from where it was run.")
        dropped = json.loads(path.read_text(encoding="utf-8"))
        text = []
        for name, source in work.sources().items():
            if name not in dropped:
                raise SystemExit(f"{path} says nothing of {name}. Remove it and run the stage clean again.")
            text.append(work.directory / "text" / name.replace("/", "-").removesuffix(".xz"))
            if not text[-1].exists():
                text[-1].parent.mkdir(exist_ok=True)
                write_kept(source, dropped[name]["line_numbers"], text[-1])
        held_out = ("--valid", work.given.books / "valid.txt.xz", "--test", work.given.books / "test.txt.xz")
        size = ("--vocab-size", work.vocab_size)
        work.run("prepare", *text, *held_out, *size, "--out", work.corpus, makes=work.corpus, name="prepare")


def count(work: Work) -> None:
    """Count the n-gram model and measure it; this needs kenlm and no GPU."""
    if importlib.util.find_spec("kenlm") is None:
        raise SystemExit("The stage ngram needs kenlm. Install it with: pip install 'bnce[ngram]'")
    pruned = ("--order", 5, "--prune", "0,0,1,1,1")
    work.run("ngram", work.corpus, *pruned, "--out", work.arpa, makes=work.arpa, name="ngram")
    makes = work.directory / "trained" / f"{NGRAM}.json"
    limit = ("--corpus", work.corpus, "--split", "test", "--max-words", work.max_test_tokens)
    said = work.run("evaluate", work.arpa, *limit, "--json", makes=makes, name="ngram-evaluate")
    if said:
        write_json(makes, json.loads(said))
    write_surprisals(work, NGRAM, work.arpa, ("--device", "cpu"))


def train(work: Work, names: list[str]) -> None:
    """Train models, one after the other."""
    for name in names:
        if all((work.directory / kept).exists() for kept in (f"trained/{name}.json", f"surprisals/{name}.tsv")):
            continue  # all that is needed of it
        kind, seed = name.rsplit("-", 1)
        one, out = MODELS[kind], work.directory / "runs" / name
        settings = [*one.settings, *SETTINGS, f"training.seed={seed}", *(SMALL if work.given.small else ())]
        if work.given.small and kind == "relu-lstm":
            settings.append("model.bottleneck_size=8")
        options = [part for setting in (*settings, *work.given.settings) for part in ("--set", setting)]
        places = ("--corpus", work.corpus, "--out", out, "--device", work.given.device)
        work.run("train", *one.arguments, *places, *options, makes=out / "evaluation.json", name=f"train-{name}")
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        test = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
        kept = {key: test.get(key) for key in ("ppl_f", "ppl_n", "num_tokens", "num_oov")}
        told = ("device", "torch", "bnce", "commit", "seed", "tokens", "epochs", "train_seconds", "num_parameters")
        write_json(work.directory / "trained" / f"{name}.json", kept | {key: summary.get(key) for key in told})
        for state in out.glob("state-*"):
            state.unlink()  # a run to be repeated rather than resumed


def measure(work: Work, names: list[str]) -> None:
    """Write the surprisals of every model that is there: exact, and with the constant Z if it has one."""
    for name in names:
        trained = work.directory / "trained" / f"{name}.json"
        if not trained.exists():
            print(f"{name} is left out: it is not trained.")
            continue
        run, options = work.directory / "runs" / name, ("--spell", "--device", work.given.device)
        write_surprisals(work, name, run, options)
        if json.loads(trained.read_text(encoding="utf-8"))["ppl_n"] is not None:
            write_surprisals(work, f"{name}{CONSTANT}", run, (*options, "--mode", "unnormalised"))


def write_surprisals(work: Work, name: str, model: Path, options: tuple[str, ...]) -> None:
    """Write a small table of surprisals that may be kept anywhere: it has a checksum of each word, and not the text."""
    out = work.directory / "surprisals" / f"{name}.tsv"
    if out.exists():
        return
    out.parent.mkdir(exist_ok=True)
    whole, part = out.with_suffix(".whole.tsv"), out.with_suffix(".part")
    whole.unlink(missing_ok=True)
    table = (work.words(), "--text", "story", "--out", whole)
    work.run("surprisal", model, *table, *options, makes=whole, name=f"surprisal-{name}")
    with open(part, "w", encoding="utf-8") as file:
        print("checksum", BITS, sep="\t", file=file)
        for row in read_table(whole):
            print(checksum(row["word"]), f"{float(row[BITS]):.3f}" if row[BITS] else "", sep="\t", file=file)
    part.rename(out)
    whole.unlink()


def checksum(word: str) -> str:
    """Give four digits that show whether a table is of the same words."""
    return f"{zlib.crc32(word.encode()) & 0xFFFF:04x}"


def read_table(path: Path) -> list[dict[str, str]]:
    """Read a table in which quotes are parts of words."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def fit(work: Work, names: list[str]) -> None:
    """Join all surprisals, fit them to the reading times and write the tables."""
    wanted = [NGRAM, *(f"{name}{mode}" for mode in ("", CONSTANT) for name in names)]
    tables = {
        name: read_table(path) for name in wanted if (path := work.directory / "surprisals" / f"{name}.tsv").exists()
    }
    if not tables:
        raise SystemExit(f"{work.directory / 'surprisals'} has no table. Run the stage surprisal or ngram first.")
    rows = read_table(work.words())
    words = [row["word"] for row in rows]
    checksums = [checksum(word) for word in words]
    for name, table in tables.items():
        if [row.get("checksum") for row in table] != checksums:
            raise SystemExit(f"surprisals/{name}.tsv has other words than {TABLE}. Remove it and make it again.")
    # The word as it was shown, marks included: that is what the reading time is the time of.
    columns = {name: [row[BITS] for row in table] for name, table in tables.items()}
    columns |= means_over_seeds(columns, list(MODELS)) | other_ways(columns, list(MODELS))
    scores = work.directory / "scores.tsv"
    with open(scores, "w", encoding="utf-8") as file:
        print("word", *columns, sep="\t", file=file)
        for word, *cells in zip(words, *columns.values(), strict=True):
            print(word, *cells, sep="\t", file=file)
    command = [sys.executable, work.given.reading / "fit.py", work.words(), scores, *columns]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(map(str, command))}\n{done.stderr[-4000:]}")
    (work.directory / "fit.txt").write_text(done.stdout, encoding="utf-8")
    shown = {name: one.shown for name, one in MODELS.items()}
    columns[GPT3] = [row[GPT3] for row in rows]
    text = make_report(work.directory, parse(done.stdout), columns, shown, work.given.small)
    print(text)
    if work.given.out is not None:
        work.given.out.write_text(text, encoding="utf-8")


def main() -> None:
    """Go through the stages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--books", type=Path, help="directory of the books")
    parser.add_argument("--wiki", type=Path, help="directory of the encyclopedia text")
    parser.add_argument("--reading", type=Path, required=True, help=f"directory of {TABLE} and fit.py")
    parser.add_argument("--work", type=Path, required=True, help="directory for text, corpus, models and surprisals")
    parser.add_argument("--stage", default=",".join(STAGES), help=f"stages, divided by commas: {', '.join(STAGES)}")
    parser.add_argument("--seeds", help="seeds, divided by commas (1,2,3; of the small trial 1,2)")
    parser.add_argument("--only", help="models and seeds, divided by commas: relu-lstm-1,transformer-2 (all)")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE", help="as in train")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--processes", type=int, default=2, help="processes of the stage clean, one per file at most")
    parser.add_argument("--small", action="store_true", help="try everything: tiny models, little text")
    parser.add_argument("--out", type=Path, help="write the tables to this file")
    work = Work(parser.parse_args())
    stages = work.given.stage.split(",")
    seeds = work.given.seeds or ("1,2" if work.given.small else "1,2,3")
    every = [f"{model}-{seed}" for model in MODELS for seed in seeds.split(",")]
    names = work.given.only.split(",") if work.given.only else every
    unknown = [*(set(stages) - set(STAGES)), *(set(names) - set(every))]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; stages: {', '.join(STAGES)}; models: {', '.join(every)}")
    work.directory.mkdir(parents=True, exist_ok=True)
    if "clean" in stages:
        clean(work)
    if "prepare" in stages:
        prepare(work)
    if "ngram" in stages:
        count(work)
    if "train" in stages:
        train(work, names)
    if "surprisal" in stages:
        measure(work, names)
    if "fit" in stages:
        fit(work, names)


if __name__ == "__main__":
    main()
