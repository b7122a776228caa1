"""Word error rates from scores that models gave before: weights are tuned on dev and judged on test, without any model.

`recogniser.py` makes the scores, on another machine if need be: a file per model with ln p and the number of unknown
words of every hypothesis of every list, and one with ln p of every word. This tunes and compares, a process per row. A
model and an n-gram model are mixed word by word, with the share of the n-gram model that has the fewest errors on dev.
"""

from __future__ import annotations

import functools
import itertools
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from recogniser_words import mix_words

from bnce.rescoring.error_rates import NUM_DRAWS, SEED, Judge, compare
from bnce.rescoring.nbest import NBest
from bnce.rescoring.nbest_formats import read_nbest
from bnce.rescoring.rescore import Scores
from bnce.rescoring.score_names import complete_weights
from bnce.rescoring.tuning import tune

PARTS = ("other", "clean")
HALVES = ("dev", "test")
# Sets of lists, and whether their scores are used; without them the order of the hypotheses counts.
SETS = {"espnet-eb100": True, "espnet-100-second": False}
NGRAMS = {"books": "5-gram", "both": "5-gram-both"}  # by the text that they are counted on
UNNORMALISED, EXACT = MODES = ("unnormalised", "normalised")
COLUMNS = (
    "| model | WER, constant Z | 95% interval | softmax | constant − softmax | after − first best | model − 5-gram | "
    "with the 5-gram | its share | difference |"
)
SHARES = (0.1, 0.2, 0.3, 0.5)  # of the n-gram model, by which it is mixed in
KEY = ("model", "set", "part", "mode", "ngram")  # the last: the n-gram model that is mixed in, or none

Row = dict[str, Any]


@functools.cache
def read_list(lists: Path, name: str, half: str, part: str, limit: int) -> NBest:
    """Read one list; of the first utterances alone where a limit is given."""
    # All kept results were made with the number of tokens as one of the scores.
    nbest = read_nbest(lists / name / f"{half}-{part}.jsonl.xz", fields=("ntok",))
    utterances = nbest.utterances[: limit or None]
    if SETS[name]:
        return replace(nbest, utterances=utterances)
    # Every score left out, as a recogniser that gives none would have it.
    bare = [replace(utterance, scores={}) for utterance in utterances]
    return replace(nbest, utterances=bare, score_names=(), sources={})


@functools.cache
def judge_list(lists: Path, name: str, half: str, part: str, limit: int) -> Judge:
    """Count the errors of all hypotheses of a list."""
    nbest = read_list(lists, name, half, part, limit)
    return Judge(nbest, [str(utterance.reference) for utterance in nbest.utterances])


def place_of(name: str, half: str, part: str, mode: str) -> str:
    """Name the scores of a list in a file of scores."""
    return f"{name}/{half}-{part}/{mode}"


def scores_of(row: Row, half: str, work: Path, lists: Path, limit: int, share: float) -> Scores:
    """Put a model's scores beside those of a list; those of the n-gram model are mixed in with their share."""
    nbest = read_list(lists, row["set"], half, row["part"], limit)
    place = place_of(row["set"], half, row["part"], row["mode"])
    with np.load(work / "scores" / f"{row['model']}.npz") as found:
        log_prob_N, num_oov_N = found[place]
    if share:
        first, second = (work / "words" / f"{row[key]}.npz" for key in ("model", "ngram"))
        log_prob_N = mix_words(share, first, second, place)
    return Scores(nbest, log_prob_N, num_oov_N)


def work_out(row: Row, work: Path, lists: Path, limit: int) -> Row:
    """Tune on dev, judge on test once, and keep which hypotheses were chosen."""
    dev_judge, test_judge = (judge_list(lists, row["set"], half, row["part"], limit) for half in HALVES)
    tried = []
    for share in SHARES if row["ngram"] else (0.0,):
        dev = scores_of(row, "dev", work, lists, limit, share)
        weights = tune(dev, dev_judge.num_errors_N, complete_weights(None, {}, dev.nbest, tunes=True))
        tried.append((compare(dev_judge, dev.best(weights)).to_dict()["after"]["wer"], share, weights))
    dev_wer, share, weights = min(tried, key=lambda found: found[:2])
    best_U = scores_of(row, "test", work, lists, limit, share).best(weights)
    found = compare(test_judge, best_U).to_dict()
    return {
        **row,
        "weights": weights.to_dict(),
        "share": share,
        "dev_wer": dev_wer,
        **{name: found[name] for name in ("before", "after", "oracle", "difference")},
        "num_errors": test_judge.num_errors_N[best_U].tolist(),
    }


def wanted_rows(names: dict[str, str]) -> list[Row]:
    """List the rows: every model in both modes, and once more with the n-gram model of its text, if there is one."""
    rows = []
    for name, (set_name, part) in itertools.product(names, itertools.product(SETS, PARTS)):
        ways = [(UNNORMALISED, "")]
        if name not in NGRAMS.values():
            ways += [(EXACT, ""), *([(UNNORMALISED, names[name])] if names[name] in names else [])]
        rows += [dict(zip(KEY, (name, set_name, part, *way), strict=True)) for way in ways]
    return rows


def make_rows(work: Path, lists: Path, names: dict[str, str], limit: int, num_processes: int) -> list[Row]:
    """Work out the rows that the file does not have, and write each as it comes; names have their n-gram models."""
    path = work / "rows.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    done = {tuple(row[key] for key in KEY) for row in rows}
    missing = [row for row in wanted_rows(names) if tuple(row.values()) not in done]
    with ProcessPoolExecutor(num_processes) as pool, open(path, "a", encoding="utf-8") as file:
        work_on = functools.partial(work_out, work=work, lists=lists, limit=limit)
        for row in pool.map(work_on, missing):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{row['model']:24} {row['set']:18} {row['part']:6} {row['mode']:13} ", end="")
            print(f"{row['ngram'] and '+ n-gram':9} {100 * row['after']['wer']:.2f}%", flush=True)
    return rows


def table(rows: list[Row], names: dict[str, str], shown: dict[str, str]) -> list[str]:
    """Lay out a table per set and part: word error rates, and differences from first best and n-gram of one text."""
    lines = []
    for set_name, part in itertools.product(SETS, PARTS):
        own = {
            tuple(row[key] for key in KEY[3:] + KEY[:1]): row
            for row in rows
            if (row["set"], row["part"]) == (set_name, part)
        }
        if not own:
            continue
        first = next(iter(own.values()))
        how = "with its scores" if SETS[set_name] else "without scores, by rank"
        lines += [
            f"### {set_name}, test-{part}, {how}",
            "",
            f"{first['before']['num_words']:,} words. First best {_rate(first['before'])}, "
            f"oracle {_rate(first['oracle'])}.",
            "",
            COLUMNS,
            f"|---|{'---:|' * 9}",
        ]
        for name, ngram_name in names.items():
            row = own.get((UNNORMALISED, "", name))
            if row is None:
                continue
            ngram = own.get((UNNORMALISED, "", ngram_name))
            exact, both = own.get((EXACT, "", name)), own.get((UNNORMALISED, ngram_name, name))
            low, high = row["after"]["interval"]
            cells = [
                shown[name],
                _rate(row["after"]),
                f"{100 * low:.2f}–{100 * high:.2f}",
                "" if exact is None else _rate(exact["after"]),
                "" if exact is None else difference(row, exact),
                f"{100 * row['difference']['wer']:+.2f} {_interval(row['difference']['interval'])}",
                "" if ngram is None or ngram is row else difference(row, ngram),
                *(
                    ("", "", "")
                    if both is None
                    else (_rate(both["after"]), f"{both['share']:g}", difference(both, row))
                ),
            ]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return lines


def difference(row: Row, other: Row) -> str:
    """Give the difference of two rows on the same utterances in points, with the interval of a paired bootstrap."""
    difference_U = np.array(row["num_errors"]) - np.array(other["num_errors"])
    num_words = row["before"]["num_words"]
    generator = np.random.default_rng(SEED)
    num = len(difference_U)
    drawn = [difference_U[generator.integers(num, size=num)].sum() / num_words for _ in range(NUM_DRAWS)]
    low, high = np.percentile(drawn, [2.5, 97.5]).tolist()
    return f"{100 * difference_U.sum() / num_words:+.2f} {_interval((low, high))}"


def _rate(errors: dict[str, Any]) -> str:
    return f"{100 * errors['wer']:.2f}%"


def _interval(bounds: Any) -> str:
    low, high = bounds
    return f"[{100 * low:+.2f}, {100 * high:+.2f}]"
