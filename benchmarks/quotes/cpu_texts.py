"""The tables and paragraphs of what benchmarks/figures_cpu.py measures: for its result files, and for the docs."""

from __future__ import annotations

import textwrap

from .sources import Row, markdown, thousands

ROWS = {
    "float32": "4 bytes, unchanged",
    "bf16": "2 bytes",
    "int8": "1 byte, plus 4 bytes per row for its scale",
}
SHOWN = {"softmax": "softmax", "snce": "S-NCE, K = 100", "bnce": "**B-NCE**"}
NUM_ROUNDS = 15
DOCS_WIDTH = 130


def demo_table(found: Row) -> str:
    """Write the table of docs/results.md."""
    rows = []
    for row in found["rows"]:
        ppl_n = "–" if row["ppl_n"] is None else f"{row['ppl_n']:.1f}"
        speed = thousands(row["words_per_second"]), f"{row['speedup_over_softmax']:.1f}"
        rows.append([SHOWN[row["loss"]], ppl_n, f"{row['ppl_f']:.1f}", *speed])
    return markdown("| | PPLn | PPLf | training tokens/s | × softmax |", "lrrrr", rows)


def demo_text(found: Row) -> str:
    """Write the demo's result file: the table, and what it is of."""
    size, tokens = found["rows"][0]["vocab_size"], found["rows"][0]["train_tokens"]
    first = f"ReLu-LSTM, V = {size:,}, {tokens:,} training tokens, one epoch; perplexities on test."
    return f"{first}\n\n{demo_table(found)}"


def export_text(found: Row) -> str:
    """Write the table of docs/export.md."""
    lines = ["| `--rows` | storage per number of the tables | model file | PPLn | PPLf |", "|---|---|---:|---:|---:|"]
    for name, row in found["rows"].items():
        size = f"{row['model_bytes'] / 1e6:.1f} MB"
        lines.append(f"| `{name}` | {ROWS[name]} | {size} | {row['ppl_n']:.2f} | {row['ppl_f']:.2f} |")
    onnx = found["onnx"]
    paragraph = (
        f"Measured with the B-NCE model of `make demo` (V = {found['vocab_size']:,}) on the first "
        f"{found['num_tokens']:,} tokens of its test text. Perplexities are per token and count `</s>` and `<unk>`. "
        "The largest difference from PyTorch "
        f"was {onnx['max_difference']:.1e} (ONNX) and {found['transformers']['max_difference']:.1e} (transformers). "
    )
    if "words_ms" in onnx:
        paragraph += (
            f"With random weights at V = {onnx['vocab_size']:,} and D = {onnx['hidden_size']}, `words.onnx` took "
            f"{onnx['words_ms']:.1f} ms for {onnx['words_positions']} positions with one word each, and "
            f"`all_words.onnx` took {onnx['all_words_ms']:.0f} ms for {onnx['all_words_positions']} positions (medians "
            f"of {NUM_ROUNDS} rounds on two CPU cores). "
        )
    paragraph += "`python benchmarks/figures_cpu.py demo export --work work` measures all of this."
    return "\n".join([*lines, "", textwrap.fill(paragraph, DOCS_WIDTH, break_on_hyphens=False)])


def vocab_text(found: Row) -> str:
    """Write the paragraph of docs/usage.md."""
    paragraph = (
        f"Measured with 0.2.0: {found['num_added']:,} words were added, with their counts in the training text, to an "
        "LSTM (96–192) that was trained with B-NCE on docstrings of the installed Python packages, with "
        f"V = {found['vocab_size']:,}. As shares of `<unk>`, PPLf is {found['ppl_f_shares']:.1f} on "
        f"{found['num_tokens']:,} test tokens. With weights that started near those of words of similar spelling, as "
        f"in that version, it was {found['ppl_f_added']:.1f}."
    )
    return textwrap.fill(paragraph, DOCS_WIDTH, break_on_hyphens=False)
