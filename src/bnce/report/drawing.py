"""Figures that live inside a page: one style, ids of their own, the page's colours and font."""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from bnce.report import numbers
from bnce.report.names import colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, _GRID = "#24292f", "#d8dee4"
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and takes the page's font
    "svg.hashsalt": "bnce",  # the same runs give the same bytes
    "text.parse_math": False,  # a directory may have a dollar sign in its name
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": _GRID,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
}
_WIDTH, HEIGHT = 5.6, 3.9
# Not in a page: metadata names outside addresses, and a style sheet inside would style the whole page.
_LEFT_OUT = ("metadata", "style")


@contextmanager
def page_style() -> Iterator[None]:
    """Draw in the page's style for the length of a `with`."""
    import matplotlib as mpl

    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # The page's reader has other fonts than the machine that draws.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_axes(height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Make an empty figure of the width all plots share."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def make_logarithmic(axes: Axes, direction: str) -> None:
    """Put an axis, "x" or "y", on a logarithmic scale with round numbers on it."""
    from matplotlib.ticker import NullLocator

    axes.set(**{f"{direction}scale": "log"})
    axis = axes.xaxis if direction == "x" else axes.yaxis
    low, high = axes.get_xlim() if direction == "x" else axes.get_ylim()
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(log_ticks(low, high))
    axis.set_major_formatter(numbers.axis)
    axes.set(**{f"{direction}lim": (low, high)})


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers from low to high, no more of them than a logarithmic axis has room for."""
    exponents = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for mantissas in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [m * 10.0**e for e in exponents for m in mantissas if low <= m * 10.0**e <= high]
        if len(ticks) >= 4:
            return ticks
    from matplotlib.ticker import MaxNLocator

    return [float(tick) for tick in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= tick <= high]


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Draw the figure as an `<svg>` element; its ids begin with `name`, so that two can share a page."""
    written = io.BytesIO()
    figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(written.getvalue())
    _prune(root)
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {_local(key): _rewrite(_local(key), value, name) for key, value in element.attrib.items()}
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib |= {"role": "img", "aria-label": description}
    return ElementTree.tostring(root, encoding="unicode")


def _prune(element: ElementTree.Element) -> None:
    for child in list(element):
        if _local(child.tag) in _LEFT_OUT:
            element.remove(child)
        else:
            _prune(child)


def _local(name: str) -> str:
    """The name without its namespace, which HTML does not need."""
    return name.rpartition("}")[2]


def _rewrite(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "href":
        return value.replace("#", f"#{name}-", 1)
    value = re.sub(r"url\(#", f"url(#{name}-", value)
    if key == "style":
        shown = {INK: "currentColor", _GRID: "var(--grid)"}
        shown |= {colour.light: f"var({colour.variable})" for colour in colours()}
        for drawn, in_page in shown.items():
            value = value.replace(drawn, in_page)
    return value
