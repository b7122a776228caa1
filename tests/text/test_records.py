"""Records with a text: JSON lines and Parquet, and every record that has none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bnce import UserError, prepare
from bnce.text.records import holds_records, read_records

TEXTS = ["One.\nTwo lines.", "Größe 東京", "\r\nThree", "four"]
LINES = [["One.", "Two lines."], ["Größe 東京"], ["", "Three"], ["four"]]


def write_json(path: Path, texts: list[str | None], field: str = "text") -> str:
    content = "".join(json.dumps({"id": n, field: text}) + "\n" for n, text in enumerate(texts)).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def write_parquet(path: Path, texts: list[str | None], field: str = "text") -> str:
    pyarrow.parquet.write_table(pyarrow.table({"id": range(len(texts)), field: texts}), path)
    return str(path)


def refusal(path: str, field: str = "text", errors: str = "strict") -> str:
    with pytest.raises(UserError) as caught:
        list(read_records(path, field, errors))
    assert path in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "t.ndjson", "t.jsonl.gz", "t.parquet"])
def test_a_record_is_a_document(tmp_path: Path, name: str) -> None:
    write = write_parquet if name.endswith("parquet") else write_json
    path = write(tmp_path / name, [*TEXTS[:2], None, "", "  ", *TEXTS[2:]], "body")
    assert holds_records(path)
    assert list(read_records(path, "body")) == LINES


def test_names_that_are_no_records() -> None:
    assert not any(map(holds_records, ("text.txt", "text.txt.gz", "jsonl", "json/text", "-", "text.jsonl.txt")))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"))))
def test_any_text_comes_back(tmp_path: Path, texts: list[str]) -> None:
    texts = [*texts, "end"]
    expected = [text.split("\n") for text in texts if text and not text.isspace()]
    assert list(read_records(write_json(tmp_path / "t.jsonl", list(texts)))) == expected
    assert list(read_records(write_parquet(tmp_path / "t.parquet", list(texts)))) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "line 2 is an array, not a JSON object"),
        ("3", "line 2 is a number, not a JSON object"),
        ("{", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is nested too deeply"),
        ('{"body": "x"}', "line 2 has no field 'text': it has 'body'; name a field with field"),
        ("{}", "it has none; name a field"),
        ('{"text": 3}', "line 2 has a number in its field 'text'"),
        ('{"text": ["x"]}', "line 2 has an array in its field 'text'"),
        ('{"text": "a\\u0000b"}', "line 2 has a NUL or half of a character"),
        ('{"text": "a\\ud800b"}', "line 2 has a NUL or half of a character"),
    ],
)
def test_bad_json(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"text": "good"}}\n{line}\n')
    assert message in refusal(str(path))


def test_escapes_are_replaced_on_request(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": "a\\u0000b \\ud83d\\ude00 \\ud800c"}\n')
    assert list(read_records(str(path), errors="replace")) == [["a\ufffdb 😀 \ufffdc"]]


def test_bad_parquet(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", ["x"])
    assert "no column 'body': it has 'id', 'text'" in refusal(path, "body")
    assert "int64 in its column 'id': it must be text" in refusal(path, "id")
    twice = tmp_path / "twice.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array(["x"])] * 2, ["text", "text"]), twice)
    assert "has 2 columns with the name 'text': rename all but one of them" in refusal(str(twice))
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: len(content) // 2])
    assert "damaged or not a Parquet file" in refusal(path)
    assert "has no words" in refusal(write_parquet(tmp_path / "e.parquet", ["", " "]))
    assert "has no words" in refusal(write_json(tmp_path / "e.jsonl", [None]))


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_progress_adds_up_to_the_file(tmp_path: Path, name: str) -> None:
    write = write_parquet if name.endswith("parquet") else write_json
    path = write(tmp_path / name, [f"text {n}" for n in range(5000)])
    steps: list[int] = []
    list(read_records(path, advance=steps.append))
    assert sum(steps) == Path(path).stat().st_size


def test_dictionary_encoded_column(tmp_path: Path) -> None:
    column = pyarrow.array(["a", "b", "a"]).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "t.parquet")
    assert list(read_records(str(tmp_path / "t.parquet"))) == [["a"], ["b"], ["a"]]


def test_corpus(tmp_path: Path) -> None:
    train = write_json(tmp_path / "train.jsonl", ["One two. Three 12!", "One 3.5"], "body")
    valid = write_parquet(tmp_path / "valid.parquet", ["Two four."], "body")
    corpus = prepare([train], tmp_path / "c", valid=valid, test=valid, field="body", min_count=1)
    assert " ".join(corpus.vocabulary.decode(corpus.split("train"))) == "one two . </s> three 12 ! </s> one 3.5 </s>"
    assert " ".join(corpus.vocabulary.decode(corpus.split("valid"))) == "two <unk> . </s>"
    assert corpus.statistics["train"].num_documents == 2
