"""Every format of n-best lists: what is written comes back, is recognised, and what cannot be read is refused."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Command, Refused
from pages import read_page

from .made_lists import LISTS, SHOWN, WITHOUT_MODEL, WRITERS, Record, read, record, save

Reader = Callable[..., list[Record]]
FORMS = sorted(WRITERS)
KALDI = ["spk-a-1 the cat sat", "spk-a-2 the  cat", "spk-a-3", "b-1 ünïcode 日本"]


def bare(lists: list[Record], form: str) -> list[Record]:
    """Leave out the references, which only JSON can hold."""
    return [{name: value for name, value in one.items() if form == "jsonl" or name != "ref"} for one in lists]


@pytest.fixture
def lists_of(bnce: Command, trained: Path, tmp_path: Path) -> Reader:
    """Give a reader of lists."""
    return lambda *arguments: read(bnce, trained, arguments, tmp_path / "read.jsonl")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("told", [True, False])
def test_round_trip(bnce: Command, trained: Path, tmp_path: Path, lists_of: Reader, form: str, told: bool) -> None:
    arguments = [*WRITERS[form](tmp_path, LISTS), *(["--format", form] if told else [])]
    assert lists_of(*arguments) == bare(LISTS, form)
    outcome = bnce("rescore", trained, *arguments, *WITHOUT_MODEL)
    assert outcome.stdout == "spk-a the cat sat\nb ünïcode 日本\nc_3 o'clock\n"
    references = "with references" if form == "jsonl" else "no references inside"
    assert f"was read as {SHOWN[form]}: 3 utterances, 7 hypotheses, {references}; scores: am" in outcome.stderr
    found = bnce("rescore", trained, *arguments, *WITHOUT_MODEL, "--json").json
    assert found["format"] == form
    # References that a list has are used, though nobody asked.
    assert ("before" in found) is (form == "jsonl")
    if "before" in found:
        assert found["before"]["wer"] == pytest.approx(3 / 6)


@pytest.mark.parametrize("form", ["jsonl", "tsv", "kaldi"])
def test_a_format_is_recognised_without_a_name(
    tmp_path: Path, lists_of: Reader, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    path, *options = WRITERS[form](tmp_path, LISTS)

    class Standard:
        buffer = io.BytesIO(Path(str(path)).read_bytes())

    monkeypatch.setattr("sys.stdin", Standard)
    assert lists_of("-", *options) == bare(LISTS, form)


def test_formats_by_ending(tmp_path: Path, lists_of: Reader) -> None:
    (tmp_path / "n.tsv.gz").write_bytes(gzip.compress(b"u\t1\t2\ta\n"))
    expected = [{"utt": "u", "hyps": [{"text": "a", "am_score": 1.0, "lm_score": 2.0}]}]
    assert lists_of(tmp_path / "n.tsv.gz") == expected
    assert lists_of(save(tmp_path / "n.txt", ["u\t1\t2\ta"]), "--format", "tsv") == expected


def test_kaldi_with_numbers(bnce: Command, trained: Path, tmp_path: Path, lists_of: Reader) -> None:
    path = save(tmp_path / "nbest", KALDI)
    am = save(tmp_path / "am", ["b-1 4", "spk-a-1 1.5", "spk-a-2 -2e1", "spk-a-3 0", "other-1 7"])
    expected = [record("spk-a", None, ("the cat sat", 1.5), ("the cat", -20.0), ("", 0.0))]
    expected.append(record("b", None, ("ünïcode 日本", 4.0)))
    assert lists_of(path, "--scores", f"am={am}") == expected
    costs = lists_of(path, "--scores", f"am={am}", "--scores", f"lm={am}", "--scores", f"ctc={am}", "--costs")
    assert costs[0]["hyps"][1] == {"text": "the cat", "am_score": 20.0, "lm_score": 20.0, "ctc": 20.0}
    # A score has the same names in every format.
    assert lists_of(path, "--scores", f"score={am}") == expected
    told = bnce("rescore", trained, path, "--scores", f"lm={am}", "--scores", f"am={am}", *WITHOUT_MODEL).stderr
    assert "scores: am, old_lm ('lm')." in told


def test_kaldi_with_repeated_keys(tmp_path: Path, lists_of: Reader) -> None:
    path = save(tmp_path / "nbest", ["spk-003 one", "spk-003 two", "spk-004 three"])
    scores = save(tmp_path / "am", ["spk-003 1", "spk-004 3", "spk-003 2"])
    assert lists_of(path, "--scores", f"am={scores}") == [
        record("spk-003", None, ("one", 1.0), ("two", 2.0)),
        record("spk-004", None, ("three", 3.0)),
    ]


def test_keys_that_do_not_begin_with_1_are_names(tmp_path: Path, lists_of: Reader) -> None:
    found = lists_of(save(tmp_path / "gaps", ["x-7 one", "x-9 two"]))
    assert [(one["utt"], len(one["hyps"])) for one in found] == [("x-7", 1), ("x-9", 1)]
    found = lists_of(save(tmp_path / "nbest", ["x-1 one", "x-2 two"]))
    assert [(one["utt"], len(one["hyps"])) for one in found] == [("x", 2)]


@pytest.mark.parametrize(
    "hypotheses",
    [
        [{"text": "a b", "am_score": -1, "lm_score": -2}, {"text": "", "am_score": -3.5, "lm_score": -4}],
        [{"pred_text": "a  b", "score": -1, "lm": -2}, {"hyp": "", "score": "-3.5", "lm": -4, "x": None}],
    ],
)
@pytest.mark.parametrize(("name", "lists"), [("utt", "hyps"), ("audio_filepath", "beams"), ("id", "nbest")])
def test_json_lines(tmp_path: Path, lists_of: Reader, hypotheses: list[object], name: str, lists: str) -> None:
    line = json.dumps({name: "x/1.wav", lists: hypotheses, "text": "what was said"})
    expected = [{"text": "a b", "am_score": -1, "lm_score": -2}, {"text": "", "am_score": -3.5, "lm_score": -4}]
    assert lists_of(save(tmp_path / "n.jsonl", [line, ""])) == [{"utt": "x/1.wav", "hyps": expected}]


def test_json_lines_with_less(tmp_path: Path, lists_of: Reader) -> None:
    found = lists_of(save(tmp_path / "n.json", ['{"utt": 7, "hyps": ["a", "b"]}']))
    assert found == [{"utt": "7", "hyps": [{"text": "a"}, {"text": "b"}]}]
    found = lists_of(save(tmp_path / "n.json", ['{"utt": "u", "hyps": [["a", -1], ["b", -2]]}']))
    assert found == [record("u", None, ("a", -1.0), ("b", -2.0))]


def test_named_scores_in_json(bnce: Command, trained: Path, tmp_path: Path, lists_of: Reader) -> None:
    hypothesis = {"text": "a", "dec": -1.5, "ctc": -2, "lm": -3.0, "score": -4.0, "tokens": [1], "final": True}
    path = save(tmp_path / "n.jsonl", [json.dumps({"utt": "u", "hyps": [hypothesis]})])
    own = {"text": "a", "am_score": -4.0, "lm_score": -3.0, "dec": -1.5, "ctc": -2.0}
    fields = ["--scores", "dec", "--scores", "ctc"]
    assert lists_of(path, *fields) == [{"utt": "u", "hyps": [own]}]
    told = bnce("rescore", trained, path, *fields, *WITHOUT_MODEL).stderr
    assert "1 utterance, 1 hypothesis, no references inside; scores: am ('score'), old_lm ('lm'), dec, ctc." in told
    assert "Not used as scores" not in told


def test_numbers_beside_scores_are_scores_only_by_name(
    bnce: Command, refused: Refused, trained: Path, tmp_path: Path
) -> None:
    hypotheses = [
        {"text": "ba be", "score": -1, "ntok": 7, "ctc": -2.0},
        {"text": "ba", "score": -2, "ntok": 3, "ctc": 0},
    ]
    path = save(tmp_path / "n.jsonl", [json.dumps({"utt": "u", "ref": "ba", "hyps": hypotheses})])
    told = bnce("rescore", trained, path).stderr
    assert "Not used as scores: 'ntok', 'ctc'. Name one as --scores or --weight to use it." in told
    tuned = bnce("rescore", trained, "--tune", path, "--json").json
    assert (tuned["scores"], tuned["left_out"]) == (["am"], [told.splitlines()[1]])
    assert not {"ntok", "ctc"} & set(tuned["tuning"]["weights"])
    found = bnce("rescore", trained, "--tune", path, "--scores", "ctc", "--json").json
    assert found["scores"] == ["am", "ctc"]
    assert "ctc" in found["tuning"]["weights"]
    weights = bnce("rescore", trained, path, "--weight", "ctc=2", "--json").json["weights"]
    assert weights["scores"] == {"ctc": 2}
    save(tmp_path / "w.json", [json.dumps(weights)])
    assert bnce("rescore", trained, path, "--weights", tmp_path / "w.json", "--json").json["scores"] == ["am", "ctc"]
    assert "Unknown score in --scores 'ctx': choose one of am, score." in refused(
        "rescore", trained, path, "--scores", "ctx"
    )


def test_a_score_that_some_lack_is_left_out_and_told(bnce: Command, trained: Path, tmp_path: Path) -> None:
    lines = ['{"utt": "a", "hyps": [{"text": "x", "dec": 1}]}', '{"utt": "b", "hyps": [{"text": "x"}]}']
    path = save(tmp_path / "n.jsonl", lines)
    told = bnce("rescore", trained, path, *WITHOUT_MODEL).stderr
    assert f"The score 'dec' is not used: '{path}', line 2 does not have it for all hypotheses." in told
    assert bnce("rescore", trained, path, *WITHOUT_MODEL, "--json").json["scores"] == []


@pytest.mark.parametrize("as_array", [True, False])
def test_lists_without_names(tmp_path: Path, lists_of: Reader, as_array: bool) -> None:
    records = [{"input": ["a b", "a"], "output": "a  b"}, {"input": ["c"], "output": "d"}]
    content = json.dumps(records, indent=1) if as_array else "\n".join(map(json.dumps, records))
    assert lists_of(save(tmp_path / "hp.json", [content])) == [
        {"utt": "1", "ref": "a b", "hyps": [{"text": "a b"}, {"text": "a"}]},
        {"utt": "2", "ref": "d", "hyps": [{"text": "c"}]},
    ]


@pytest.mark.parametrize("header", [[], ["utt\tam\tlm\thypothesis"]])
def test_tsv(tmp_path: Path, lists_of: Reader, header: list[str]) -> None:
    assert lists_of(save(tmp_path / "n.tsv", [*header, "u\t-1\t-2\ta b\r", "u\t-3\t-4\t", "v w\t0\t0\tc"])) == [
        {
            "utt": "u",
            "hyps": [
                {"text": "a b", "am_score": -1, "lm_score": -2},
                {"text": "", "am_score": -3, "lm_score": -4},
            ],
        },
        {"utt": "v w", "hyps": [{"text": "c", "am_score": 0, "lm_score": 0}]},
    ]


def test_jobs_of_a_decode(tmp_path: Path, refused: Refused, trained: Path, lists_of: Reader) -> None:
    for job, lists in ((2, LISTS[:1]), (10, LISTS[1:])):
        place = tmp_path / f"lists/logdir/output.{job}"
        WRITERS["espnet"](place, lists)
        for ranked in (place / "decode").iterdir():
            ranked.rename(place / ranked.name)
    assert lists_of(tmp_path / "lists") == bare(LISTS, "espnet")
    save(tmp_path / "lists/logdir/output.3/1best_recog/text", ["b x"])
    save(tmp_path / "lists/logdir/output.3/1best_recog/score", ["b 1"])
    assert "has 'b', which another job has, too" in refused("rescore", trained, tmp_path / "lists")


@pytest.mark.parametrize(
    ("file", "lines", "told"),
    [
        ("2best_recog/text", ["u x", "v y"], "has 0 scores for 'v', but there is 1 hypothesis"),
        ("3best_recog/text", ["v y"], "text', line 1 has 'v', which 2best_recog does not have"),
        ("2best_recog/score", ["u 1", "w 2"], "has a score for 'w', which .* does not have"),
        ("2best_recog/score", ["w 2"], "has 0 scores for 'u', but there is 1 hypothesis"),
        ("1best_recog/score", ["u tensor(nan)"], "line 1 has the score 'nan'"),
        ("1best_recog/text", ["u x", "u y"], "line 2 has 'u' again"),
        ("4best_recog/text", ["u x"], "has no 3best_recog, but 4best_recog"),
    ],
)
def test_refused_decodes(
    tmp_path: Path,
    refused: Refused,
    trained: Path,
    lists_of: Reader,
    file: str,
    lines: list[str],
    told: str,
) -> None:
    place = tmp_path / "decode"
    for rank in (1, 2):
        save(place / f"{rank}best_recog/text", ["u x"])
        save(place / f"{rank}best_recog/score", ["u tensor(-1.5, device='cuda:0')"])
    assert lists_of(place) == [record("u", None, ("x", -1.5), ("x", -1.5))]
    save(place / file, lines)
    assert re.search(told, refused("rescore", trained, place))


def test_a_directory_without_a_decode(tmp_path: Path, refused: Refused, trained: Path) -> None:
    assert "has no 1best_recog" in refused("rescore", trained, tmp_path)
    path = save(tmp_path / "x", ["a b"])
    assert "is not a directory" in refused("rescore", trained, path, "--format", "espnet")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("n", "a-1 x\na-1 y\n", "line 2 has 'a-1' again: keys that end in numbers are read as 'utterance-number'"),
        (
            "n.tsv",
            "u\t1\t2\ta\nu\t1\ta\n",
            "line 2 has 3 columns instead of 4: give utt, am, old_lm, hyp",
        ),
        ("n.tsv", "u\tone\t2\ta\n", "line 1 has the score 'one': it must be a finite number"),
        ("n.tsv", "u\t1\tnan\ta\n", "line 1 has the score 'nan'"),
        ("n.tsv", "\t1\t2\ta\n", "line 1 has no utterance"),
        ("n.tsv", "utt\tam\tlm\ttext\n", "has no hypothesis"),
        ("n.tsv", "a\t-1\n", "line 1 has 2 columns instead of 4"),  # NeMo's beams
        ("n.tsv", "utt\tscore\ttext\nu\t1\ta\tmore\n", "line 2 has 4 columns instead of 3"),
        (
            "n.jsonl",
            r'{"utt": "u", "hyps": ["\ud800"]}',
            "1 has the text .* has half of a character .a lone surr",
        ),
        (
            "n.jsonl",
            r'{"utt": "u", "ref": "\ud800", "hyps": ["a"]}',
            r"line 1 has the text '\\ud800', which has half of",
        ),
        ("n.jsonl", "{}\n{", "line 1 has none of the fields utt, utt_id"),
        ("n.jsonl", "{", "line 1 is not valid JSON"),
        ("n.jsonl", "[1]", "element 1 is not a JSON object"),
        ("n.jsonl", "3", "line 1 is not a JSON object"),
        ("n.jsonl", '{"utt": "a", "hyps": []}', "line 1 has no list of hypotheses"),
        ("n.jsonl", '{"utt": "a", "hyps": "x"}', "line 1 has no list of hypotheses"),
        ("n.jsonl", '{"utt": "", "hyps": ["x"]}', "line 1 has the utterance ''"),
        ("n.jsonl", '{"utt": "a", "hyps": [3]}', "a hypothesis that is not an object"),
        ("n.jsonl", '{"utt": "a", "hyps": [{"text": 3}]}', "whose text is 3"),
        ("n.jsonl", '{"utt": "a", "hyps": [{"score": 3}]}', "none of the fields text, hyp"),
        ("n.jsonl", '{"utt": "a", "hyps": [["x", NaN]]}', "line 1 has the score nan"),
        ("n.jsonl", '{"utt": "a", "hyps": [["x", true]]}', "line 1 has the score True"),
        ("n.jsonl", '{"utt": "a", "hyps": ["x"]}\n{"utt": "a", "hyps": ["x"]}', "line 2 has 'a' again"),
        ("n.jsonl", '{"utt": "a", "hyps": ["x", ["y", 1]]}', "1 scores named am_score or .* for 2 hypotheses"),
        ("n.json", '[\n{"utt": "a", "hyps": ["x"]},\n]', "line 3 is not valid JSON"),
        ("n.json", '[\n{"utt": "a", "hyps": ["x"]}', "line 2 is not valid JSON"),
        ("n.json", '[\n{"utt": "a", "hyps": ["x"]}\n] 3', "line 3 is not valid JSON"),
        ("n.json", '{"utt": "a", "hyps": ["x"], "ref": 3}', "line 1 has the reference 3"),
        (
            "n.json",
            '{"utt": "a", "hyps": ["x"], "ref": "x"}\n{"utt": "b", "hyps": ["x"]}',
            "line 2 has no reference for 'b'",
        ),
    ],
)
def test_refused_lists(tmp_path: Path, refused: Refused, trained: Path, name: str, content: str, told: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert re.search(told, refused("rescore", trained, tmp_path / name))


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["spk-a-1 1", "b-1 2"], "has 0 scores for 'spk-a-2', but there is 1 hypothesis"),
        (["spk-a-1 1 2"], "line 1 has 3 columns: give a key and one score"),
        (["spk-a-1"], "line 1 has 1 columns"),
        (["spk-a-1 inf"], "line 1 has the score 'inf'"),
        (
            ["spk-a-1 1", "spk-a-2 1", "spk-a-3 1", "b-1 2", "b-1 3"],
            "has 2 scores for 'b-1', but there is 1 hypothesis",
        ),
    ],
)
def test_refused_scores(tmp_path: Path, refused: Refused, trained: Path, lines: list[str], told: str) -> None:
    scores = save(tmp_path / "am", lines)
    assert told in refused("rescore", trained, save(tmp_path / "nbest", KALDI), "--scores", f"am={scores}")


def test_refused_options(tmp_path: Path, refused: Refused, trained: Path) -> None:
    path = save(tmp_path / "n.tsv", ["u\t1\t2\ta"])
    told = refused("rescore", trained, path, "--format", "htk")
    assert "Unknown format of n-best lists 'htk': choose one of espnet, jsonl, tsv, kaldi." in told
    told = refused("rescore", trained, path, "--scores", f"am={path}")
    assert f"--scores NAME=FILE is for Kaldi text, and '{path}' is read as tsv: give only the NAME of a score" in told


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("refs", ["v", "u a  b", "unused x"]),
        ("refs.json", ['{"utt": "u", "ref": "a b"}', '{"audio_filepath": "v", "text": ""}']),
    ],
)
def test_references(
    bnce: Command, refused: Refused, trained: Path, tmp_path: Path, name: str, lines: list[str]
) -> None:
    nbest = save(tmp_path / "nbest", ["u a b", "v"])
    refs = save(tmp_path / name, lines)
    found = bnce("rescore", trained, nbest, "--refs", refs, *WITHOUT_MODEL, "--json").json
    assert (found["after"]["wer"], found["after"]["num_words"]) == (0, 2)
    twice = save(tmp_path / f"twice-{name}", [*lines, *lines])
    assert re.search(r"line \d has '[uv]' again", refused("rescore", trained, nbest, "--refs", twice))
    save(nbest, ["u a b", "w c"])
    told = refused("rescore", trained, nbest, "--refs", refs)
    assert "has no reference for 'w': give one for every utterance of the list" in told


def test_the_examples_of_the_documentation(tmp_path: Path, lists_of: Reader) -> None:
    """What docs/rescoring.md shows of each format is read as that format."""
    text = read_page("rescoring.md")
    shown = [line.removeprefix("    ") for line in text.splitlines() if line.startswith("    ")]
    blocks = {
        "jsonl": [line for line in shown if line.startswith('{"utt"')],
        "tsv": [line for line in shown if line.startswith(("utt\t", "x\t"))],
    }
    for form, lines in blocks.items():
        options = ["--scores", "ctc"] if form == "jsonl" else []
        first = lists_of(save(tmp_path / form, lines), *options)[0]["hyps"][0]
        assert first["text"] == "a b"
        assert {"am_score", "ctc"} <= set(first)
    for form in FORMS:
        assert f"| `{form}` |" in text
