"""The worst sentences on the page: of runs that recorded them, absent for others, escaped and in order."""

from __future__ import annotations

import pytest

from bnce.report.comparison import compare_runs
from bnce.report.page import to_html
from bnce.report.sentences import read_worst_sentences

from .test_page import Page

WORST = {
    "first_token": 3,
    "num_tokens": 9,
    "mean_loss_nats": 8.25,
    "words": ["<b>&", "word", "</s>"],
    "losses_nats": [14.0, 6.0, 0.04],
}


def test_a_page_without_detail_says_nothing_of_it(tmp_path, write_run):
    page = Page(to_html(compare_runs([write_run(tmp_path / "old")])))
    assert "Worst sentences" not in page.words


def test_sentences_of_runs_with_detail(tmp_path, write_run):
    detail = {"worst_sentences": [WORST]}
    paths = [
        write_run(tmp_path / "softmax", "rnn", "softmax"),
        write_run(tmp_path / "bnce", "rnn", "bnce", evaluation={"detail": detail}),
        write_run(tmp_path / "snce", "rnn", "snce", num_noise=100, evaluation={"detail": detail}),
    ]
    source = to_html(compare_runs(paths))
    page = Page(source)
    assert page.tags.count("details") == 3 + 2
    assert '<span class="word" style="--loss:100%">&lt;b&gt;&amp;<small>14.0</small></span>' in source
    assert '<span class="word" style="--loss:50%">word<small>6.0</small></span>' in source
    assert '<span class="word" style="--loss:0%">&lt;/s&gt;<small>0.0</small></span> …</td>' in source


@pytest.mark.parametrize(
    "detail",
    [
        None,
        [],
        "text",
        {"worst_sentences": "x"},
        {"worst_sentences": [1, None, {"words": ["a"]}]},
        {"worst_sentences": [{"mean_loss_nats": 1.0, "words": ["a"], "losses_nats": []}]},
    ],
)
def test_damaged_detail_is_left_out(tmp_path, write_run, detail):
    comparison = compare_runs([write_run(tmp_path / "run", evaluation={"detail": detail})])
    (entry,) = comparison.entries
    assert read_worst_sentences(entry) == []
    assert "Worst sentences" not in Page(to_html(comparison)).words


def test_a_loss_that_was_not_finite_is_shown_as_high_as_can_be(tmp_path, write_run):
    sentence = {"mean_loss_nats": 9.0, "words": ["a\x1b"], "losses_nats": [None]}
    comparison = compare_runs([write_run(tmp_path / "run", evaluation={"detail": {"worst_sentences": [sentence]}})])
    ((found,),) = (read_worst_sentences(entry) for entry in comparison.entries)
    assert found.words == [("a\N{REPLACEMENT CHARACTER}", 12.0)]
