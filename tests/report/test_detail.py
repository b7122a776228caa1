"""Where the test is hard, on the page: drawn for runs that recorded it, absent for others, escaped and in order."""

from __future__ import annotations

import re

import pytest

from bnce.report.comparison import compare_runs
from bnce.report.detail import draw_detail_plots, read_groups, read_worst_sentences
from bnce.report.page import to_html

from .test_page import Page

DETAIL = {
    "by_frequency": [
        {"name": "1-10", "num_tokens": 9, "ppl_n": 7.0, "ppl_f": 6.0},
        {"name": "11-100", "num_tokens": 5, "ppl_n": 50.0, "ppl_f": 48.0},
        {"name": "100001+", "num_tokens": 2, "ppl_n": 9000.0, "ppl_f": 8000.0},
        {"name": "<unk>", "num_tokens": 1, "ppl_n": 10.0, "ppl_f": 9.0},
    ],
    "by_position": [
        {"name": str(place), "num_tokens": 3, "ppl_n": 100.0 - place, "ppl_f": 99.0 - place} for place in range(1, 21)
    ]
    + [{"name": "21-40", "num_tokens": 3, "ppl_n": 60.0, "ppl_f": 59.0}],
    "worst_sentences": [
        {
            "first_token": 3,
            "num_tokens": 9,
            "mean_loss_nats": 8.25,
            "words": ["<b>&", "word", "</s>"],
            "losses_nats": [14.0, 6.0, 0.04],
        }
    ],
}


def test_a_page_without_detail_says_nothing_of_it(tmp_path, write_run):
    comparison = compare_runs([write_run(tmp_path / "old")])
    assert draw_detail_plots(comparison) == []
    page = Page(to_html(comparison))
    assert page.tags.count("svg") == 4
    assert "Worst sentences" not in page.words


def test_runs_with_detail_are_drawn_and_old_ones_left_out(tmp_path, write_run):
    paths = [
        write_run(tmp_path / "softmax", "rnn", "softmax"),
        write_run(tmp_path / "bnce", "rnn", "bnce", evaluation={"detail": DETAIL}),
        write_run(tmp_path / "snce", "rnn", "snce", num_noise=100, evaluation={"detail": DETAIL}),
    ]
    comparison = compare_runs(paths)
    frequency, position = draw_detail_plots(comparison)
    for plot in (frequency, position):
        assert [entry.row.run for entry in plot.legend] == ["snce", "bnce"]
        assert "var(--bnce)" in plot.svg
        assert "var(--softmax)" not in plot.svg
        assert len(re.findall(r"stroke-dasharray: [1-9]", plot.svg)) == 2
    for label in ("–10", "–100", "100K+", "&lt;unk&gt;", "rank in the training text"):
        assert label in frequency.svg
    assert "position in the sentence" in position.svg
    source = to_html(comparison)
    page = Page(source)
    assert page.tags.count("svg") == 7
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("details") == 3 + 2
    assert '<span class="word" style="--loss:100%">&lt;b&gt;&amp;<small>14.0</small></span>' in source
    assert '<span class="word" style="--loss:50%">word<small>6.0</small></span>' in source
    assert '<span class="word" style="--loss:0%">&lt;/s&gt;<small>0.0</small></span> …</td>' in source
    assert not re.search(r"https?:|@import|//[a-z]", source)


@pytest.mark.parametrize(
    "detail",
    [
        None,
        [],
        "text",
        {"by_frequency": 3, "by_position": [1, None], "worst_sentences": "x"},
        {"by_frequency": [{"name": 3}, {"name": "1-10", "ppl_f": None}], "worst_sentences": [{"words": ["a"]}]},
        {"worst_sentences": [{"mean_loss_nats": 1.0, "words": ["a"], "losses_nats": []}]},
    ],
)
def test_damaged_detail_is_left_out(tmp_path, write_run, detail):
    comparison = compare_runs([write_run(tmp_path / "run", evaluation={"detail": detail})])
    (entry,) = comparison.entries
    assert read_groups(entry, "by_frequency") == read_groups(entry, "by_position") == []
    assert read_worst_sentences(entry) == []
    assert Page(to_html(comparison)).tags.count("svg") == 4


def test_a_loss_that_was_not_finite_is_shown_as_high_as_can_be(tmp_path, write_run):
    sentence = {"mean_loss_nats": 9.0, "words": ["a\x1b"], "losses_nats": [None]}
    comparison = compare_runs([write_run(tmp_path / "run", evaluation={"detail": {"worst_sentences": [sentence]}})])
    ((found,),) = (read_worst_sentences(entry) for entry in comparison.entries)
    assert found.words == [("a\N{REPLACEMENT CHARACTER}", 12.0)]
