"""The report as one HTML file that needs nothing from outside: guide, table, plots, every run's settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from bnce import files
from bnce.report import numbers
from bnce.report.comparison import Comparison, Entry
from bnce.report.plots import Plot, draw_plots, markers
from bnce.report.runs import count, printable, text
from bnce.report.sentences import sentence_section
from bnce.report.style import document
from bnce.report.table import columns_of, grouped, to_markdown

_GUIDE = (
    "Each row is one training run. PPLf is the perplexity with the full softmax: lower is better. PPLn uses a fixed "
    "constant Z in place of the softmax sum, which makes a model cheap to query. PPLn is not a bound, so read it "
    "together with PPLf and log Z. The closer PPLn is to PPLf, and the closer log Z is to the constant ln Z, the "
    "better the model normalises itself. TS is the training speed in words per second, NoP the number of parameters, "
    "and × softmax the speed relative to the softmax run of the same model."
)


def write_report(comparison: Comparison, directory: str | Path) -> None:
    """Write the page, and the table as Markdown and JSON, over what bears their names."""
    directory = Path(directory)
    page, table = to_html(comparison), to_markdown(comparison)
    files.make_directory(directory)
    files.write_text(directory / "table.md", table)
    files.write_json(directory / "table.json", comparison.as_record())
    files.write_text(directory / "report.html", page)


def to_html(comparison: Comparison) -> str:
    """The whole page; whatever comes from a file is escaped."""
    legend = [
        f'<span class="mark" style="color:{entry.loss.colour}">{letter}</span>'
        for entry, (_, letter) in zip(comparison.entries, markers(comparison.entries), strict=True)
    ]
    body = [
        f'<p class="facts">{escape(_facts(comparison))}</p>',
        f'<p class="guide">{_prose(_GUIDE)}</p>',
        *_warnings(comparison.conditions.warnings),
        *_table(comparison, legend),
        "<h2>Plots</h2>",
        '<div class="plots">',
        *(line for plot in draw_plots(comparison) for line in _figure(plot, comparison, legend)),
        "</div>",
        *sentence_section(comparison, legend),
        "<h2>Runs</h2>",
        *(line for entry, mark in zip(comparison.entries, legend, strict=True) for line in _details(entry, mark)),
    ]
    return document(comparison.title, body)


def _prose(plain: str) -> str:
    """Escaped text with the paper's superscripts."""
    return re.sub(r"\bPPL([nf])\b", r"PPL<sup>\1</sup>", escape(plain))


def _facts(comparison: Comparison) -> str:
    conditions, num_runs = comparison.conditions, len(comparison.entries)
    facts = [f"{num_runs} run{'' if num_runs == 1 else 's'}"]
    facts += [f"V = {size:,}" for size in conditions.vocab_sizes]
    facts += [f"{num_tokens:,} test tokens" for num_tokens in conditions.num_tokens if conditions.splits == ("test",)]
    return " · ".join([*facts, *conditions.devices])


def _warnings(warnings: Iterable[str]) -> list[str]:
    paragraphs = [f"<p>{escape(warning)}</p>" for warning in warnings]
    return ['<div class="warning" role="note">', *paragraphs, "</div>"] if paragraphs else []


def _table(comparison: Comparison, legend: list[str]) -> list[str]:
    marks = iter(legend)
    lines = ['<div class="card scroll">', '<table class="results">', "<thead><tr>"]
    lines += [f'<th scope="col">{_prose(column.heading)}</th>' for column in columns_of(comparison)]
    lines.append("</tr></thead>")
    for group, begins_family in grouped(comparison.entries):
        lines.append('<tbody class="family">' if begins_family else "<tbody>")
        for entry in group:
            label, *cells = (escape(column.cell(entry.row)) for column in columns_of(comparison))
            lines.append(f'<tr><th scope="row">{next(marks)}{label}</th>')
            # A page has a letter for a long dash.
            lines += [f"<td>{cell.replace('---', '—')}</td>" for cell in cells]
            lines.append("</tr>")
        lines.append("</tbody>")
    lines += ["</table>", "</div>", '<ul class="conditions">']
    lines += [f"<li>{_prose(statement)}</li>" for statement in comparison.conditions.statements]
    return [*lines, "</ul>"]


def _figure(plot: Plot, comparison: Comparison, legend: list[str]) -> list[str]:
    lines = ['<figure class="card">', f"<h3>{escape(plot.heading)}</h3>"]
    image = f'<img src="{plot.image}" alt="{escape(plot.heading)}">'
    lines.append(image if plot.image else f'<p class="none">{escape(plot.lacks)}</p>')
    if plot.legend:
        lines.append('<ul class="legend">')
        lines += [
            f"<li>{mark}{escape(entry.row.label)}</li>"
            for entry, mark in zip(comparison.entries, legend, strict=True)
            if entry in plot.legend
        ]
        lines.append("</ul>")
    return [*lines, f"<figcaption>{_prose(plot.caption)}</figcaption>", "</figure>"]


def _details(entry: Entry, mark: str) -> list[str]:
    row, summary, config = entry.row, entry.run.summary, entry.run.config
    command, num_in_tables = text(summary, "command"), count(summary, "num_table_parameters")
    outcome = {
        "directory": row.run,
        "status": row.status,
        "seed": row.seed,
        "commit": row.commit,
        "training words": None if row.train_tokens is None else f"{row.train_tokens:,}",
        "peak memory": numbers.memory(row.peak_memory_bytes),
        "parameters": None if row.num_parameters is None else f"{row.num_parameters:,}",
        "table parameters": None if num_in_tables is None else f"{num_in_tables:,}",
        "vocabulary": row.vocabulary_digest,
        "device": row.device,
        "torch": row.torch,
        "bnce": row.bnce,
        **{key: value for key, value in config.items() if not isinstance(value, Mapping)},
    }
    lines = [
        '<details class="card">',
        f"<summary>{mark}{escape(row.shown)}</summary>",
        '<div class="details">',
    ]
    if command:
        lines.append(f"<pre><code>{escape(command)}</code></pre>")
    lines.append('<div class="settings">')
    lines += _settings("run", outcome)
    for name, settings in config.items():
        if isinstance(settings, Mapping):
            lines += _settings(name, settings)
    return [*lines, "</div>", "</div>", "</details>"]


def _settings(name: str, settings: Mapping[str, Any]) -> list[str]:
    lines = [f"<table><caption>{escape(printable(name))}</caption><tbody>"]
    for key, value in settings.items():
        shown = numbers.MISSING if value is None or value == "" else printable(str(value))
        lines.append(f'<tr><th scope="row">{escape(printable(key))}</th><td>{escape(shown)}</td></tr>')
    return [*lines, "</tbody></table>"]
