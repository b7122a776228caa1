"""What a second model adds to the best one on real lists: ways to mix, each with the share that is best on dev.

    python benchmarks/recogniser_mix.py --lists DIR --work DIR --first transformer-both --others 5-gram-both,5-gram,lstm

It reads what recogniser.py has written to WORK/scores and WORK/words. Shares are of the second model. `ln p` adds the
logarithms with these shares, `p` mixes the probabilities of whole hypotheses, `p of words` those of every word. For
every share all weights are tuned on dev; the share with the fewest errors on dev is measured on test.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from recogniser_rows import HALVES, PARTS, SHARES, UNNORMALISED, judge_list, place_of, read_list
from recogniser_words import mix_words

from bnce.rescoring.error_rates import compare
from bnce.rescoring.rescore import Scores
from bnce.rescoring.score_names import complete_weights
from bnce.rescoring.tuning import tune

SET = "espnet-eb100"
WAYS = ("ln p", "p", "p of words")


def mixed(how: str, share: float, first_N: np.ndarray, other_N: np.ndarray) -> np.ndarray:
    """Mix ln p of two models."""
    if how == "ln p":
        return (1 - share) * first_N + share * other_N
    return np.logaddexp(np.log1p(-share) + first_N, np.log(share) + other_N)


def rates(given: argparse.Namespace, part: str, how: str, other: str, share: float) -> list[float]:
    """Tune on dev and give the word error rates on dev and test."""
    found = []
    for half in HALVES:
        (first_N, oov_N), (other_N, _) = (
            np.load(given.work / "scores" / f"{name}.npz")[place_of(SET, half, part, UNNORMALISED)]
            for name in (given.first, other)
        )
        nbest, judge = (read(given.lists, SET, half, part, 0) for read in (read_list, judge_list))
        if how == "p of words":
            files = (given.work / "words" / f"{name}.npz" for name in (given.first, other))
            total_N = mix_words(share, *files, place_of(SET, half, part, UNNORMALISED))
        else:
            total_N = mixed(how, share, first_N, other_N) if share else first_N
        scores = Scores(nbest, total_N, oov_N)
        if not found:
            weights = tune(scores, judge.num_errors_N, complete_weights(None, {}, nbest, tunes=True))
        found.append(100 * compare(judge, scores.best(weights)).to_dict()["after"]["wer"])
    return found


def main() -> None:
    """Print a row per way and part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lists", type=Path, required=True, help="directory of the sets of lists")
    parser.add_argument("--work", type=Path, required=True, help="directory of recogniser.py")
    parser.add_argument("--first", required=True, help="the model to add to")
    parser.add_argument("--others", required=True, help="models to add, divided by commas")
    given = parser.parse_args()
    print("| second model | mixed | test-other: share | dev | test | test-clean: share | dev | test |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    ways = [("none", "")] + [(other, how) for other in given.others.split(",") for how in WAYS]
    for other, how in ways:
        cells = [other, how]
        for part in PARTS:
            shares = SHARES if how else (0.0,)
            (dev, test), share = min((rates(given, part, how, other if how else given.first, s), s) for s in shares)
            cells += [f"{share:g}", f"{dev:.2f}%", f"{test:.2f}%"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
