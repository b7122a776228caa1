"""`bnce calibrate`: what it prints, what `bnce info` shows afterwards, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import Command, Refused


def test_the_new_run_is_used_as_any(bnce: Command, trained: Path, texts: Path, place: Path) -> None:
    out, text = place / "new", texts / "train.txt"
    record = bnce("calibrate", trained, "--text", text, "--out", out, "--json").json
    assert (record["run"], record["out"], record["texts"]) == (str(trained), str(out), [str(text)])
    assert [path.name for path in place.iterdir()] == ["new"]
    assert record["after"]["ppl_n"] == pytest.approx(record["after"]["ppl_f"], rel=0.02)
    info = bnce("info", out, "--json").json
    assert {key: record[key] for key in info["calibration"]} == info["calibration"]
    assert "calibration" not in bnce("info", trained, "--json").json
    printed = bnce("info", out).stdout
    assert f"texts: {text}" in printed
    assert re.search(r"date: \d{4}-\d\d-\d\dT", printed)

    evaluated = bnce("evaluate", out, "--text", text, "--json").json
    assert evaluated["ppl_n"] == pytest.approx(evaluated["ppl_f"], rel=0.01)
    scored = bnce("score", out, text, "--mode", "checked", "--json").json
    assert scored["log_z"] == pytest.approx(record["log_z"], abs=1e-6)
    assert bnce("info", out, "--check").status == 0
    assert bnce("evaluate", out, "--save").status == 0
    assert bnce("compare", out).status == 0


def test_says_what_was_done(bnce: Command, trained: Path, texts: Path, place: Path) -> None:
    outcome = bnce(
        "calibrate", trained, "--text", texts / "valid.txt", "--text", texts / "test.txt", "--out", place / "a"
    )
    lines = outcome.stdout.splitlines()
    assert (
        lines[0] == f"{place / 'a'}: the constant, fitted to 880 words of {texts / 'valid.txt'}, {texts / 'test.txt'}"
    )
    assert re.fullmatch(
        r"  ln Z = \d\.\d{3} \(before: 9\.000\), standard error \d\.\d{3}: PPLn on this text is known to about [\d.]+%",
        lines[1],
    )
    assert re.fullmatch(r"  on \d+ words that the fit did not use:", lines[2])
    quality = r"PPLf [\d.]+  PPLn [\d.]+  ln Z\(context\) − its replacement: [+-]\d\.\d{3} ± \d\.\d{3} \(mean ± .*\)"
    assert re.fullmatch(f"    before {quality}", lines[3])
    assert re.fullmatch(f"    after  {quality}", lines[4])
    assert "typically off by a factor of 1." in lines[5]
    assert len(lines) == 6
    head = bnce("calibrate", trained, "--kind", "head", "--by-sentence", "--out", place / "b").stdout.splitlines()
    assert head[0].startswith(f"{place / 'b'}: a head and a constant, fitted to 480 words of valid of ")
    assert head[0].endswith(", every sentence without context")
    assert "the mean of ln Z(context) minus the prediction of the head" in head[1]


def test_refused(refused: Refused, trained: Path, texts: Path, place: Path) -> None:
    text = ["--text", texts / "test.txt"]
    out = ["--out", place / "a"]
    assert "--out" in refused("calibrate", trained, *text)
    assert "Unknown kind of calibration 'lines'" in refused("calibrate", trained, *text, "--kind", "lines", *out)
    (place / "short.txt").write_text("ba be\n" * 10, encoding="utf-8")
    assert "There are 30 words" in refused("calibrate", trained, "--text", place / "short.txt", *out)
    (place / "short.txt").unlink()
    assert "is not a run directory" in refused("calibrate", texts, *text, *out)
    assert list(place.iterdir()) == []
