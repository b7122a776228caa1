"""Perplexities of Tables 2 and 4 of Oualil & Klakow (2017), which results.md has in brackets: PPLn and PPLf."""

from __future__ import annotations

TABLE_2: dict[tuple[str, str], tuple[float | None, float]] = {
    ("ffnn", "softmax"): (None, 110.2),
    ("ffnn", "snce"): (129.8, 125.4),
    ("ffnn", "bnce"): (119.4, 113.7),
    ("rnn", "softmax"): (None, 79.7),
    ("rnn", "snce"): (88.7, 84.2),
    ("rnn", "bnce"): (87.6, 82.5),
    ("relu-rnn", "softmax"): (None, 69.5),
    ("relu-rnn", "snce"): (80.2, 77.3),
    ("relu-rnn", "bnce"): (79.4, 76.0),
    ("lstm", "softmax"): (None, 62.5),
    ("lstm", "snce"): (77.4, 73.1),
    ("lstm", "bnce"): (70.9, 68.3),
    ("relu-lstm", "softmax"): (None, 59.2),
    ("relu-lstm", "snce"): (68.4, 67.1),
    ("relu-lstm", "bnce"): (64.9, 62.4),
}
TABLE_4: dict[tuple[str, str], tuple[float | None, float]] = {
    ("ffnn", "snce"): (86.3, 84.4),
    ("ffnn", "bnce"): (81.9, 80.6),
    ("rnn", "snce"): (70.8, 67.6),
    ("rnn", "bnce"): (63.4, 61.4),
    ("relu-rnn", "snce"): (59.6, 59.1),
    ("relu-rnn", "bnce"): (56.9, 56.6),
    ("lstm", "snce"): (51.3, 50.3),
    ("lstm", "bnce"): (48.6, 48.1),
    ("relu-lstm", "snce"): (51.0, 50.9),
    ("relu-lstm", "bnce"): (49.2, 48.8),
}
