"""TSV: utterance, scores, hypothesis. A first line that begins with `utt` names the columns.

Without it there are two scores, the acoustic one and that of the old language model.
"""

from __future__ import annotations

from bnce.errors import UserError
from bnce.rescoring.formats.source import AM, OLD_LM, UTTERANCE_NAMES, Source, number, role_names
from bnce.rescoring.nbest import NBest, Utterance, make_nbest, neighbour

_COLUMNS = ["utt", AM, OLD_LM, "hypothesis"]


def recognise(source: Source) -> bool:
    """Tell a table by its header or its four columns."""
    lines = source.first_lines()
    return bool(lines) and (_is_header(lines[0]) or all(line.count("\t") == 3 for line in lines))


def read(source: Source) -> NBest:
    """Read one hypothesis per line."""
    utterances: dict[str, Utterance] = {}
    columns = _COLUMNS
    for place, (line, text) in enumerate(source.filled()):
        where = source.at(line)
        cells = text.split("\t")
        if place == 0 and _is_header(text):
            columns = [cell.strip() for cell in cells]
            if len(columns) < 2 or len(set(columns)) < len(columns) or "" in columns:
                raise UserError(
                    f"{where} names the columns {', '.join(columns)}: give utterance, scores and hypothesis, "
                    "each with a name of its own."
                )
            continue
        if len(cells) != len(columns):
            raise UserError(
                f"{where} has {len(cells)} columns instead of {len(columns)}: give {_told(columns)} separated by tabs."
            )
        name = cells[0].strip()
        if not name:
            raise UserError(f"{where} has no utterance: give its name in the first column.")
        utterance = neighbour(source, utterances, Utterance(name, line=line))
        names = role_names(columns[1:-1])
        scores = {
            names[column]: number(cell.strip(), where)
            for column, cell in zip(columns[1:-1], cells[1:-1], strict=True)
            if cell.strip() or columns is _COLUMNS
        }
        utterance.add(cells[-1], scores)
    sources = {role: column for column, role in role_names(columns[1:-1]).items() if role != column}
    return make_nbest(source, utterances.values(), sources, "tsv")


def _is_header(line: str) -> bool:
    return "\t" in line and line.split("\t")[0].strip().lower() in UTTERANCE_NAMES


def _told(columns: list[str]) -> str:
    if columns is _COLUMNS:
        return "utterance, acoustic score, language model score and hypothesis"
    return ", ".join(columns)
