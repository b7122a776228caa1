"""What README and docs say is what was taken, and what is quickly taken again comes out the same."""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import resets
from bnce.config import ModelConfig
from bnce.language_model import count_parameters
from bnce.recipes.recipe import load_recipe

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CPU: dict[str, Any] = json.loads((RESULTS / "cpu.json").read_text(encoding="utf-8"))
MODELS = {"5-gram FFNN": "ffnn", "RNN": "rnn", "ReLu-RNN": "relu-rnn", "LSTM": "lstm", "ReLu-LSTM": "relu-lstm"}


def page(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def table(text: str, first: str) -> list[dict[str, str]]:
    """Read the table whose head begins with `first`, by the names of its columns."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first}"))
    head = [cell.strip() for cell in lines[start].strip("|").split("|")]
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(head, (cell.strip() for cell in line.strip("|").split("|")), strict=True)))
    return rows


def number(cell: str) -> float:
    """Read the first number of a cell, a median for one with its spread."""
    found = re.search(r"-?[\d,]+(?:\.\d+)?", cell)
    assert found is not None, cell
    return float(found[0].replace(",", ""))


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


@pytest.mark.parametrize(
    ("heading", "recipe", "vocab_size"), [("## Table 2", "ltcb", 80_000), ("## Table 4", "obwb", 800_000)]
)
def test_numbers_of_parameters(heading: str, recipe: str, vocab_size: int) -> None:
    rows = table(page("docs/results.md").partition(heading)[2], "model | loss | PPLn")
    model = ""
    assert len(rows) > 10
    for row in rows:
        model = MODELS[row["model"]] if row["model"] else model
        total = sum(count_parameters(load_recipe(recipe, model=model).model, vocab_size).values())
        assert row["NoP"] == (f"{total / 1e6:.1f}M" if total < 5e8 else f"{total / 1e9:.2f}B"), model


def test_ratios_by_arithmetic(figures_cpu: ModuleType) -> None:
    from score import BAR_UNNORMALISED, SIZES, arithmetic

    for row in table(page("benchmarks/results/score.md"), "recipe, sizes | exact softmax"):
        sizes = SIZES[row["recipe, sizes"].split(",")[0]]
        assert row["times by arithmetic"] == f"{arithmetic(sizes):.1f}"
        times = number(row["times"])
        # Wide bounds: what arithmetic leaves out is worth some per cent, and memory is not free.
        assert 0.7 < times / arithmetic(sizes) < 1.3
        assert ("missed" in row["bar"]) == (times < BAR_UNNORMALISED)


def test_the_readme_quotes_scoring_as_it_was_measured() -> None:
    small, large = (number(row["times"]) for row in table(page("benchmarks/results/score.md"), "recipe, sizes | exact"))
    told = re.search(
        r"scores (\d+) times as many sentences .*? its larger one (\d+) times", " ".join(page("README.md").split())
    )
    assert told is not None
    assert [int(told[1]), int(told[2])] == [round(small), round(large)]


def test_the_readme_quotes_rescoring_as_it_was_measured() -> None:
    wer = {
        row["hypotheses"]: number(row["WER"]) for row in table(page("benchmarks/results/nbest.md"), "hypotheses | WER")
    }
    more = next(name for name in wer if re.fullmatch(r"rescored: trigram of [\d.]+ times the text", name))
    told = re.search(
        r"a run lowers it from ([\d.]+) to ([\d.]+)%, a trigram of the same text to ([\d.]+)%, "
        r"and a trigram of (\w+) times the text to ([\d.]+)%",
        " ".join(page("README.md").split()),
    )
    assert told is not None
    names = ["first best", "rescored: bnce run", "rescored: trigram of the run's text"]
    assert [told[1], told[2], told[3]] == [f"{wer[name]:.1f}" for name in names]
    assert told[5] == f"{wer[more]:.1f}"
    assert {"six": 6, "seven": 7}[told[4]] == round(number(more))


def test_word_error_rates_of_real_lists_are_quoted_as_they_were_measured() -> None:
    result = page("benchmarks/results/h200/recogniser.md")
    parts = [part for part in result.split("\n### ") if part.startswith("espnet")]
    found: dict[str, list[str]] = {}  # by model: other and clean of the first recogniser, then of the second
    largest = 0.0
    for part in parts:
        first, oracle = re.findall(r"(?:First best|oracle) ([\d.]+)%", part)
        found.setdefault("first best", []).append(first)
        found.setdefault("oracle", []).append(oracle)
        for row in table(part, "model | WER, constant Z"):
            found.setdefault(row["model"], []).append(row["WER, constant Z"].rstrip("%"))
            if row["softmax"]:
                largest = max(largest, abs(number(row["WER, constant Z"]) - number(row["softmax"])))
                assert "−" in row["after − first best"].split("]")[0].split(",")[1], "beyond chance"
                assert "−" in row["model − 5-gram"].split(",")[1], "beyond chance"
    text = " ".join(page("docs/rescoring.md").split())
    for row in table(page("docs/rescoring.md"), "model, training text"):
        name = row["model, training text"].replace("Wikipedia", "wiki").partition(":")[0]
        rates = next(rates for model, rates in found.items() if model.startswith(name))
        cells = [row["20-best lists with scores"], row["10-best lists without scores"]]
        assert [cell.strip("*%") for cell in cells] == [" / ".join(rates[:2]), " / ".join(rates[2:])]
    assert f"differ by at most {largest:.2f} points" in text
    other, clean = re.findall(r"[\d.]+%", result.partition("| LSTM, books | p |")[2].splitlines()[0])[1::2]
    assert f"together reach {other.rstrip('%')} / {clean}" in text
    best = next(rates for model, rates in found.items() if model.startswith("Transformer"))
    before, after, ngram = (
        f"{float(rates[0]):.1f}" for rates in (found["first best"], best, found["5-gram, books + wiki"])
    )
    told = f"from {before} to {after}% with a Transformer. A 5-gram model of the same text reaches {ngram}%"
    assert told in " ".join(page("README.md").split())


def test_reading_times_are_quoted_as_they_were_measured() -> None:
    result = page("benchmarks/results/h200/reading.md")
    rows = table(result, "surprisal of") + [
        {"surprisal of": row["run"].replace(", seed 1", ""), **row} for row in table(result, "run | PPLf")
    ]
    for row in table(page("docs/surprisal.md"), "surprisal of | stories"):
        name = row["surprisal of"].partition(" with the data")[0]
        names = (name, f"{name}, exact", f"{name} of the same text")
        found = [one for one in rows if one["surprisal of"] in names and "[" in one["gain, stories 1 to 7"]]
        assert (row["stories 1 to 7"], row["all ten stories"]) == (
            found[0]["gain, stories 1 to 7"],
            found[0]["gain, all ten stories"],
        )
        if name == "Transformer 512 × 6":
            lead = found[0]["minus 5-gram, stories 1 to 7"]
            assert f"lead over the 5-gram, {lead}, may be chance" in page("docs/surprisal.md")


def test_judgement_is_quoted_as_it_was_measured() -> None:
    sections = {
        "other passages": "### Other documents, 5%",
        "themselves with two": "### Itself, two sentences",
        "themselves with their": "### Itself, sentences shuffled",
        "docstrings": "### Docstrings",
    }
    result = page("benchmarks/results/h200/filter.md")
    quoted = table(page("docs/filtering.md"), "good passages against")
    assert len(quoted) == len(sections)
    for row in quoted:
        title = next(title for begin, title in sections.items() if row["good passages against"].startswith(begin))
        taken = {
            row["model"]: number(row.get("ROC area") or row["share of pairs"])
            for row in table(result.partition(title)[2], "model")
        }
        for name in ("KenLM 5-gram", "ReLu-LSTM", "Transformer"):
            assert number(row[name]) == next(value for model, value in taken.items() if model.startswith(name))
    end_to_end, alone = (number(row["words/s"]) for row in table(result, "what | words"))
    assert f"filtered {end_to_end:.1f}M words per second" in " ".join(page("docs/filtering.md").split())
    assert f"would allow {alone:.0f}M" in " ".join(page("docs/filtering.md").split())


def test_rescoring_quotes_lists_without_scores_as_they_were_measured() -> None:
    rows = table(page("benchmarks/results/rank.md"), "test-clean, 52,576 words | WER")
    first, alone, order, tuned, _ = (row["WER"] for row in rows)
    told = (
        f"the first hypotheses had a word error rate of {first}. The new model alone reached {alone}, order and model "
        f"{order}, and with tuned weights {tuned} "
    )
    assert told in " ".join(page("docs/rescoring.md").split())


def test_results_quote_the_demo_as_it_was_measured() -> None:
    if "demo" not in CPU:
        pytest.skip("benchmarks/figures_cpu.py demo has not been run on this code")
    for row in CPU["demo"]["rows"]:
        name = {"softmax": "softmax", "snce": "S-NCE, K = 100", "bnce": r"\*\*B-NCE\*\*"}[row["loss"]]
        told = re.search(rf"^\| {name} \| (\S+) \| (\S+) \| (\S+)K \| (\S+) \|$", page("docs/results.md"), re.MULTILINE)
        assert told is not None, row["loss"]
        assert told[1] == ("–" if row["ppl_n"] is None else f"{row['ppl_n']:.1f}")
        assert told[2] == f"{row['ppl_f']:.1f}"
        assert told[3] == f"{row['words_per_second'] / 1000:.1f}"


def test_serving_quotes_the_load_as_it_was_measured() -> None:
    taken = table(page("benchmarks/results/serve.md"), "requests | requests/s")
    quoted = table(page("docs/serving.md"), "requests | requests/s")
    assert len(quoted) == len(taken)
    pairs = (
        ("requests/s", "requests/s"),
        ("median, ms", "latency, median ms"),
        ("99th percentile, ms", "99th percentile, ms"),
    )
    for one, other in zip(quoted, taken, strict=True):
        assert [number(one[name]) for name, _ in pairs] == [number(other[name]) for _, name in pairs]


@pytest.mark.parametrize("step", ["export", "vocab"])
def test_docs_hold_what_the_script_wrote(figures_cpu: ModuleType, step: str) -> None:
    text = getattr(figures_cpu, f"{step}_text")(CPU[step])
    begin, end = f"<!-- {step}: benchmarks/figures_cpu.py writes this -->\n", f"\n<!-- end of {step} -->"
    assert f"{begin}{text}{end}" in page(figures_cpu.QUOTED[step])
    assert text in page(f"benchmarks/results/{step}.md")


def demo_model() -> ModelConfig:
    return load_recipe("demo", model="relu-lstm").model


def test_sizes_of_exports() -> None:
    """A table's number takes 4, 2 or 1 bytes, and 4 a row for int8's scale; body and bias stay float32."""
    config, figures = demo_model(), CPU["export"]
    counts = count_parameters(config, figures["vocab_size"])
    tables = counts["embedding"] + counts["output_weight"]
    rest = 4 * (counts["body"] + counts["output_bias"])
    scales = 2 * 4 * figures["vocab_size"]
    for name, num_bytes in (("float32", 4 * tables), ("bf16", 2 * tables), ("int8", tables + scales)):
        assert figures["rows"][name]["model_bytes"] == pytest.approx(num_bytes + rest, rel=0.005)
    exact = figures["rows"]["float32"]
    for row in figures["rows"].values():
        assert row["ppl_f"] == pytest.approx(exact["ppl_f"], rel=0.005)
        assert row["ppl_n"] == pytest.approx(exact["ppl_n"], rel=0.01)


def test_an_export_differs_from_pytorch_by_what_the_docs_say(figures_cpu: ModuleType, tmp_path: Path) -> None:
    import torch

    from bnce.config import LossConfig
    from bnce.export.to_onnx import compare
    from bnce.language_model import LanguageModel
    from bnce.noise import unigram

    assert "10⁻⁶ is usual" in page("docs/export.md")
    for target in ("onnx", "transformers"):
        assert CPU["export"][target]["max_difference"] < 1e-4
    torch.manual_seed(1)
    with torch.no_grad():
        model = LanguageModel(demo_model(), LossConfig(name="bnce"), unigram(torch.arange(5000, 0, -1))).eval()
        figures_cpu.write_graphs(model, tmp_path, model.state_dict())
        assert compare(model, tmp_path)["max_difference"] < 1e-4


def test_words_and_pieces_are_quoted_as_they_were_measured() -> None:
    lines = [json.loads(line) for line in (RESULTS / "h200" / "bodies.jsonl").read_text().splitlines()]
    found = {}
    for side in ("words chunk-bnce", "words softmax", "pieces softmax"):
        searched = [line for line in lines if line["stage"] == "search" and line["side"] == side]
        best = min(searched, key=lambda line: line["valid"]["ppl_f"])
        assert len(searched) == 7
        runs = [line for line in lines if line["stage"] == "final" and line["side"] == side]
        runs = [run for run in runs if run["settings"] == best["settings"]]  # validation text alone decides
        assert [run["seed"] for run in runs] == [2, 3, 4]
        found[side] = runs
    rows = table(page("docs/results.md"), "| PPLf | PPLn | bits per byte")
    for row, (side, runs) in zip(rows, found.items(), strict=True):
        for column, digits, values in (
            ("PPLf", 2, [run["test"]["ppl_f"] for run in runs]),
            ("PPLn", 2, [run["test"]["ppl_n"] for run in runs]),
            ("bits per byte", 4, [run["whole"]["bits_per_byte"] for run in runs]),
        ):
            if values[0] is not None:
                expected = f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"
                assert row[column] == expected, (side, column)
        assert number(row["seconds of training"]) == pytest.approx(
            statistics.mean(run["seconds"] for run in runs), abs=0.06
        )
        speed = statistics.mean(run["words_per_second"] for run in runs)
        assert number(row["words/s"]) == pytest.approx(speed / 1e6, abs=0.006)
    quoted = page("README.md"), page("docs/choosing.md")
    ours, theirs = rows[0], rows[2]
    assert all(f"{number(row['PPLf']):.1f}" in text for row in (ours, theirs) for text in quoted)


def test_all_of_the_text_and_large_vocabularies_are_quoted_as_they_were_measured() -> None:
    lines: dict[tuple[int, str], list[dict]] = {}
    for name in ("bodies-all", "bodies-cased"):
        for text in (RESULTS / "h200" / f"{name}.jsonl").read_text().splitlines():
            line = json.loads(text)
            lines.setdefault((line["known_words"], line["side"]), []).append(line)
    rows = table(page("docs/results.md"), "conditions | side | PPLf")
    assert len(rows) == len(lines)
    known = 0
    sides = {"words, **chunk B-NCE**": "words chunk-bnce", "words, softmax": "words softmax"}
    for row in rows:
        told = re.search(r"V = ([\d,]+)", row["conditions"])
        known = known if told is None else int(told[1].replace(",", ""))
        runs = lines[known, sides.get(row["side"], "pieces softmax")]
        digits = 2 if known == 80_000 else 1
        for column in ("PPLf", "PPLn"):
            values = [run["test"][column.lower().replace("ppl", "ppl_")] for run in runs]
            if values[0] is not None:
                assert row[column].startswith(f"{statistics.mean(values):.{digits}f}"), (row, column)
        assert number(row["seconds of training"]) == pytest.approx(
            statistics.mean(run["seconds"] for run in runs), abs=0.06
        )
    first, second = (f"{number(row['PPLf']):.1f}" for row in rows[:2])
    assert f"On four times the text the two have {first} and {second}." in " ".join(page("README.md").split())
    spelled = table(page("benchmarks/results/h200/bodies.md"), "| perplexity per word")
    words, pieces = (f"{number(row['perplexity per word']):.1f}" for row in spelled)
    assert f"({words} and {pieces} per word)" in " ".join(page("docs/choosing.md").split())


def test_readme_quotes_the_layer_beside_a_linear_one() -> None:
    taken = {
        (row["V"], row["output layer"]): row for row in table(page("benchmarks/results/h200/layer-linear.md"), "V ")
    }
    quoted = table(page("README.md"), "classes | before")
    assert len(quoted) * 3 == len(taken)
    for row in quoted:
        for name, cell in list(row.items())[1:]:
            found = taken[row["classes"], name.partition(": ")[2].replace("`", "")]
            assert cell == (f"{found['ms']} ms, {found['extra MiB']} MiB" if found["extra MiB"] else found["ms"])


def test_the_comparison_quotes_what_was_measured() -> None:
    text = page("docs/comparison.md")
    taken = {
        re.sub(r"bnce |Adam, |sigmoid|NCE (?=\d)", "", row["training, 2 threads"]): row
        for row in table(page("benchmarks/results/cpu-peers.md"), "training, 2 threads")
    }
    names = {
        "`bnce` LSTM, B-NCE": "LSTM, B-NCE",
        "`bnce` RNN, B-NCE": "RNN, B-NCE",
        "PyTorch LSTM, softmax": "PyTorch LSTM, softmax",
        "PyTorch LSTM, adaptive softmax": "PyTorch LSTM, adaptive softmax",
        "PyTorch LSTM, Pytorch-NCE with K = 100": "PyTorch LSTM, Pytorch-NCE, K = 100",
        "faster-rnnlm, GRU, 50 noise words": "faster-rnnlm, GRU, 50",
        "faster-rnnlm, sigmoid, 50 noise words": "faster-rnnlm, , 50",
        "faster-rnnlm, sigmoid, hierarchical softmax": "faster-rnnlm, , hierarchical softmax",
    }
    rows = table(text, "| training tokens/s | test perplexity")
    assert [row[""] for row in rows] == list(names)
    for row in rows:
        found = taken[names[row[""]]]
        assert row["training tokens/s"] == found["tokens/s"].split()[0]
        measured = found["sentence by sentence"] or f"{number(found['test PPLf in context']):.0f}"
        assert measured in row["test perplexity, sentence by sentence"]
    (softmaxes,) = table(page("benchmarks/results/h200/softmax.md"), "| V | D")
    for name in ("fused", "plain", "compiled", "cce", "liger"):
        assert f"| {number(softmaxes[name].strip('*')):.2f} ms |" in text, name
    for row in table(page("benchmarks/results/h200/layer-calls.md"), "loss | call"):
        if row["call"] == "layer(h, t)":
            launched, captured = (f"{float(row[way]):.2f} ms" for way in ("launched, ms", "captured, ms"))
            assert f"| {launched}; {captured} as a CUDA graph |" in text, row["loss"]


def test_every_result_file_is_listed_and_has_its_command() -> None:
    listed = page("docs/figures.md")
    for path in sorted([*RESULTS.glob("*.md"), *RESULTS.glob("h200/*.md")]):
        assert path.name in listed, f"docs/figures.md does not name {path.name}"
        text = path.read_text(encoding="utf-8")
        # What an H200 measured has its command in the list.
        here = path.parent == RESULTS
        assert not here or re.search(r"^    (python benchmarks/\w+\.py|bnce) ", text, re.MULTILINE), path.name
        for script in re.findall(r"benchmarks/\w+\.py", text):
            assert (ROOT / script).is_file(), f"{path.name} names {script}"
    for script in re.findall(r"benchmarks/\w+\.py", listed):
        assert (ROOT / script).is_file(), script


def test_every_row_of_an_experiment_has_its_command() -> None:
    tables = sorted((RESULTS / "h200" / "experiments").glob("*.md"))
    assert tables
    for path in tables:
        rows = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["rows"]
        assert rows, path.name
        for row in rows:
            assert row["command"].startswith("bnce "), f"{path.name}: {row['label']}"


def test_resets_are_quoted_from_the_runs() -> None:
    taken = resets.markdown(resets.read_lines(RESULTS / "resets.jsonl"))
    assert taken in page("benchmarks/results/resets.md")
    quoted = page("docs/rescoring.md")
    assert taken in quoted
    for row in table(page("benchmarks/results/resets.md"), "reset_rate")[1:]:
        assert row["WER test-other"] in quoted
        assert row["WER test-clean"] in quoted
