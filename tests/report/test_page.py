"""The page is well-formed, needs nothing from outside, escapes what files say and never changes by itself."""

from __future__ import annotations

import base64
import re
from html import escape
from html.parser import HTMLParser

import pytest

from bnce.report.comparison import compare_runs
from bnce.report.drawing import log_ticks
from bnce.report.page import to_html
from bnce.report.plots import draw_plots, markers
from tests.report.conftest import write_run_directory

PLOT = "data:image/svg+xml;base64,"
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Checks nesting while it reads, and keeps what tests ask for."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.references, self.words = [], [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        for key, value in attrs:
            if key in ("href", "src"):
                self.references.append(value)
            self.references += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def drawn(image):
    """Read the SVG of a plot."""
    assert image.startswith(PLOT)
    return base64.b64decode(image.removeprefix(PLOT)).decode()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Give three runs; nobody may change them."""
    place = tmp_path_factory.mktemp("runs")
    return [
        write_run_directory(place / "softmax", "rnn", "softmax"),
        write_run_directory(place / "snce", "rnn", "snce", num_noise=100),
        write_run_directory(place / "bnce", "rnn", "bnce"),
    ]


@pytest.fixture(scope="module")
def source(runs):
    """Give the page of all of them."""
    return to_html(compare_runs(runs))


def test_the_whole_page(source):
    page = Page(source)
    assert page.tags.count("img") == 5
    assert page.tags.count("table") == 1 + 3 * 5
    assert page.tags.count("details") == 3
    assert "script" not in page.tags
    assert "link" not in page.tags
    words = " ".join([*page.words, *map(drawn, page.references)])
    for expected in (
        "Language models on ltcb", "RNN (S-NCE, K=100)", "37.8K", "6.41", "training words per second",
        "training time (seconds, log scale)", "log Z of a context (nats)", "perplexity per token (log scale)",
        "ln Z = 9", "<unk> (OOV) 2.30% of words", "bnce train ltcb --model rnn --loss snce", "0a1b2c3d4e5f",
        "3.00 GiB", "learning_rate",
    ):  # fmt: skip
        assert expected in words
    assert "prefers-color-scheme: dark" in source
    assert 'name="viewport"' in source


def test_nothing_comes_from_outside(source):
    page = Page(source)
    assert not re.search(r"https?:|@import|//[a-z]", source)
    for plot in map(drawn, page.references):
        references = re.findall(r'(?:url\(|href=")([^")]*)', plot)
        assert references
        assert all(reference.startswith("#") for reference in references)


def test_the_same_runs_give_the_same_page(runs, source):
    assert to_html(compare_runs(runs)) == source


def test_what_files_say_is_escaped(tmp_path, write_run):
    evil = "<script>alert(1)</script>"
    told = {
        "device": evil,
        "command": evil,
        "commit": evil,
        "torch": evil,
        "vocabulary_digest": evil,
        "status": evil,
    }
    path = write_run(tmp_path / "<b>&", summary=told)
    settings = (path / "config.toml").read_text()
    settings = settings.replace('"corpora/ltcb"', f"'<i>{evil}'").replace(
        "[optimiser]", f"[optimiser]\n'{evil}' = '{evil}'"
    )
    (path / "config.toml").write_text(settings)
    page = Page(to_html(compare_runs([path, write_run(tmp_path / "other")], evil)))
    assert not {"script", "b", "i"} & set(page.tags)
    assert "RNN (B-NCE), <b>&" in page.words
    assert sum(evil in words for words in page.words) >= 8


@pytest.mark.parametrize("name", ["$x$ \\frac", "日本語", 'id="x" #0072b2', "a\x1b[31m\nb", "W" * 200])
def test_odd_names_can_be_drawn(tmp_path, write_run, name):
    page = Page(to_html(compare_runs([write_run(tmp_path / name), write_run(tmp_path / "other")])))
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    assert sum(f"RNN (B-NCE), {shown}"[:50] in words for words in page.words) == 5
    assert any(f">RNN (B-NCE), {escape(shown, quote=False)}"[:50] in drawn(plot) for plot in page.references)


def test_one_colour_a_loss_in_every_plot(runs):
    words, seconds, log_z, speed, quality = draw_plots(compare_runs(runs))
    of_losses = {"#5b6472", "#d55e00", "#0072b2"}
    ink_and_grid = {"#24292f", "#d8dee4"}
    for plot in (words, seconds, log_z, speed, quality):
        assert set(re.findall(r"(?:stroke|fill): (#\w{6})", drawn(plot.image))) - ink_and_grid == of_losses
    assert [entry.row.run for entry in log_z.legend] == ["softmax", "snce", "bnce"]
    assert speed.legend == quality.legend == ()


def test_ppl_n_is_dashed_and_softmax_has_none(runs):
    def num_dashed(paths):
        svg = drawn(draw_plots(compare_runs(paths))[0].image)
        return len(re.findall(r"stroke-dasharray: [1-9]", svg))

    assert num_dashed(runs) == 2
    assert num_dashed(runs[:1]) == 0


def test_runs_without_data_are_not_drawn(tmp_path, write_run):
    path = write_run(tmp_path / "a", num_evaluations=0, evaluation={"log_z_histogram": {"edges": [1], "counts": [1]}})
    other = write_run(tmp_path / "b", "ffnn", num_evaluations=1, evaluated=False)
    words, seconds, log_z, speed, quality = draw_plots(compare_runs([path, other]))
    assert log_z.image is None
    assert [entry.row.run for entry in words.legend] == ["b"]
    assert [entry.row.run for entry in seconds.legend] == ["b"]
    assert speed.image is not None
    assert quality.image is None, "there is no softmax run to be as good as"
    page = to_html(compare_runs([path, other]))
    assert page.count("No run has recorded this yet.") == 1, "of log Z"
    assert page.count("This plot needs a finished softmax run of the same model on the same corpus") == 1


def test_time_to_quality_is_drawn_of_runs_that_have_a_quality_to_reach(tmp_path, write_run):
    softmax = write_run(tmp_path / "softmax", "rnn", "softmax")
    slow = write_run(tmp_path / "slow", "rnn", "snce", num_evaluations=1)
    (slow / "metrics.jsonl").write_text('{"step": 1, "seconds": 1000.0, "ppl_f": 999.0}\n')
    fast = write_run(tmp_path / "fast", "rnn", "bnce")
    (fast / "metrics.jsonl").write_text('{"step": 1, "seconds": 10.0, "ppl_f": 80.0}\n')
    # Nothing sets a quality for this one: it is the same model, but of another size.
    small = write_run(tmp_path / "small", "rnn", "bnce", num_noise=7)
    (small / "config.toml").write_text((small / "config.toml").read_text().replace("= 600\n", "= 60\n"))
    comparison = compare_runs([softmax, slow, fast, small])
    svg = drawn(draw_plots(comparison)[4].image)
    assert re.findall(r">([^<>]*RNN[^<>]*|≤[^<>]*|[^<>]* min|not reached)<", svg) == [
        "RNN (softmax)", "21 h 41 min", "RNN (S-NCE)", "not reached", "RNN (B-NCE)", "≤ 10.0 s",
    ]  # fmt: skip
    record = comparison.as_record()["rows"]
    told = {row["run"]: (row["seconds_to_softmax_quality"], row["reached_at_first_evaluation"]) for row in record}
    assert told["fast"] == (10.0, True)
    assert told["slow"] == told["small"] == (None, False)
    targets = {row["run"]: row["softmax_quality_ppl_f"] for row in record}
    assert targets["softmax"] == targets["slow"] == pytest.approx(1.05 * 79.7 * 1.0733, rel=1e-4)
    assert targets["small"] is None


def test_warnings_stand_on_the_page(tmp_path, write_run):
    odd = write_run(tmp_path / "odd", "ffnn", summary={"vocabulary_digest": "ffff"})
    source = to_html(compare_runs([odd, write_run(tmp_path / "a"), write_run(tmp_path / "b", "relu-lstm")]))
    assert 'class="warning"' in source
    assert "5-gram FFNN (B-NCE) cannot be compared fairly" in source


def test_what_a_run_warned_of_stands_on_the_page(tmp_path, write_run):
    path = write_run(tmp_path / "a", summary={"warnings": ["Validation PPLf is 9e9 <at> step 7."]})
    assert "<li>RNN (B-NCE): Validation PPL<sup>f</sup> is 9e9 &lt;at&gt; step 7.</li>" in to_html(compare_runs([path]))


def test_runs_of_one_colour_have_different_markers(tmp_path, write_run):
    paths = [write_run(tmp_path / name) for name in "abc"] + [write_run(tmp_path / "lstm", "relu-lstm")]
    comparison = compare_runs([*paths, write_run(tmp_path / "s", "relu-lstm", "softmax")])
    chosen = dict(zip((row.run for row in comparison.rows), markers(comparison.entries), strict=True))
    assert len({chosen[run] for run in ("a", "b", "c", "lstm")}) == 4
    assert chosen["s"] == chosen["lstm"]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.5, 2e4, [1, 10, 100, 1000, 10000]),
        (55, 620, [60, 80, 100, 150, 200, 300, 400, 500, 600]),
        (8, 120, [10, 20, 50, 100]),
        (61, 63, [61, 61.5, 62, 62.5, 63]),
    ],
)
def test_log_ticks(low, high, ticks):
    assert log_ticks(low, high) == pytest.approx(ticks)


def test_a_long_name_is_cut_above_its_bar(tmp_path, write_run):
    comparison = compare_runs([write_run(tmp_path / ("w" * 200)), write_run(tmp_path / "other")])
    svg = drawn(draw_plots(comparison)[3].image)
    assert f">RNN (B-NCE), {'w' * 46}…<" in svg
    assert ">RNN (B-NCE), other<" in svg
