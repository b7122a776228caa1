"""What rescoring changed as one HTML file that needs nothing from outside: rates, words, best and worst utterances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from bnce.report.runs import printable
from bnce.report.style import document
from bnce.rescoring.changes import Changed, Changes, Step, ranked
from bnce.rescoring.comparison import Comparison

NUM_UTTERANCES = 25  # of the best and of the worst
NUM_WORDS = 30  # in a table

_GUIDE = (
    "“Before” is the first hypothesis of each list, “after” the one that rescoring chose. In an utterance, wrong words "
    "are underlined. “heard → said” is a wrong word and what was really said, “+ word” a word too many, and “− word” a "
    "missing word."
)
_STYLE = """\
.words { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.words table, .utterance table { border-collapse: collapse; width: 100%; }
.words .card, .utterance { padding: .9rem 1.1rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
.words th, .utterance th { text-align: left; font-weight: 400; color: var(--soft); padding-right: 1rem; }
.words td:last-child, .words th:last-child { text-align: right; padding-right: 0; }
.utterance { margin: 0 0 .8rem; }
.utterance th { white-space: nowrap; vertical-align: top; width: 5rem; }
.utterance td { overflow-wrap: anywhere; }
mark { background: var(--hot); color: inherit; border-radius: 4px; padding: .05rem .3rem; text-decoration: underline; }
"""


def changes_page(title: str, compared: Comparison, changes: Changes, facts: Sequence[str]) -> str:
    """Write the page; whatever comes from a file is escaped."""
    body = [
        *(f'<p class="facts">{_text(fact)}</p>' for fact in facts),
        f'<p class="guide">{escape(_GUIDE)}</p>',
        "<h2>Word error rates</h2>",
        "<ul>",
        *(f"<li>{_text(line)}</li>" for line in compared.lines()),
        f"<li>{_text(str(changes))}</li>",
        "</ul>",
        "<h2>Words</h2>",
        '<div class="words">',
        *_words("Corrected words", ("said", "heard before", "count"), _pairs(changes.corrected)),
        *_words("Broken words", ("said", "heard after", "count"), _pairs(changes.broken)),
        *_words("Insertions removed", ("word", "count"), _counted(changes.insertions_removed)),
        *_words("Insertions added", ("word", "count"), _counted(changes.insertions_added)),
        "</div>",
        *_section("Best utterances", changes.best(NUM_UTTERANCES), "No utterance has fewer errors than before."),
        *_section("Worst utterances", changes.worst(NUM_UTTERANCES), "No utterance has more errors than before."),
    ]
    return document(printable(title), body, _STYLE)


def _text(plain: str) -> str:
    return escape(printable(plain))


def _pairs(counts: Counter[Any]) -> list[list[str]]:
    return [[said, "(missing)" if heard is None else heard, str(count)] for (said, heard), count in ranked(counts)]


def _counted(counts: Counter[str]) -> list[list[str]]:
    return [[word, str(count)] for word, count in ranked(counts)]


def _words(heading: str, columns: Iterable[str], rows: list[list[str]]) -> list[str]:
    shown = f", {NUM_WORDS} of {len(rows)}" if len(rows) > NUM_WORDS else ""
    lines = ['<div class="card">', f"<table><caption>{escape(heading)}{shown}</caption>", "<thead><tr>"]
    lines += [f'<th scope="col">{escape(column)}</th>' for column in columns]
    lines.append("</tr></thead><tbody>")
    for row in rows[:NUM_WORDS]:
        lines.append("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>")
    lines.append("</tbody></table>")
    return [*lines, *([] if rows else ["<p>None.</p>"]), "</div>"]


def _section(heading: str, utterances: Sequence[Changed], otherwise: str) -> list[str]:
    lines = [f"<h2>{escape(heading)}</h2>"]
    if not utterances:
        lines.append(f"<p>{escape(otherwise)}</p>")
    for one in utterances:
        reference = " ".join(step.said for step in one.after if step.said is not None)
        num_before, num_after = (sum(step.is_error for step in steps) for steps in (one.before, one.after))
        lines += [
            '<div class="card utterance scroll">',
            f"<table><caption>{_text(one.name)}: {num_before} errors before, {num_after} after</caption><tbody>",
            f'<tr><th scope="row">said</th><td>{_text(reference)}</td></tr>',
            f'<tr><th scope="row">before</th><td>{_marked(one.before)}</td></tr>',
            f'<tr><th scope="row">after</th><td>{_marked(one.after)}</td></tr>',
            "</tbody></table>",
            "</div>",
        ]
    return lines


def _marked(steps: Iterable[Step]) -> str:
    return " ".join(_word(step) for step in steps)


def _word(step: Step) -> str:
    if not step.is_error:
        return _text(str(step.said))
    if step.said is None:
        return f"<mark>+ {_text(str(step.heard))}</mark>"
    if step.heard is None:
        return f"<mark>− {_text(step.said)}</mark>"
    return f"<mark>{_text(step.heard)} → {_text(step.said)}</mark>"
