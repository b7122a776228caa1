"""Every format of n-best lists: what is written comes back, is recognised, and what cannot be is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from bnce import UserError
from bnce.kinds.nbest_formats import NBEST_FORMATS
from bnce.rescoring.nbest import Utterance, read_nbest
from bnce.rescoring.references import read_references

from .made_lists import LISTS, NO_REFERENCES, NO_SCORES, WRITERS, bare, read, save


def test_every_format_has_its_round_trip() -> None:
    assert set(WRITERS) == set(NBEST_FORMATS.names)


@pytest.mark.parametrize("form", NBEST_FORMATS.names)
@pytest.mark.parametrize("told", [True, False])
def test_round_trip(tmp_path: Path, form: str, told: bool) -> None:
    found = read(WRITERS[form](tmp_path, LISTS), form if told else "auto")
    assert found.form == form
    assert found.utterances == bare(LISTS, scores=form not in NO_SCORES, references=form not in NO_REFERENCES)
    assert found.has_am is (form not in NO_SCORES)


@pytest.mark.parametrize("form", ["jsonl", "tsv", "k2", "trn", "kaldi"])
def test_a_format_is_recognised_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    arguments = WRITERS[form](tmp_path, LISTS)
    content = Path(str(arguments["path"])).read_bytes()

    class Standard:
        buffer = io.BytesIO(content)

    monkeypatch.setattr("sys.stdin", Standard)
    found = read({**arguments, "path": "-"})
    assert (found.form, [one.texts for one in found.utterances]) == (form, [one.texts for one in LISTS])


def test_named_scores_in_json(tmp_path: Path) -> None:
    hypothesis = {"text": "a", "dec": -1.5, "ctc": -2, "lm": -3.0, "score": -4.0, "tokens": [1], "final": True}
    path = save(tmp_path / "n.jsonl", [json.dumps({"utt": "u", "hyps": [hypothesis]})])
    found = read_nbest(path)
    assert found.utterances == [Utterance("u", ["a"], {"am": [-4.0], "old_lm": [-3.0], "dec": [-1.5], "ctc": [-2.0]})]
    assert found.sources == {"am": "score", "old_lm": "lm"}
    assert found.told() == (
        "1 utterance, 1 hypothesis, no references inside; scores: am ('score'), old_lm ('lm'), dec, ctc"
    )


def test_a_score_that_some_lack_is_left_out_and_told(tmp_path: Path) -> None:
    records = ['{"utt": "a", "hyps": [{"text": "x", "dec": 1}]}', '{"utt": "b", "hyps": [{"text": "x"}]}']
    found = read_nbest(save(tmp_path / "n.jsonl", records))
    assert found.score_names == ()
    assert all(not one.scores for one in found.utterances)
    assert "The score 'dec' is not used: " in found.left_out[0]
    assert "line 2 does not have it" in found.left_out[0]


@pytest.mark.parametrize("as_array", [True, False])
def test_lists_without_names(tmp_path: Path, as_array: bool) -> None:
    records = [{"input": ["a b", "a"], "output": "a  b"}, {"input": ["c"], "output": "d"}]
    content = json.dumps(records, indent=1) if as_array else "\n".join(map(json.dumps, records))
    found = read_nbest(save(tmp_path / "hp.json", [content]))
    assert found.utterances == [Utterance("1", ["a b", "a"], {}, "a b"), Utterance("2", ["c"], {}, "d")]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["[", '{"utt": "a", "hyps": ["x"]},', "]"], "line 3 is not a JSON object"),
        (["[", '{"utt": "a", "hyps": ["x"]}'], "has no comma or bracket after an object"),
        (["[", '{"utt": "a", "hyps": ["x"]}', "] 3"], "line 3 has '3' after the array"),
        (['{"utt": "a", "utt": "b", "hyps": ["x"]}'], "line 1 is not a JSON object .*the name 'utt' more than once"),
        (['{"utt": "a", "hyps": ["x"], "ref": 3}'], "line 1 has the reference 3"),
        (['{"utt": "a", "hyps": ["x"], "ref": "x"}', '{"utt": "b", "hyps": ["x"]}'], "line 2 has no reference for 'b'"),
        (['{"input": ["x"]}', '{"utt": "b", "hyps": ["x"]}'], "line 2 differs from the others"),
    ],
)
def test_refused_json(tmp_path: Path, lines: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        read_nbest(save(tmp_path / "n.json", lines))


def beams(place: Path, lines: list[str], names: list[str] | None = None, **options: object) -> list[list[str]]:
    if names is not None:
        options["manifest"] = save(place / "m.json", [json.dumps({"audio_filepath": name}) for name in names])
    found = read({"path": save(place / "b.tsv", lines), **options}, "nemo")
    return [one.texts for one in found.utterances]


def test_beams_are_shared_out(tmp_path: Path) -> None:
    even = ["a\t-1", "b\t-2", "c\t-3", "d\t-4"]
    assert beams(tmp_path, even, beam_size=2) == [["a", "b"], ["c", "d"]]
    assert beams(tmp_path, even, ["x", "y"], beam_size=2) == [["a", "b"], ["c", "d"]]
    assert beams(tmp_path, ["a\t-1", "b\t-2", "\t-1.5"], ["x", "y"]) == [["a", "b"], [""]]
    assert beams(tmp_path, ["a\t-1", "", "b\t-2", "c\t-3"], ["x", "y"]) == [["a"], ["b", "c"]]


@pytest.mark.parametrize(
    ("lines", "names", "options", "told"),
    [
        (["a\t1", "b\t2"], None, {}, "do not say where an utterance ends: give beam_size or manifest"),
        (["a\t1", "b\t0", "c\t2"], None, {"beam_size": 2}, "3 hypotheses, which is not a multiple of 2"),
        (["a\t1", "b\t0"], ["x", "y"], {"beam_size": 2}, "1 utterances of 2 hypotheses, but .* has 2 utterances"),
        (["a\t1", "b\t0", "c\t0"], ["x", "y"], {}, "rise 0 times, which does not fit the 2 utterances"),
        (["a\t1", "b\t0"], ["x", "y"], {}, "rise 0 times, which does not fit"),
        # Rises where even shares have no beginning: one of the two is wrong, and nobody knows which.
        (["a\t1", "b\t2", "c\t1", "d\t0"], ["x", "y"], {}, "rise 1 times, which does not fit"),
        (["a\t1"], ["x", "x"], {}, "line 2 has 'x' again"),
        (["a\t1"], None, {"beam_size": 0}, "beam_size is 0"),
        (["a\t1", "b"], None, {"beam_size": 1}, "line 2 has 1 columns"),
        (["a\t1", "b\tnan"], None, {"beam_size": 1}, "line 2 has the score 'nan'"),
    ],
)
def test_refused_beams(
    tmp_path: Path, lines: list[str], names: list[str] | None, options: dict[str, object], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        beams(tmp_path, lines, names, **options)


def test_jobs_of_a_decode(tmp_path: Path) -> None:
    for job, lists in ((2, LISTS[:1]), (10, LISTS[1:])):
        place = tmp_path / f"logdir/output.{job}"
        WRITERS["espnet"](place, lists)
        for ranked in (place / "decode").iterdir():
            ranked.rename(place / ranked.name)
    assert [one.name for one in read_nbest(tmp_path).utterances] == [one.name for one in LISTS]
    save(tmp_path / "logdir/output.3/1best_recog/text", ["b x"])
    save(tmp_path / "logdir/output.3/1best_recog/score", ["b 1"])
    with pytest.raises(UserError, match="has 'b', which another job has, too"):
        read_nbest(tmp_path)


@pytest.mark.parametrize(
    ("file", "lines", "told"),
    [
        ("2best_recog/text", ["u x", "v y"], "text', line 2 has 'v', which 1best_recog does not have"),
        ("2best_recog/score", ["u 1", "w 2"], "has a score for 'w', which .* does not have"),
        ("2best_recog/score", ["w 2"], "has 'u', which .*score' does not have"),
        ("1best_recog/score", ["u tensor(nan)"], "line 1 has the score 'nan'"),
        ("1best_recog/text", ["u x", "u y"], "line 2 has 'u' again"),
        ("4best_recog/text", ["u x"], "has no 3best_recog, but 4best_recog"),
    ],
)
def test_refused_decodes(tmp_path: Path, file: str, lines: list[str], told: str) -> None:
    for rank in (1, 2):
        save(tmp_path / f"{rank}best_recog/text", ["u x"])
        save(tmp_path / f"{rank}best_recog/score", ["u tensor(-1.5, device='cuda:0')"])
    assert read_nbest(tmp_path).utterances == [Utterance("u", ["x", "x"], {"am": [-1.5, -1.5]})]
    save(tmp_path / file, lines)
    with pytest.raises(UserError, match=told):
        read_nbest(tmp_path)


def test_a_directory_without_a_decode(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no 1best_recog"):
        read_nbest(tmp_path)
    with pytest.raises(UserError, match="is not a directory"):
        read_nbest(save(tmp_path / "x", ["a b"]), "espnet")


@pytest.mark.parametrize(
    ("form", "line", "told"),
    [
        ("trn", "a b", "line 2 does not end in an utterance in brackets"),
        ("trn", "{ a / b } (u)", "line 2 has SCTK's mark '{'"),
        ("trn", "a (uh) (u)", r"line 2 has SCTK's mark '\(uh\)'"),
        ("k2", "u: hyp=['a']", "line 2 is not 'utterance:', a tab"),
        ("k2", "u:\thyp=['a'", "line 2 has words that are not a Python list"),
        ("k2", "u:\thyp=[1]", r"line 2 has the words \[1\]"),
        ("k2", "u:\thyp=['a']\t3", "line 2 has '3' after a hypothesis"),
        ("k2", "u:\thyp=['a']\tam=inf", "line 2 has the score 'inf'"),
        ("tsv", "u\t1\ta", "line 2 has 3 columns instead of 4"),
    ],
)
def test_refused_lines(tmp_path: Path, form: str, line: str, told: str) -> None:
    good = {"trn": "a b (t)", "k2": "t:\thyp=['a', 'b']", "tsv": "t\t1\t2\ta"}[form]
    with pytest.raises(UserError, match=told):
        read_nbest(save(tmp_path / "n", [good, line]), form)


def test_icefall_text_as_it_may_be(tmp_path: Path) -> None:
    lines = ["u:\tref=['a']", "u:\thyp=a  b", "u:\ttimestamp_hyp=[0.1]", "u:\thyp=[]", "v:\tref=[]", "v:\thyp=['c']"]
    found = read_nbest(save(tmp_path / "recogs.txt", lines))
    assert found.utterances == [Utterance("u", ["a b", ""], {}, "a"), Utterance("v", ["c"], {}, "")]
    with pytest.raises(UserError, match="line 7 has a reference again for 'v'"):
        read_nbest(save(tmp_path / "recogs.txt", [*lines, "v:\tref=['d']"]))
    with pytest.raises(UserError, match="line 7 has no hypothesis for 'w'"):
        read_nbest(save(tmp_path / "recogs.txt", [*lines, "w:\tref=['d']"]))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("refs", ["v", "u a b"]),
        ("refs.trn", [";; comment", "(v)", "a b (u)"]),
        ("refs", ["a b (u)", "(v)"]),
        ("refs.json", ['{"utt": "u", "ref": "a b"}', '{"audio_filepath": "v", "text": ""}']),
    ],
)
def test_references_of_all_kinds(tmp_path: Path, name: str, lines: list[str]) -> None:
    path = save(tmp_path / name, lines)
    assert read_references(path, [Utterance("u"), Utterance("v")]) == ["a b", ""]
    with pytest.raises(UserError, match=r"has '[uv]' again on line \d"):
        read_references(save(tmp_path / name, [*lines, *lines]), [Utterance("u")])


def test_the_examples_of_the_documentation(tmp_path: Path) -> None:
    """What docs/rescoring.md shows of each format is read as that format."""
    text = (Path(__file__).parents[2] / "docs" / "rescoring.md").read_text(encoding="utf-8")
    shown = [line.removeprefix("    ") for line in text.splitlines() if line.startswith("    ")]
    blocks = {
        "jsonl": [line for line in shown if line.startswith('{"utt"')],
        "tsv": [line for line in shown if line.startswith(("utt\t", "x\t"))],
        "k2": [line for line in shown if ":\t" in line],
    }
    for form, lines in blocks.items():
        found = read_nbest(save(tmp_path / form, lines))
        assert (found.form, "am" in found.score_names, "ctc" in found.score_names) == (form, True, True)
        assert found.utterances[0].texts[0] == "a b"
    for kind in NBEST_FORMATS:
        assert f"| `{kind.name}` |" in text
