"""The forms a comparison can be had in, by name, and the files that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bnce.errors import unknown_name
from bnce.files import make_directory, write_text

if TYPE_CHECKING:
    from bnce.report.comparison import Comparison

FORMATS = ("table", "md", "latex", "csv", "json", "html")
FILES = {
    "md": "table.md",
    "latex": "table.tex",
    "csv": "table.csv",
    "json": "table.json",
    "html": "report.html",
}


def render(comparison: Comparison, form: str) -> str:
    """The comparison as text in one of the `FILES` forms."""
    # Here and not above: matplotlib takes a second to load, and only the page needs it.
    if form == "html":
        from bnce.report.page import to_html

        return to_html(comparison)
    from bnce.report import table

    renderers = {"md": table.to_markdown, "latex": table.to_latex, "csv": table.to_csv, "json": table.to_json}
    if form not in renderers:
        raise unknown_name("format", form, FILES)
    return renderers[form](comparison)


def write_files(comparison: Comparison, directory: str | Path) -> list[Path]:
    """Write every form into `directory`, each file whole or not at all, over what bears its name."""
    directory = Path(directory)
    rendered = {directory / name: render(comparison, form) for form, name in FILES.items()}
    make_directory(directory)
    for path, content in rendered.items():
        write_text(path, content)
    return list(rendered)
