"""benchmarks/reading*.py: what is left out of the training text, and the tables of what surprisals explain."""

from __future__ import annotations

import json
import lzma
import math
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
STORY = "It's a story: the boar's forty-seven friends came to the valley, and then they all slept."
SHARED = "its a STORY the boar's forty, seven friends came"  # nine words
# As fit.py prints it; its first argument is the table of words.
FIT = """
import sys
names = ["gpt3_surprisal_bits", *sys.argv[3:]]
for part, num in (("stories 1 to 7", 3), ("all ten stories", 4)):
    print(f"{part}, {num} words")
    for i, name in enumerate(names):
        print(f"  {name}: {i + num:+.2f} millinats per word [{i - 1:+.2f}, {i + 9:+.2f}]")
    for i, name in enumerate(names):
        for j, other in enumerate(names[:i]):
            print(f"  {name} − {other}: {i - j:+.2f} millinats per word [{i - j - 2:+.2f}, {i - j + 1:+.2f}]")
"""


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def pack(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.encode()))
    return path


def find(tmp_path: Path, text: str, whole: bool) -> dict[str, Any]:
    import reading_text

    return reading_text.find_shared(pack(tmp_path / "text.txt.xz", text), reading_text.runs_of([STORY]), whole)


@pytest.mark.parametrize("num_before", range(10))
def test_nine_shared_words_are_found_wherever_they_begin(tmp_path: Path, num_before: int) -> None:
    for num_words, num_dropped in ((9, 1), (8, 0)):
        words = ["x"] * num_before + SHARED.replace(",", "").split()[:num_words] + ["y"] * 3
        assert find(tmp_path, f"a\n{' '.join(words)}\nb\n", whole=False)["dropped_lines"] == num_dropped


def test_lines_of_books_and_whole_articles_are_left_out(tmp_path: Path) -> None:
    import reading_text

    first, second = SHARED.split(",")
    text = f"One.\nA word.\n\nTitle\nHe said: {first}\n{second} home.\nThe end.\n\nLast.\n"
    lines = find(tmp_path, text, whole=False)
    assert lines["line_numbers"] == [4, 5]
    assert (lines["documents"], lines["documents_with_drops"], lines["lines"]) == (3, 1, 7)
    assert (lines["words"], lines["dropped_words"]) == (19, 12)
    article = find(tmp_path, text, whole=True)
    assert article["line_numbers"] == [3, 4, 5, 6]
    reading_text.write_kept(tmp_path / "text.txt.xz", lines["line_numbers"], tmp_path / "kept.txt")
    assert (tmp_path / "kept.txt").read_text() == "One.\nA word.\n\nTitle\nThe end.\n\nLast.\n"
    # A blank line divides two documents, and two stories are not one running text.
    assert find(tmp_path, f"{first}\n\n{second}", whole=False)["dropped_lines"] == 0
    assert not reading_text.runs_of(STORY.split(",")).long & reading_text.runs_of([STORY.split("the", 1)[1]]).long


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    """Make a table of three words, a fit.py, and the surprisals of a model with two seeds."""
    work, reading = tmp_path / "work", tmp_path / "reading"
    rows = [f"{story}\t{word}\t{cell}" for story, word, cell in ((1, '"It', ""), (1, "is", "2"), (8, "so.", "3"))]
    pack(reading / "natural-stories.tsv.xz", "\n".join(["story\tword\tgpt3_surprisal_bits", *rows]) + "\n")
    (reading / "fit.py").write_text(FIT, encoding="utf-8")
    for folder in ("surprisals", "trained", "commands"):
        (work / folder).mkdir(parents=True)
    for seed in (1, 2):
        for mode in ("", "-z"):
            # Checksums of "It, is and so.: the last four digits of CRC-32 in hexadecimal.
            lines = ["checksum\tsurprisal_bits", f"0af5\t{seed}", f"e297\t{2 * seed}", "75bc\t"]
            (work / "surprisals" / f"lstm-{seed}{mode}.tsv").write_text("\n".join(lines) + "\n")
        facts: dict[str, Any] = {
            "ppl_f": 60.0 + seed,
            "ppl_n": 64.0 + seed,
            "num_tokens": 900,
            "num_oov": 7,
            "seed": seed,
        }
        facts |= {"device": "a machine", "tokens": 1000, "train_seconds": 5}
        (work / "trained" / f"lstm-{seed}.json").write_text(json.dumps(facts))
        command = {"command": f"bnce train lstm {seed}", "started": 9 - seed, "seconds": 1}
        (work / "commands" / f"{seed}.json").write_text(json.dumps(command))
    return ["reading.py", "--reading", str(reading), "--work", str(work), "--out", str(tmp_path / "out.md")]


def run_stage(given: list[str], stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import reading

    monkeypatch.setattr(sys, "argv", [*given, "--stage", stage])
    reading.main()


def test_fit_without_an_ngram_model(given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_stage(given, "fit", monkeypatch)
    scores = (tmp_path / "work" / "scores.tsv").read_text().splitlines()
    assert scores[0].split("\t") == ["word", "lstm-1", "lstm-2", "lstm-1-z", "lstm-2-z", "lstm-mean"]
    assert scores[2].split("\t") == ["is", "2", "4", "2", "4", "3.0000"]
    assert scores[3].split("\t") == ["so.", "", "", "", "", ""]
    report = (tmp_path / "out.md").read_text(encoding="utf-8")
    assert "| LSTM 512–1024, exact | 2 | 61.5 ± 0.7 | 65.5 ± 0.7 | +4.5 ± 0.7 | +5.5 ± 0.7 |" in report
    assert "| LSTM 512–1024, seed 2, constant Z | 62.0 | 66.0 | +7.0 [+3.0, +13.0] | +8.0 [+3.0, +13.0] |" in report
    assert "There is no n-gram model here" in report
    assert "gpt3_surprisal_bits 1" in report
    assert "- Test text: 900 tokens, 7 of them <unk>." in report
    assert report.index("bnce train lstm 2") < report.index("bnce train lstm 1")


def test_fit_gives_differences_to_the_ngram_model(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    surprisals = tmp_path / "work" / "surprisals"
    (surprisals / "5-gram.tsv").write_text((surprisals / "lstm-1.tsv").read_text())
    (tmp_path / "work" / "trained" / "5-gram.json").write_text('{"ppl_f": 99}')
    run_stage(given, "fit", monkeypatch)
    report = (tmp_path / "out.md").read_text(encoding="utf-8")
    # GPT-3 comes before the 5-gram: its difference is the other one with its sign and its ends turned.
    assert "| −1.0 [−2.0, +1.0] | −1.0 [−2.0, +1.0] |\n| 5-gram of the same text |  | 99.0 |" in report
    assert "seed 1, exact | 61.0 | 65.0 | +5.0 [+1.0, +11.0] | +6.0 [+1.0, +11.0] | +1.0 [−1.0, +2.0] |" in report
    (surprisals / "5-gram.tsv").write_text("checksum\tsurprisal_bits\n0000\t1\n")
    with pytest.raises(SystemExit, match=r"surprisals/5-gram.tsv has other words than natural-stories"):
        run_stage(given, "fit", monkeypatch)


def test_clean_keeps_what_is_there_and_prepare_wants_it(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="Run the stage clean first"):
        run_stage(given, "prepare", monkeypatch)
    pack(tmp_path / "books" / "train-1.txt.xz", "A book.\n")
    pack(tmp_path / "wiki" / "train-1.txt.xz", "An article.\n")
    given += ["--books", str(tmp_path / "books"), "--wiki", str(tmp_path / "wiki"), "--processes", "1"]
    run_stage(given, "clean", monkeypatch)
    path = tmp_path / "work" / "dropped.json"
    found = json.loads(path.read_text())
    assert list(found) == ["books/train-1.txt.xz", "wiki/train-1.txt.xz"]
    assert found["wiki/train-1.txt.xz"]["words"] == 2
    path.write_text("{}")
    run_stage(given, "clean", monkeypatch)
    assert path.read_text() == "{}"
    with pytest.raises(SystemExit, match=r"says nothing of books/train-1.txt.xz"):
        run_stage(given, "prepare", monkeypatch)


def test_other_ways_to_use_surprisals() -> None:
    import reading_table

    columns = {
        "relu-lstm-1": ["1.0", "2.0"],
        "transformer-1": ["2.0", "4.0"],
        "transformer-2": ["3.0", ""],
        reading_table.NGRAM: ["5.0", "1.0"],
    }
    made = reading_table.other_ways(columns, ["relu-lstm", "transformer"])
    assert made["all models"] == made["relu-lstm and transformer"] == ["2.0000", ""]
    mixed = -math.log2(0.9 * (2**-2 + 2**-3) / 2 + 0.1 * 2**-5)
    assert made[f"transformer with 0.1 of {reading_table.NGRAM}"] == [f"{mixed:.4f}", ""]
    assert reading_table.other_ways({"lstm-1": ["1.0"]}, ["lstm", "transformer"]) == {}
