"""What README and docs say is what was taken, and what is quickly taken again comes out the same."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command import call
from small_corpus import SPECIALS, small_run

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))  # as the script runs: beside its parts
try:
    import publish
    import resets
    from quotes import recognisers, words_and_pieces
    from quotes.sources import number, table
finally:
    sys.path.pop(0)

RESULTS = ROOT / "benchmarks" / "results"
CPU: dict[str, Any] = json.loads((RESULTS / "cpu.json").read_text(encoding="utf-8"))
QUOTES = publish.all_quotes()
# Numbers of the README that nothing measures: sizes and settings, versions, and how long something takes.
SETTINGS = (
    "over 80,000 or 800,000 words", "Interspeech 2017", "over 80,000 words",
    "20 time steps of all 400 streams", "With V = 800,000 words", "With a Transformer and 6M words", "at V = 80,000",
    "at 793,600", "version 0.1.0 (commit f65e666)", "the 5-gram was pruned", "constant Z, 800,000 words",
    "Python 3.11 or newer", "PyTorch 2.11 or newer", 
    "15 minutes on a laptop", "the 20 sentences", "A 5-gram", "measured with 0.2.0", "32,768 BPE pieces",
    "Fewer than 64", "1,000 random",
    "20 × 400 positions of 400 units", "Apache 2.0",
)  # fmt: skip
CODE_AND_LINKS = r"^```.*?^```|`[^`\n]+`|\]\([^)\n]*\)|<!--.*?-->"
NUMBER = r"(?<![\w.])\d[\d.,]*"


def page(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_pages_say_what_the_results_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert publish.main(["--check"]) == 0, capsys.readouterr().out


def test_every_number_that_is_written_is_checked() -> None:
    """Change each digit-run of each figure and of each generated block: the check must see it."""
    changed = 0
    for quote in QUOTES:
        text = page(quote.page)
        for place in publish.places(text, quote):
            for found in re.finditer(r"\d+", place.wanted):
                one = str(9 - int(found[0][-1]))
                start = place.start + found.end() - 1
                wrong = text[:start] + one + text[start + 1 :]
                try:
                    seen = list(publish.differences(quote.page, wrong, publish.places(wrong, quote)))
                except LookupError:  # a digit in the name of a block
                    seen = ["the block is gone"]
                assert seen, (quote, found[0])
                changed += 1
    assert changed > 1500


def test_the_readme_has_no_other_numbers() -> None:
    text = page("README.md")
    known = [place for quote in QUOTES if quote.page == "README.md" for place in publish.places(text, quote)]
    spans = [(place.start, place.end) for place in known]
    for pattern in (CODE_AND_LINKS, *(r"\s+".join(map(re.escape, words.split())) for words in SETTINGS)):
        found = [match.span() for match in re.finditer(pattern, text, re.DOTALL | re.MULTILINE)]
        assert found, f"the README no longer says '{pattern}'"
        spans += found
    others = [
        text[match.start() - 30 : match.end() + 20]
        for match in re.finditer(NUMBER, text)
        if not any(start <= match.start() < end for start, end in spans)
    ]
    assert not others, "neither quoted from a result (benchmarks/quotes) nor one of SETTINGS"


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def test_what_differs_is_named_and_then_repaired(pages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = pages / "README.md"
    right = wrong = readme.read_text(encoding="utf-8")
    for words in ("| B-NCE | ", "lowers its word error rate from "):
        assert words in wrong
        wrong = wrong.replace(words, words + "9")
    readme.write_text(wrong, encoding="utf-8")
    assert publish.main(["--check", "--pages", str(pages)]) == 1
    told = capsys.readouterr().out
    assert re.search(r"README.md:\d+: '\| B-NCE \| 9(\S+) .*', but the results say '\| B-NCE \| \1 ", told)
    assert re.search(r"README.md:\d+: '9(\S+)', but the results say '\1'", told)
    assert publish.main(["--pages", str(pages)]) == 0
    assert readme.read_text(encoding="utf-8") == right


def test_a_reworded_sentence_and_a_block_of_nobody_are_named(pages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filtering = pages / "docs" / "filtering.md"
    text = filtering.read_text(encoding="utf-8").replace("words per second from", "words in a second from")
    filtering.write_text(text + "\n<!-- odd: from nowhere -->\n1\n<!-- end -->\n", encoding="utf-8")
    assert publish.main(["--check", "--pages", str(pages)]) == 1
    told = capsys.readouterr().out
    assert "docs/filtering.md has 'filtered {} words per second' 0 times instead of once" in told
    assert "docs/filtering.md: nothing writes the block 'odd'" in told


@pytest.fixture(scope="module")
def figures_cpu() -> ModuleType:
    """Give the script as it runs: beside the other benchmarks."""
    pytest.importorskip("onnx")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import figures_cpu
    finally:
        sys.path.pop(0)
    return figures_cpu


@pytest.mark.parametrize("step", ["demo", "export"])
def test_result_files_hold_what_cpu_json_has(figures_cpu: ModuleType, step: str) -> None:
    assert getattr(figures_cpu, f"{step}_text")(CPU[step]) in page(f"benchmarks/results/{step}.md")


@pytest.mark.parametrize(
    ("name", "recipe"), [("ltcb", "ltcb"), ("ltcb-all", "ltcb"), ("obwb", "obwb"), ("sgd", "ltcb")]
)
def test_numbers_of_parameters(name: str, recipe: str) -> None:
    rows = json.loads((RESULTS / "h200" / "experiments" / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    assert len(rows) > 3
    for row in rows:
        record = call("info", recipe, "--model", row["model"], "--vocab-size", row["vocab_size"], "--json").json
        assert row["num_parameters"] == record["num_parameters"], row["label"]


def test_ratios_by_arithmetic(figures_cpu: ModuleType) -> None:
    from score import BAR_UNNORMALISED, SIZES, arithmetic

    for row in table(page("benchmarks/results/score.md"), "recipe, sizes | exact softmax"):
        sizes = SIZES[row["recipe, sizes"].split(",")[0]]
        assert row["speed-up by arithmetic"] == f"{arithmetic(sizes):.1f}"
        times = number(row["speed-up"])
        # Wide bounds: what arithmetic leaves out is worth some per cent, and memory is not free.
        assert 0.7 < times / arithmetic(sizes) < 1.3
        assert ("missed" in row["goal"]) == (times < BAR_UNNORMALISED)


def test_models_lower_word_error_rates_beyond_chance_as_the_pages_say() -> None:
    assert "beyond chance" in page("docs/rescoring.md")
    rows = [row for part in recognisers.parts() for row in table(part, "model | WER, constant Z")]
    assert len(rows) > 10
    for row in rows:
        for column in ("after − first best", "model − 5-gram"):
            if row[column]:
                highest = row[column].rstrip("]").split(",")[1].strip()
                assert highest.startswith("−"), (row["model"], column)


def test_validation_text_chose_among_seven_trials_and_three_seeds_followed() -> None:
    lines = [json.loads(line) for line in (RESULTS / "h200" / "bodies.jsonl").read_text(encoding="utf-8").splitlines()]
    for side, runs in words_and_pieces.final_runs().items():
        assert len([line for line in lines if (line["stage"], line["side"]) == ("search", side)]) == 7
        assert [run["seed"] for run in runs] == [2, 3, 4]


def test_resets_are_those_of_the_runs() -> None:
    assert resets.markdown(resets.read_lines(RESULTS / "resets.jsonl")) in page("benchmarks/results/resets.md")


def demo_model(vocab_size: int) -> dict[str, Any]:
    """Describe the demo's network with so many words."""
    return call("info", "demo", "--model", "relu-lstm", "--vocab-size", vocab_size, "--json").json


def test_sizes_of_exports() -> None:
    """A table's number takes 4, 2 or 1 bytes, and 4 a row for int8's scale; body and bias stay float32."""
    figures = CPU["export"]
    counts = demo_model(figures["vocab_size"])["num_parameters_by_part"]
    tables = counts["embedding"] + counts["output_weight"]
    rest = 4 * (counts["body"] + counts["output_bias"])
    scales = 2 * 4 * figures["vocab_size"]
    for name, num_bytes in (("float32", 4 * tables), ("bf16", 2 * tables), ("int8", tables + scales)):
        assert figures["rows"][name]["model_bytes"] == pytest.approx(num_bytes + rest, rel=0.005)
    exact = figures["rows"]["float32"]
    for row in figures["rows"].values():
        assert row["ppl_f"] == pytest.approx(exact["ppl_f"], rel=0.005)
        assert row["ppl_n"] == pytest.approx(exact["ppl_n"], rel=0.01)


def test_an_export_differs_from_pytorch_by_what_the_docs_say(tmp_path: Path) -> None:
    assert "10⁻⁶ is usual" in page("docs/export.md")
    for target in ("onnx", "transformers"):
        assert CPU["export"][target]["max_difference"] < 1e-4
    words = [*SPECIALS, *(f"w{number}" for number in range(2, 5000))]
    run = small_run(tmp_path / "run", words=words, **demo_model(len(words))["settings"]["model"])
    record = call("export", run, "--to", "onnx", "--out", tmp_path / "onnx", "--json").json
    assert record["max_difference"] < 1e-4


def test_every_result_file_is_listed_and_has_its_command() -> None:
    listed = page("docs/figures.md")
    for path in sorted([*RESULTS.glob("*.md"), *RESULTS.glob("h200/*.md")]):
        rows = [line for line in listed.splitlines() if f"`{path.name}`" in line]
        assert rows, f"docs/figures.md does not name {path.name}"
        text = path.read_text(encoding="utf-8")
        assert re.search(r"^    (python benchmarks/\w+\.py|bnce) ", text, re.MULTILINE), f"{path.name} has no command"
        if "measured with 0.2.0" in rows[0]:  # by a script of that version
            continue
        for script in re.findall(r"benchmarks/\w+\.py", text):
            assert (ROOT / script).is_file(), f"{path.name} names {script}"
    for script in re.findall(r"benchmarks/\w+\.py", listed):
        assert (ROOT / script).is_file(), script


@pytest.mark.parametrize("path", sorted(RESULTS.glob("h200/*.md")), ids=lambda path: path.name)
def test_what_a_gpu_measured_has_its_commit_and_seeds(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    told = "add a line 'Commit: …' ('not recorded' if nobody knows) and 'Seeds: …' ('none' if nothing is drawn)"
    assert re.search(r"^(- )?commit: (not recorded|[0-9a-f]{7,40})\b", text, re.MULTILINE | re.IGNORECASE), told
    assert re.search(r"\bseeds?\b", text, re.IGNORECASE), told


def test_every_row_of_an_experiment_has_its_commit_command_and_seed() -> None:
    tables = sorted((RESULTS / "h200" / "experiments").glob("*.md"))
    assert tables
    for path in tables:
        rows = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["rows"]
        assert rows, path.name
        for row in rows:
            assert row["command"].startswith("bnce "), f"{path.name}: {row['label']}"
            assert row["commit"], f"{path.name}: {row['label']}"
            assert row["seed"] is not None, f"{path.name}: {row['label']}"
