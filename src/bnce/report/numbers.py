"""Numbers as the paper's tables print them."""

from __future__ import annotations

import math

MISSING = "—"


def perplexity(value: float | None) -> str:
    """One decimal, as in the paper; three digits once there is nothing left to compare."""
    if value is None:
        return MISSING
    return f"{value:.1f}" if value < 1e5 else f"{value:.2e}"


def speed(words_per_second: float | None) -> str:
    """`812`, `35.1K`, `5.87M`, `12.3M`."""
    if words_per_second is None:
        return MISSING
    if words_per_second < 999.5:
        return f"{words_per_second:.0f}"
    if words_per_second < 999_950:
        return f"{words_per_second / 1e3:.1f}K"
    millions = words_per_second / 1e6
    return f"{millions:.2f}M" if millions < 9.995 else f"{millions:.1f}M"


def parameters(num_parameters: float | None) -> str:
    """`48.8M` and, as the paper changes units, `0.88B`."""
    if num_parameters is None:
        return MISSING
    if num_parameters < 1e3:
        return f"{num_parameters:.0f}"
    if num_parameters < 999_950:
        return f"{num_parameters / 1e3:.1f}K"
    if num_parameters < 500e6:
        return f"{num_parameters / 1e6:.1f}M"
    return f"{num_parameters / 1e9:.2f}B"


def ratio(value: float | None) -> str:
    """`4.18`, `24.3`."""
    if value is None:
        return MISSING
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def spread(mean: float | None, deviation: float | None) -> str:
    """`8.98 ± 0.31`."""
    if mean is None:
        return MISSING
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def epochs(value: float | None) -> str:
    """`20`, `1.5`, `0.04`."""
    return MISSING if value is None else f"{value:.2f}".rstrip("0").rstrip(".")


def duration(seconds: float | None) -> str:
    """`12.3 s`, `12 min 30 s`, `3 h 05 min`, `2 d 03 h`."""
    if seconds is None:
        return MISSING
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def share(value: float | None) -> str:
    """`2.30%`."""
    return MISSING if value is None else f"{value:.2%}"


def memory(num_bytes: float | None) -> str:
    """`512 MiB`, `3.42 GiB`."""
    if num_bytes is None:
        return MISSING
    mebibytes = num_bytes / 2**20
    return f"{mebibytes:.0f} MiB" if mebibytes < 1023.5 else f"{mebibytes / 1024:.2f} GiB"


def axis(value: float, _position: float | None = None) -> str:
    """A tick label: as short as it can be without changing the value; matplotlib passes a position too."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= limit:
            return f"{value / limit:.4g}{unit}"
    return f"{value:.4g}" if math.isfinite(value) else ""
