"""Figures that live inside a page: one style, and one string per figure."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from bnce.report import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, _GRID = "#24292f", "#d8dee4"
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text, which takes half the bytes
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


def to_image(figure: Figure) -> str:
    """Draw the figure as the address of an image that holds the whole drawing."""
    written = io.BytesIO()
    figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(written.getvalue()).decode()}"
