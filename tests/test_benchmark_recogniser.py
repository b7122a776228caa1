"""benchmarks/recogniser_rows.py: rates from scores in files, tuned on dev, judged on test; and the table of them."""

from __future__ import annotations

import json
import lzma
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from small_corpus import SPECIALS, VOCAB_SIZE, open_small_run

from bnce import Normaliser

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
NUM = 30


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Write lists, and the scores of two models: one knows what was said, the other says nothing."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import recogniser_rows as rows
    import recogniser_words as words

    chosen = random.Random(1)
    lists, work = tmp_path / "lists", tmp_path / "work"
    (work / "scores").mkdir(parents=True)
    ngram = rows.NGRAMS["books"]
    scores: dict[str, dict[str, np.ndarray]] = {"good": {}, ngram: {}}
    by_word: dict[str, dict[str, list[np.ndarray]]] = {"good": {}, ngram: {}}
    for name in rows.SETS:
        (lists / name).mkdir(parents=True)
        for half in rows.HALVES:
            for part in rows.PARTS:
                lines, good = [], []
                for number in range(NUM):
                    reference = " ".join(chosen.choices("abcdef", k=5))
                    texts = [reference, f"{reference[:-1]}x"]
                    chosen.shuffle(texts)
                    good += [0.0 if text == reference else -5.0 for text in texts]
                    hypotheses = [{"text": text, "score": -float(rank)} for rank, text in enumerate(texts)]
                    lines.append(json.dumps({"id": f"{half}-{number}", "ref": reference, "hyps": hypotheses}))
                with lzma.open(lists / name / f"{half}-{part}.jsonl.xz", "wt", encoding="utf-8") as file:
                    file.write("\n".join(lines))
                nothing = np.zeros(2 * NUM)
                place = rows.place_of(name, half, part, rows.UNNORMALISED)
                scores[ngram][place] = np.stack([nothing, nothing])
                by_word[ngram][place] = [np.zeros(2) for _ in nothing]
                by_word["good"][place] = [np.array([value, 0.0]) for value in good]
                for mode in rows.MODES:
                    scores["good"][rows.place_of(name, half, part, mode)] = np.stack([np.array(good), nothing])
    for name, found in scores.items():
        np.savez_compressed(work / "scores" / f"{name}.npz", **found)
        words.write_words(work / "words" / f"{name}.npz", by_word[name])
    return work, lists


def test_rows_and_table(places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    rows = sys.modules["recogniser_rows"]
    work, lists = places
    ngram = rows.NGRAMS["books"]
    names = {ngram: ngram, "good": ngram}
    found = rows.make_rows(work, lists, names, 0, 1)
    assert len(found) == 4 * (1 + 3)
    for row in found:
        assert row["before"]["wer"] > 0.05
        expected = row["before"]["wer"] if row["model"] == ngram else 0
        assert row["after"]["wer"] == expected
        assert sum(row["num_errors"]) == row["after"]["wer"] * row["before"]["num_words"]
    by_rank = [row for row in found if row["model"] == "good" and row["set"] == "espnet-100-second"]
    assert {row["weights"]["am_weight"] for row in by_rank} == {0}
    # What is in the file is not worked out again.
    capsys.readouterr()
    assert rows.make_rows(work, lists, names, 0, 1) == found
    assert capsys.readouterr().out == ""
    table = "\n".join(rows.table(found, names, {ngram: "the n-gram model", "good": "a good model"}))
    assert table.count("| a good model | 0.00% |") == 4
    assert table.count("### ") == 4
    assert "| +0.00 [+0.00, +0.00] |" in table


def test_every_model_that_goes_on_comes_after_its_start(places: tuple[Path, Path]) -> None:
    import recogniser

    names = list(recogniser.MODELS)
    for place, (name, one) in enumerate(recogniser.MODELS.items()):
        if one.init is not None:
            assert one.init in names[:place], name
            assert one.corpus == "books"
            assert recogniser.ngram_of(name) == "5-gram-both", "it has read both texts"


def test_words_are_mixed_one_by_one(places: tuple[Path, Path], tmp_path: Path) -> None:
    import recogniser_words as words

    first, second = [np.log([0.5, 0.1]), np.log([0.2])], [np.log([0.1, 0.3]), np.log([0.4])]
    paths = [tmp_path / f"{name}.npz" for name in ("first", "second")]
    for path, log_probs in zip(paths, (first, second), strict=True):
        words.write_words(path, {"list": log_probs})
    expected = [np.log(0.75 * 0.5 + 0.25 * 0.1) + np.log(0.75 * 0.1 + 0.25 * 0.3), np.log(0.75 * 0.2 + 0.25 * 0.4)]
    assert words.mix_words(0.25, *paths, "list") == pytest.approx(expected, abs=2 / words.PER_NAT)
    words.write_words(paths[1], {"list": [np.log([0.1]), np.log([0.3, 0.4])]})
    with pytest.raises(SystemExit, match="into different words"):
        words.mix_words(0.25, *paths, "list")


def test_words_of_a_model_add_up_to_its_scores(places: tuple[Path, Path]) -> None:
    import recogniser_words as words

    rows = sys.modules["recogniser_rows"]
    nbest = rows.read_list(places[1], "espnet-eb100", "dev", "other", 5)
    letters = [*SPECIALS, *"abcdef", *(f"w{number}" for number in range(9, VOCAB_SIZE))]
    model = open_small_run(words=letters, normaliser=Normaliser(True, "words", "lines"))
    by_word, totals = words.score_by_word(model, nbest)
    scored = model.score([text for utterance in nbest.utterances for text in utterance.texts])
    lm_N = [one.log_prob for one in scored]
    assert totals[0] == pytest.approx(lm_N)
    assert totals[1].tolist() == [one.num_oov for one in scored]
    assert [log_probs.sum() for log_probs in by_word] == pytest.approx(lm_N)
