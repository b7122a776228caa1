"""The worst sentences on the page: of runs that recorded them, absent for others, escaped and in order."""

from __future__ import annotations

import pytest

from .test_page import Page

WORST = {
    "first_token": 3,
    "num_tokens": 9,
    "mean_loss_nats": 8.25,
    "words": ["<b>&", "word", "</s>"],
    "losses_nats": [14.0, 6.0, 0.04],
}


def test_a_page_without_detail_says_nothing_of_it(tmp_path, write_run, report):
    page = Page(report([write_run(tmp_path / "old")]).page)
    assert "Worst sentences" not in page.words


def test_sentences_of_runs_with_detail(tmp_path, write_run, report):
    detail = {"worst_sentences": [WORST]}
    paths = [
        write_run(tmp_path / "softmax", "rnn", "softmax"),
        write_run(tmp_path / "bnce", "rnn", "bnce", evaluation={"detail": detail}),
        write_run(tmp_path / "snce", "rnn", "snce", num_noise=100, evaluation={"detail": detail}),
    ]
    source = report(paths).page
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
def test_damaged_detail_is_left_out(tmp_path, write_run, report, detail):
    page = report([write_run(tmp_path / "run", evaluation={"detail": detail})]).page
    assert "Worst sentences" not in Page(page).words


def test_a_loss_that_was_not_finite_is_shown_as_high_as_can_be(tmp_path, write_run, report):
    sentence = {"mean_loss_nats": 9.0, "words": ["a\x1b"], "losses_nats": [None]}
    page = report([write_run(tmp_path / "run", evaluation={"detail": {"worst_sentences": [sentence]}})]).page
    assert 'style="--loss:100%">a\N{REPLACEMENT CHARACTER}<small>12.0</small>' in page
