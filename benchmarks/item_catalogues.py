"""The recommender of items.py with a catalogue of 1M and 10M items: time and memory of every loss, not quality.

python benchmarks/item_catalogues.py --like Beauty.txt.xz --out items.jsonl

Items are synthetic: they are drawn, one independently of the other, by the popularity law of a real set. The law is the
curve of ln(count) against ln(rank / number of items). Between the ranks that the real set has it is interpolated
linearly. Before its first rank it goes on as the line through its most popular hundredth. Sequences are as long as the
real ones. The body is the same as in items.py, and item rows are tied to the output. Every loss trains item rows by
row, with sparse gradients and bnce.RowwiseAdam, except the softmax over all items: it touches all rows, so it has dense
gradients and AdamW. The rest of the body is trained by AdamW everywhere.

Legend: R items of the real set, V items of the catalogue.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from item_data import Sequences, make_set, read_sequences
from item_measure import measure
from item_model import LOSSES, Recommender, Shape
from item_training import Trainer
from items import Book, names, whole_numbers

import bnce

PLAIN = "softmax-plain"  # as people write it: all logits at once
# What may run out of memory comes last.
CATALOGUE_LOSSES = {
    **{loss: LOSSES[loss] for loss in ("bnce", "adaptive", "chunk-bnce", "in-batch", "sampled", "bce", "gbce")},
    "softmax": "softmax over all items, a few positions at a time",
    PLAIN: "softmax over all items, all positions at once",
}


def stretch(counts_R: np.ndarray, num_items: int) -> np.ndarray:
    """Give so many items the popularity law of fewer, most popular first."""
    sorted_R = np.sort(counts_R)[::-1].astype(np.float64)
    sorted_R = np.log(np.maximum(sorted_R, 0.5))  # an item that is never a target is rarer than one that once is
    rank_R = np.log((np.arange(len(sorted_R)) + 0.5) / len(sorted_R))
    rank_V = np.log((np.arange(num_items) + 0.5) / num_items)
    head = max(2, len(sorted_R) // 100)
    slope, height = np.polyfit(rank_R[:head], sorted_R[:head], 1)
    law_V = np.interp(rank_V, rank_R, sorted_R)
    law_V = np.where(rank_V < rank_R[0], np.maximum(slope * rank_V + height, sorted_R[0]), law_V)
    return np.exp(law_V)


def draw_users(real: Sequences, law_V: np.ndarray, num_users: int, device: torch.device) -> Sequences:
    """Draw users with sequences as long as the real ones."""
    random = np.random.default_rng(1)
    sizes = random.choice(real.size_U[:-1].cpu().numpy(), num_users)
    edges_V = np.cumsum(law_V)
    # Numbers from 1 on, because 0 is padding; a shuffled numbering would change nothing in the end.
    drawn = 1 + np.searchsorted(edges_V, random.random(int(sizes.sum()) + num_users) * edges_V[-1])
    parts = np.split(np.minimum(drawn, len(law_V)), np.cumsum(sizes + 1)[:-1])
    return Sequences([part[:-1].tolist() for part in parts], [part[1:].tolist() for part in parts], real.length, device)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every loss with every size of catalogue, and write a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--like", type=Path, required=True, metavar="FILE", help="users whose law and lengths are taken"
    )
    parser.add_argument("--sizes", type=whole_numbers, default=[10**6, 10**7], help="items (1000000,10000000)")
    parser.add_argument("--losses", type=names, default=list(CATALOGUE_LOSSES), help="divided by commas (all)")
    parser.add_argument("--batch", type=int, default=256, help="users per step (256)")
    parser.add_argument("--steps", type=int, default=16, help="steps with users of their own (16)")
    parser.add_argument("--timed", type=int, default=300, help="time at least N steps, or 3 seconds (300)")
    parser.add_argument("--size", type=int, default=128, help="size of the hidden layer (128)")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), help="of products (bf16 on a GPU)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="add a JSON line per loss to this file")
    given = parser.parse_args(argv)
    if unknown := [loss for loss in given.losses if loss not in CATALOGUE_LOSSES]:
        parser.error(f"--losses has {', '.join(unknown)}: choose from {', '.join(CATALOGUE_LOSSES)}")
    device, book, shape = torch.device(given.device), Book(given.out), Shape(size=given.size)
    precision = given.precision or ("bf16" if device.type == "cuda" else "float32")
    real = make_set("", read_sequences(given.like), shape.length, device)
    for num_items, asked in itertools.groupby(itertools.product(given.sizes, given.losses), key=lambda pair: pair[0]):
        law_V = stretch(real.counts_V[1:].numpy(), num_items)
        users = draw_users(real.train, law_V, given.batch * given.steps, device)
        noise = bnce.noise.unigram(np.concatenate([law_V[-1:], law_V])).to(device)  # one for all: it takes seconds
        for _, loss in asked:
            if book.has(stage="catalogue", num_items=num_items, loss=loss):
                continue

            def make(loss: str = loss, noise: bnce.Noise = noise, users: Sequences = users) -> Trainer:
                with device:
                    model = Recommender(noise, loss, shape, sparse=True)
                return Trainer(model, users, given.batch, precision)

            about = {"stage": "catalogue", "set": "synthetic", "loss": loss, "num_items": num_items}
            found = measure(make, device, given.timed)
            book.write({**about, "words": CATALOGUE_LOSSES[loss], **found})


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1]))  # for benchmarks.softmaxes
    from benchmarks import softmaxes

    softmaxes.register()
    main()
