"""Next-item recommendation with every loss: one body, one loop, the same search; ranked among all items.

python benchmarks/items.py Beauty.txt.xz --search --final --out items.jsonl     # quality
python benchmarks/items.py Beauty.txt.xz --measure --out items.jsonl            # time and memory, each loss alone
python benchmarks/items.py --table items.jsonl

A file has one user per line: the user, then items in the order of time. A user's last item is the test, the one before
it validation, the rest is trained on. The body is a causal Transformer over item embeddings, which are tied to the
output rows. HR@10 and NDCG@10 rank the true item among all items, and among those that the user has not had (of the
last 50), as most publications do. The search trains every loss with the same learning
rates and dropouts; validation NDCG@10 chooses among them and chooses the epoch. The final runs train the choice with
other seeds. A line is written as a run ends, and runs that are in the file are not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from item_data import ItemSet, make_set, read_sequences
from item_measure import measure
from item_model import LOSSES, Recommender, Shape
from item_tables import choose, markdown
from item_training import Trainer

Line = dict[str, Any]
NUM_TIMED = 300  # steps that are timed


class Book:
    """The lines that are written, in a file or not."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.lines: list[Line] = read_lines([path]) if path is not None and path.exists() else []

    def has(self, **key: Any) -> bool:
        """Say whether there is such a line."""
        return any(all(line.get(name) == value for name, value in key.items()) for line in self.lines)

    def write(self, line: Line) -> None:
        """Print a line, and add it to the file."""
        self.lines.append(line)
        print(json.dumps(line), flush=True)
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def read_lines(paths: Sequence[Path]) -> list[Line]:
    """Read lines of JSON."""
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


def make_trainer(data: ItemSet, loss: str, dropout: float, given: argparse.Namespace) -> Trainer:
    """Build a model and what trains it."""
    shape = Shape(given.length, given.size, given.layers, given.heads, dropout)
    return Trainer(Recommender(data.counts_V, loss, shape), data.train, given.batch, given.precision)


def train(trainer: Trainer, data: ItemSet, rate: float, seed: int, given: argparse.Namespace) -> Iterator[Line | None]:
    """Train one recommender; pause while the device is busy, and at last give the figures of the best epoch."""
    trainer.start(rate, seed)
    best: Line = {"epoch": 0, "valid_ndcg": -1.0}
    num_stale = 0
    for epoch in range(1, given.epochs + 1):
        trainer.epoch()
        if epoch % given.every and epoch < given.epochs:
            continue
        answer = trainer.evaluate(data.valid)
        yield None
        hits, ndcg = answer.read()
        num_stale += 1
        if ndcg > best["valid_ndcg"]:
            best = {
                "epoch": epoch,
                "valid_hr": hits,
                "valid_ndcg": ndcg,
                "test": trainer.evaluate(data.test, unseen=True),
            }
            num_stale = 0
        if num_stale >= given.patience:
            break
    best.update(zip(("hr", "ndcg", "hr_unseen", "ndcg_unseen"), best.pop("test").read(), strict=True))
    yield {
        "rate": rate,
        "seed": seed,
        **best,
        "epochs": epoch,
        "steps_per_epoch": trainer.num_steps,
        "targets_per_epoch": trainer.users.num_targets,
        "left_out": int(trainer.num_left_out),
        "ended": "patience" if num_stale >= given.patience else "epochs",
    }


def work(data: ItemSet, loss: str, given: argparse.Namespace, book: Book) -> Iterator[None]:
    """Do all runs of one loss on one set, one after the other."""
    trainers: dict[float, Trainer] = {}

    def run(stage: str, rate: float, dropout: float, seed: int) -> Iterator[None]:
        about = {"stage": stage, "set": data.name, "loss": loss, "dropout": dropout}
        if book.has(**about, rate=rate, seed=seed):
            return
        if dropout not in trainers:
            trainers[dropout] = make_trainer(data, loss, dropout, given)
        for line in train(trainers[dropout], data, rate, seed, given):
            if line is not None:
                book.write({**about, **line, "num_items": data.num_items - 1, "precision": given.precision})
            yield

    if given.search:
        for dropout, rate, seed in itertools.product(given.dropouts, given.rates, given.search_seeds):
            yield from run("search", rate, dropout, seed)
    if given.final:
        chosen = choose(book.lines, data.name, loss)
        if chosen is None:
            raise SystemExit(f"There is no search of {loss} on {data.name} in {book.path}: add --search.")
        for seed in given.seeds:
            yield from run("final", chosen["rate"], chosen["dropout"], seed)


def take_turns(works: Iterator[Iterator[None]], together: int, until: float) -> bool:
    """Keep so many works going at a time; say whether all of them came to their end in time."""
    waiting: deque[Iterator[None]] = deque(itertools.islice(works, together))
    while waiting:
        if time.monotonic() > until:
            return False
        one = waiting.popleft()
        try:
            next(one)
            waiting.append(one)
        except StopIteration:
            waiting.extend(itertools.islice(works, 1))
    return True


def main(argv: Sequence[str] | None = None) -> None:
    """Train or measure what is asked for, and write a line per run as it ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--search", action="store_true", help="train every loss with every learning rate and dropout")
    parser.add_argument("--final", action="store_true", help="train the choice of the search with every seed")
    parser.add_argument("--measure", action="store_true", help="time every loss alone, and take its peak memory")
    parser.add_argument("--table", nargs="+", type=Path, metavar="JSONL", help="print the tables of these files")
    parser.add_argument("--losses", type=names, default=list(LOSSES), help="losses, divided by commas (all)")
    rates = [0.0005, 0.001, 0.002, 0.004]
    parser.add_argument("--rates", type=numbers, default=rates, help="learning rates (0.0005,0.001,0.002,0.004)")
    parser.add_argument("--dropouts", type=numbers, default=[0.4], help="dropouts, divided by commas (0.4)")
    parser.add_argument("--search-seeds", type=whole_numbers, default=[0], help="seeds of the search (0)")
    parser.add_argument("--seeds", type=whole_numbers, default=[1, 2, 3], help="seeds of the final runs (1,2,3)")
    parser.add_argument("--epochs", type=int, default=200, help="end a run after N epochs (200)")
    parser.add_argument("--every", type=int, default=2, help="evaluate after every N epochs (2)")
    parser.add_argument("--patience", type=int, default=10, help="end after N evaluations without improvement (10)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after N seconds (never)")
    parser.add_argument("--together", type=int, default=1, help="train N models side by side (1)")
    parser.add_argument("--timed", type=int, default=NUM_TIMED, help=f"--measure: time at least N steps ({NUM_TIMED})")
    parser.add_argument("--batch", type=int, default=256, help="users per step (256)")
    parser.add_argument("--length", type=int, default=50, help="read the last N items of a user (50)")
    parser.add_argument("--size", type=int, default=128, help="size of the hidden layer (128)")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), help="of products (tf32 on a GPU)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="add a JSON line per run to this file")
    given = parser.parse_args(argv)
    if unknown := [loss for loss in given.losses if loss not in LOSSES]:
        parser.error(f"--losses has {', '.join(unknown)}: choose from {', '.join(LOSSES)}")
    if given.table:
        print(markdown(read_lines(given.table)))
        return
    if not given.files or not (given.search or given.final or given.measure):
        parser.error("give files of users, and --search, --final or --measure (or --table)")
    device = torch.device(given.device)
    given.precision = given.precision or ("tf32" if device.type == "cuda" else "float32")
    book, began = Book(given.out), time.monotonic()
    sets = [make_set(path.name.partition(".")[0], read_sequences(path), given.length, device) for path in given.files]
    pairs = list(itertools.product(sets, given.losses))
    if given.search or given.final:
        works = (work(data, loss, given, book) for data, loss in pairs)
        if not take_turns(works, given.together, began + given.seconds):
            print(f"stopped after {given.seconds:.0f} seconds", flush=True)
    if given.measure:
        for data, loss in pairs:
            if not book.has(stage="measure", set=data.name, loss=loss):
                make = partial(make_trainer, data, loss, given.dropouts[0], given)
                about = {"stage": "measure", "set": data.name, "loss": loss, "num_items": data.num_items - 1}
                book.write({**about, **measure(make, device, given.timed)})


def names(text: str) -> list[str]:
    """Divide at commas."""
    return text.split(",")


def numbers(text: str) -> list[float]:
    """Divide at commas."""
    return [float(part) for part in text.split(",")]


def whole_numbers(text: str) -> list[int]:
    """Divide at commas."""
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
