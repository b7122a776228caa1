"""The page is well-formed, needs nothing from outside, escapes what files say and never changes by itself."""

from __future__ import annotations

import json
import re
from html import escape
from html.parser import HTMLParser

import pytest

from tests.report.conftest import PLOT, write_report, write_run_directory

WORDS, SECONDS, LOG_Z, SPEED, QUALITY = PLOTS = (
    "Validation perplexity by training words",
    "Validation perplexity by training time",
    "Normalisation on test",
    "Training speed",
    "Time to quality",
)
DRAWN = [("nce", 5), ("snce", 5), ("bnce", 0), ("bnce", 5)]
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
def written(runs, tmp_path_factory):
    """Give the report of all of them."""
    return write_report(tmp_path_factory.mktemp("report") / "first", runs)


def legend(page, heading):
    """List the runs that a plot's legend names, with their letters."""
    figure = re.search(rf"<h3>{heading}</h3>(.*?)</figure>", page, flags=re.S)[1]
    return [
        (name, letter) for letter, name in re.findall(r'<li><span class="mark"[^>]*>(.)</span>([^<]*)</li>', figure)
    ]


def test_the_whole_page(written):
    page = Page(written.page)
    assert page.tags.count("img") == 5
    assert page.tags.count("table") == 1 + 3 * 5
    assert page.tags.count("details") == 3
    assert "script" not in page.tags
    assert "link" not in page.tags
    words = " ".join([*page.words, *written.plots.values()])
    for expected in (
        "Language models on ltcb", "RNN (S-NCE, K=100)", "37.8K", "6.41", "training words per second",
        "training time (seconds, log scale)", "log Z of a context (nats)", "perplexity per token (log scale)",
        "ln Z = 9", "<unk> (OOV) 2.30% of words", "bnce train ltcb --model rnn --loss snce", "0a1b2c3d4e5f",
        "3.00 GiB", "learning_rate",
    ):  # fmt: skip
        assert expected in words
    assert "prefers-color-scheme: dark" in written.page
    assert 'name="viewport"' in written.page


def test_nothing_comes_from_outside(written):
    assert not re.search(r"https?:|@import|//[a-z]", re.sub(rf'{re.escape(PLOT)}[^"]*', "", written.page))
    assert len(Page(written.page).references) == len(written.plots) == 5
    for plot in written.plots.values():
        references = re.findall(r'(?:url\(|href=")([^")]*)', plot)
        assert references
        assert all(reference.startswith("#") for reference in references)


def test_the_same_runs_give_the_same_page(runs, report, written):
    again = report(runs)
    assert (again.page, again.plots) == (written.page, written.plots)


def test_what_files_say_is_escaped(tmp_path, write_run, report):
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
    page = Page(report([path, write_run(tmp_path / "other")]).page)
    assert not {"script", "b", "i"} & set(page.tags)
    assert "RNN (B-NCE), <b>&" in page.words
    assert sum(evil in words for words in page.words) >= 8


@pytest.mark.parametrize("name", ["$x$ \\frac", "日本語", 'id="x" #0072b2', "a\x1b[31m\nb", "W" * 200])
def test_odd_names_can_be_drawn(tmp_path, write_run, report, name):
    written = report([write_run(tmp_path / name), write_run(tmp_path / "other")])
    page = Page(written.page)
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    assert sum(f"RNN (B-NCE), {shown}"[:50] in words for words in page.words) == 5
    assert f">RNN (B-NCE), {escape(shown, quote=False)}"[:50] in written.plots[SPEED]


def test_one_colour_a_loss_in_every_plot(written):
    of_losses = {"#5b6472", "#d55e00", "#0072b2"}
    ink_and_grid = {"#24292f", "#d8dee4"}
    assert tuple(written.plots) == PLOTS
    for plot in written.plots.values():
        assert set(re.findall(r"(?:stroke|fill): (#\w{6})", plot)) - ink_and_grid == of_losses
    labels = ["RNN (softmax)", "RNN (S-NCE, K=100)", "RNN (B-NCE)"]
    assert [name for name, _ in legend(written.page, LOG_Z)] == labels
    assert legend(written.page, SPEED) == legend(written.page, QUALITY) == []


def test_losses_have_colours_of_their_own(tmp_path, write_run, report):
    runs = [write_run(tmp_path / f"{loss}-{drawn}", "rnn", loss, num_noise=drawn) for loss, drawn in DRAWN]
    marks = re.findall(
        r'<th scope="row"><span class="mark" style="color:(#\w{6})">.</span>([^<]*)</th>', report(runs).page
    )
    assert {name: colour for colour, name in marks} == {
        "RNN (NCE, K=5)": "#c98500", "RNN (S-NCE, K=5)": "#d55e00", "RNN (B-NCE)": "#0072b2",
        "RNN (adaptive B-NCE, K=5)": "#009e73",
    }  # fmt: skip


def test_ppl_n_is_dashed_and_softmax_has_none(runs, report, written):
    def num_dashed(plots):
        return len(re.findall(r"stroke-dasharray: [1-9]", plots[WORDS]))

    assert num_dashed(written.plots) == 2
    assert num_dashed(report(runs[:1]).plots) == 0


def test_runs_without_data_are_not_drawn(tmp_path, write_run, report):
    path = write_run(tmp_path / "a", num_evaluations=0, evaluation={"log_z_histogram": {"edges": [1], "counts": [1]}})
    other = write_run(tmp_path / "b", "ffnn", num_evaluations=1, evaluated=False)
    written = report([path, other])
    assert set(written.plots) == {WORDS, SECONDS, SPEED}, "there is no softmax run to be as good as"
    for heading in (WORDS, SECONDS):
        assert [name for name, _ in legend(written.page, heading)] == ["5-gram FFNN (B-NCE)"]
    assert written.page.count("No run has recorded this yet.") == 1, "of log Z"
    assert written.page.count("This plot needs a finished softmax run of the same model on the same corpus") == 1


def test_time_to_quality_is_drawn_of_runs_that_have_a_quality_to_reach(tmp_path, write_run, report):
    softmax = write_run(tmp_path / "softmax", "rnn", "softmax")
    slow = write_run(tmp_path / "slow", "rnn", "snce", num_evaluations=1)
    (slow / "metrics.jsonl").write_text('{"step": 1, "seconds": 1000.0, "ppl_f": 999.0}\n')
    fast = write_run(tmp_path / "fast", "rnn", "bnce")
    (fast / "metrics.jsonl").write_text('{"step": 1, "seconds": 10.0, "ppl_f": 80.0}\n')
    # Nothing sets a quality for this one: it is the same model, but of another size.
    small = write_run(tmp_path / "small", "rnn", "bnce", num_noise=7)
    (small / "config.toml").write_text((small / "config.toml").read_text().replace("= 600\n", "= 60\n"))
    written = report([softmax, slow, fast, small])
    assert re.findall(r">([^<>]*RNN[^<>]*|≤[^<>]*|[^<>]* min|not reached)<", written.plots[QUALITY]) == [
        "RNN (softmax)", "21 h 41 min", "RNN (S-NCE, K=100)", "not reached", "RNN (B-NCE)", "≤ 10.0 s",
    ]  # fmt: skip
    record = json.loads(written.json)["rows"]
    told = {row["run"]: (row["seconds_to_softmax_quality"], row["reached_at_first_evaluation"]) for row in record}
    assert told["fast"] == (10.0, True)
    assert told["slow"] == told["small"] == (None, False)
    targets = {row["run"]: row["softmax_quality_ppl_f"] for row in record}
    assert targets["softmax"] == targets["slow"] == pytest.approx(1.05 * 79.7 * 1.0733, rel=1e-4)
    assert targets["small"] is None


def test_warnings_stand_on_the_page(tmp_path, write_run, report):
    odd = write_run(tmp_path / "odd", "ffnn", summary={"vocabulary_digest": "ffff"})
    source = report([odd, write_run(tmp_path / "a"), write_run(tmp_path / "b", "relu-lstm")]).page
    assert 'class="warning"' in source
    assert "5-gram FFNN (B-NCE) cannot be compared fairly" in source


def test_what_a_run_warned_of_stands_on_the_page(tmp_path, write_run, report):
    path = write_run(tmp_path / "a", summary={"warnings": ["Validation PPLf is 9e9 <at> step 7."]})
    assert "<li>RNN (B-NCE): Validation PPL<sup>f</sup> is 9e9 &lt;at&gt; step 7.</li>" in report([path]).page


def test_runs_of_one_colour_have_different_markers(tmp_path, write_run, report):
    paths = [write_run(tmp_path / name) for name in "abc"] + [write_run(tmp_path / "lstm", "relu-lstm")]
    chosen = dict(legend(report([*paths, write_run(tmp_path / "s", "relu-lstm", "softmax")]).page, WORDS))
    assert len({letter for label, letter in chosen.items() if label != "ReLu-LSTM (softmax)"}) == 4
    assert chosen["ReLu-LSTM (softmax)"] == chosen["ReLu-LSTM (B-NCE)"]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.5, 2e4, ["1", "10", "100", "1K", "10K"]),
        (55, 620, ["60", "80", "100", "150", "200", "300", "400", "500", "600"]),
        (8, 120, ["10", "20", "50", "100"]),
        (60.9, 63.1, ["61", "61.5", "62", "62.5", "63"]),
        (0.19, 0.31, ["0.2", "0.25", "0.3"]),
        (1390, 1610, ["1.4K", "1.45K", "1.5K", "1.55K", "1.6K"]),
        (0.9e8, 1.3e9, ["100M", "200M", "500M", "1B"]),
    ],
)
def test_ticks_of_a_logarithmic_axis(tmp_path, write_run, report, low, high, ticks):
    path = write_run(tmp_path / "a", "rnn", "softmax")
    margin = (high / low) ** (1 / 22)  # what matplotlib leaves free at both ends: 5% of what is drawn
    lines = [{"step": 1, "tokens": 1, "ppl_f": high / margin}, {"step": 2, "tokens": 2, "ppl_f": low * margin}]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    axis = report([path]).plots[WORDS].partition('id="matplotlib.axis_2"')[2]
    assert re.findall(r">([\d.]+[KMB]?)</text>", axis) == ticks


def test_a_long_name_is_cut_above_its_bar(tmp_path, write_run, report):
    svg = report([write_run(tmp_path / ("w" * 200)), write_run(tmp_path / "other")]).plots[SPEED]
    assert f">RNN (B-NCE), {'w' * 46}…<" in svg
    assert ">RNN (B-NCE), other<" in svg
