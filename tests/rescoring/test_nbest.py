"""N-best lists in all formats: what is read, and what is refused with its line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bnce import UserError
from bnce.rescoring.nbest import NBest, Utterance, read_nbest
from bnce.rescoring.references import read_references

KALDI = "spk-a-1 the cat sat\nspk-a-2 the  cat\nspk-a-3\nb-1 ünïcode 日本\n"


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def shape(nbest: NBest) -> dict[str, list[str]]:
    return {utterance.name: utterance.texts for utterance in nbest.utterances}


def test_kaldi_with_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "nbest", KALDI)
    am = write(tmp_path / "am", "b-1 4\nspk-a-1 1.5\nspk-a-2 -2e1\nspk-a-3 0\nother-1 7\n")
    found = read_nbest(path, am_scores=am)
    assert shape(found) == {"spk-a": ["the cat sat", "the cat", ""], "b": ["ünïcode 日本"]}
    assert [utterance.scores["am"] for utterance in found.utterances] == [[1.5, -20.0, 0.0], [4.0]]
    assert (found.has_am, found.has_old_lm, found.num_hypotheses) == (True, False, 4)
    costs = read_nbest(path, am_scores=am, lm_scores=am, costs=True)
    assert costs.utterances[0].scores == {"am": [-1.5, 20.0, -0.0], "old_lm": [-1.5, 20.0, -0.0]}


def test_kaldi_with_repeated_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "nbest", "spk-003 one\nspk-003 two\nspk-004 three\n")
    scores = write(tmp_path / "lm", "spk-003 1\nspk-004 3\nspk-003 2\n")
    found = read_nbest(path, lm_scores=scores)
    assert shape(found) == {"spk-003": ["one", "two"], "spk-004": ["three"]}
    assert [utterance.scores["old_lm"] for utterance in found.utterances] == [[1.0, 2.0], [3.0]]


def test_keys_can_be_told(tmp_path: Path) -> None:
    """One hypothesis each of the utterances x-1 and x-2 looks like two of x."""
    path = write(tmp_path / "nbest", "x-1 one\nx-2 two\n")
    assert shape(read_nbest(path)) == {"x": ["one", "two"]}
    assert shape(read_nbest(path, keys="plain")) == {"x-1": ["one"], "x-2": ["two"]}
    gaps = write(tmp_path / "gaps", "x-7 one\nx-9 two\n")
    assert shape(read_nbest(gaps)) == {"x-7": ["one"], "x-9": ["two"]}
    assert shape(read_nbest(gaps, keys="numbered")) == {"x": ["one", "two"]}


@pytest.mark.parametrize(
    "hypotheses",
    [
        [{"text": "a b", "am_score": -1, "lm_score": -2}, {"text": "", "am_score": -3.5, "lm_score": -4}],
        [{"pred_text": "a  b", "score": -1, "lm_score": -2}, {"hyp": "", "score": "-3.5", "old_lm_score": -4}],
    ],
)
@pytest.mark.parametrize(("name", "lists"), [("utt", "hyps"), ("audio_filepath", "beams"), ("id", "nbest")])
def test_json_lines(tmp_path: Path, hypotheses: list[object], name: str, lists: str) -> None:
    record = json.dumps({name: "x/1.wav", lists: hypotheses, "text": "what was said"})
    found = read_nbest(write(tmp_path / "n.jsonl", f"{record}\n\n"))
    assert found.utterances == [Utterance("x/1.wav", ["a b", ""], {"am": [-1.0, -3.5], "old_lm": [-2.0, -4.0]})]
    assert (found.has_am, found.has_old_lm) == (True, True)


def test_json_lines_with_less(tmp_path: Path) -> None:
    found = read_nbest(write(tmp_path / "n.json", '{"utt": 7, "hyps": ["a", "b"]}'))
    assert found == NBest([Utterance("7", ["a", "b"])])
    found = read_nbest(write(tmp_path / "n.json", '{"utt": "u", "hyps": [["a", -1], ["b", -2]]}'))
    assert found == NBest([Utterance("u", ["a", "b"], {"am": [-1.0, -2.0]})], ("am",))


@pytest.mark.parametrize("header", ["", "utt\tam\tlm\thypothesis\n"])
def test_tsv(tmp_path: Path, header: str) -> None:
    found = read_nbest(write(tmp_path / "n.tsv", f"{header}u\t-1\t-2\ta b\r\nu\t-3\t-4\t\nv w\t0\t0\tc\n"))
    assert found.utterances == [
        Utterance("u", ["a b", ""], {"am": [-1, -3], "old_lm": [-2, -4]}),
        Utterance("v w", ["c"], {"am": [0], "old_lm": [0]}),
    ]


def test_formats_by_ending(tmp_path: Path) -> None:
    (tmp_path / "n.tsv.gz").write_bytes(gzip.compress(b"u\t1\t2\ta\n"))
    assert read_nbest(str(tmp_path / "n.tsv.gz")).num_hypotheses == 1
    assert read_nbest(write(tmp_path / "n.txt", "u\t1\t2\ta\n"), "tsv").num_hypotheses == 1


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("n", "a-1 x\na-1 y\n", "has 'a-1' again on line 2: .* give keys='plain'"),
        ("n", b"a-1 x\na-2 \xff\n", "line 2 has invalid UTF-8"),
        ("n", "\n", "has no words"),
        ("n.tsv", "u\t1\t2\ta\nu\t1\ta\n", "line 2 has 3 columns instead of 4: give utterance, acoustic score"),
        ("n.tsv", "u\tone\t2\ta\n", "line 1 has the score 'one': it must be a finite number"),
        ("n.tsv", "u\t1\tnan\ta\n", "line 1 has the score 'nan'"),
        ("n.tsv", "\t1\t2\ta\n", "line 1 has no utterance"),
        ("n.tsv", "utt\tam\tlm\ttext\n", "has no hypothesis"),
        ("n.jsonl", "{}\n{", "line 1 has none of the fields utt, utt_id"),
        ("n.jsonl", "{", "line 1 is not a JSON object"),
        ("n.jsonl", "[1]", "line 1 has an element in its array that is not an object"),
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
    ],
)
def test_refused_lists(tmp_path: Path, name: str, content: str | bytes, told: str) -> None:
    with pytest.raises(UserError, match=told):
        read_nbest(write(tmp_path / name, content))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("spk-a-1 1\nb-1 2\n", "has no score for 'spk-a-2'"),
        ("spk-a-1 1 2\n", "line 1 has 3 columns: give a key and one score"),
        ("spk-a-1\n", "line 1 has 1 columns"),
        ("spk-a-1 inf\n", "line 1 has the score 'inf'"),
        ("spk-a-1 1\nspk-a-2 1\nspk-a-3 1\nb-1 2\nb-1 3\n", "has 2 scores for 'b-1', but there is 1 hypothesis"),
    ],
)
def test_refused_scores(tmp_path: Path, content: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        read_nbest(write(tmp_path / "nbest", KALDI), am_scores=write(tmp_path / "am", content))


def test_refused_options(tmp_path: Path) -> None:
    path = write(tmp_path / "n.tsv", "u\t1\t2\ta\n")
    with pytest.raises(UserError, match="Unknown format of n-best lists 'htk': choose one of espnet, jsonl"):
        read_nbest(path, "htk")
    with pytest.raises(UserError, match="Unknown value of keys 'some'"):
        read_nbest(write(tmp_path / "k", "u a\n"), keys="some")
    with pytest.raises(UserError, match=r"am_scores is for Kaldi text, and .* is read as tsv"):
        read_nbest(path, am_scores=path)
    with pytest.raises(UserError, match="the key 'x' on line 1: keys are read as 'utterance-number'"):
        read_nbest(write(tmp_path / "n", "x one\n"), keys="numbered")


def test_references(tmp_path: Path) -> None:
    path = write(tmp_path / "refs", "b  two words\nc\na one\nunused x\n")
    assert read_references(path, [Utterance("a"), Utterance("b"), Utterance("c")]) == ["one", "two words", ""]
    with pytest.raises(UserError, match="has no reference for 'd': give one for every utterance"):
        read_references(path, [Utterance("d")])
    with pytest.raises(UserError, match="has 'a' again on line 2"):
        read_references(write(tmp_path / "twice", "a one\na two\n"), [Utterance("a")])
