"""How the reports' pages look: one frame and one style sheet, light and dark, narrow and wide, on paper too."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def document(title: str, body: Iterable[str]) -> str:
    """Write a page that needs nothing from outside; the lines of its body are HTML, its title is plain text."""
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{_STYLE}\n</style>",
        "</head>",
        "<body>",
        "<main>",
        f"<h1>{escape(title)}</h1>",
        *body,
        "</main>",
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


_STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1f2328; --soft: #59636e; --grid: #d8dee4; --line: #d8dee4;
  --note: #fff6e0; --note-line: #d9a520; --hot: #f2a884;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1318; --card: #171c23; --ink: #e3e8ee; --soft: #98a3b0; --grid: #2d353f; --line: #2d353f;
    --note: #2b2410; --note-line: #b98d1e; --hot: #8f3a1d;
  }
  figure img, .mark { filter: invert(1) hue-rotate(180deg); } /* dark ink becomes light, and colours keep their hue */
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
}
main { max-width: 74rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .9rem; }
h3 { font-size: 1rem; margin: 0 0 .6rem; }
h1, h2, h3, td, summary, code { overflow-wrap: anywhere; }
.facts { color: var(--soft); margin: 0; }
sup { line-height: 0; }
.guide { max-width: 56rem; margin: 1.2rem 0 1.6rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.warning {
  background: var(--note); border-left: 4px solid var(--note-line); border-radius: 6px;
  padding: .7rem 1rem; margin: 0 0 1.2rem;
}
.warning p { margin: .15rem 0; }
.scroll { overflow-x: auto; }
.results { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
.results th, .results td { padding: .5rem .8rem; text-align: right; white-space: nowrap; }
.results thead th { color: var(--soft); font-size: .88rem; border-bottom: 1px solid var(--line); }
.results tbody th { font-weight: 500; }
.results th:first-child { text-align: left; position: sticky; left: 0; background: var(--card); }
.results tbody + tbody tr:first-child > * { border-top: 1px solid var(--line); }
.results tbody.family tr:first-child > * { border-top: 3px double var(--line); }
.results tbody tr:hover > * { background: var(--page); }
.mark { display: inline-block; width: 1.2em; }
.conditions { color: var(--soft); font-size: .88rem; margin: .9rem 0 0; padding-left: 1.1rem; }
.conditions li { margin: .15rem 0; }
.plots { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
figure { margin: 0; padding: 1.1rem 1.1rem .9rem; display: flex; flex-direction: column; }
figure img { width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .85rem; padding-top: .6rem; }
.legend {
  list-style: none; margin: .5rem 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: .1rem 1.1rem;
  font-size: .85rem;
}
.none { color: var(--soft); margin: 3rem auto; }
details { margin: 0 0 .6rem; }
summary { cursor: pointer; padding: .7rem 1rem; font-weight: 500; }
.details { padding: 0 1rem 1rem; }
.settings {
  display: grid; align-items: start; gap: 1rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr));
}
.settings table { border-collapse: collapse; width: 100%; font-size: .88rem; }
.settings caption { text-align: left; font-weight: 600; padding-bottom: .25rem; }
.settings th { text-align: left; font-weight: 400; color: var(--soft); padding: .12rem 1rem .12rem 0; }
.settings td { text-align: right; padding: .12rem 0; font-variant-numeric: tabular-nums; }
.settings tr + tr > * { border-top: 1px solid var(--line); }
.sentences { border-collapse: collapse; width: 100%; }
.sentences thead th { color: var(--soft); font-size: .85rem; text-align: left; white-space: nowrap; }
.sentences th, .sentences td { padding: .45rem .8rem .45rem 0; vertical-align: top; }
.sentences td:first-child { font-variant-numeric: tabular-nums; }
.sentences tbody tr > * { border-top: 1px solid var(--line); }
.word {
  display: inline-block; margin: 0 0 .2rem; padding: .05rem .3rem; border-radius: 4px; text-align: center;
  line-height: 1.25; background: color-mix(in srgb, var(--hot) var(--loss), transparent);
}
.word small { display: block; font-size: .7rem; font-variant-numeric: tabular-nums; }
pre { margin: 0 0 1rem; padding: .7rem; background: var(--page); white-space: pre-wrap; }
code { font: .85rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (max-width: 40rem) {
  main { padding: 1.4rem .8rem 3rem; }
  h1 { font-size: 1.5rem; }
  .results th, .results td { padding: .4rem .55rem; font-size: .88rem; }
  .results th:first-child { white-space: normal; min-width: 9rem; max-width: 11rem; }
  figure { padding: .8rem .6rem; }
}
@media print {
  body { background: none; }
  figure, details, tr { break-inside: avoid; }
}
""".strip()
