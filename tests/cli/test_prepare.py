"""`bnce prepare` as a person types it: what it prints, how it leaves, and what it leaves behind."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from command import Command, Refused

from bnce import Corpus, Normaliser
from tests.text.published import dump, shards, write_tar


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"Document {n}. It says word{n}!\n" for n in range(300)))
    return path


def test_json_is_one_object(bnce: Command, text: Path, place: Path) -> None:
    status, out, _ = bnce("prepare", text, "--out", place / "c", "--vocab-size", 20, "--json")
    assert status == 0
    record = json.loads(out)
    corpus = Corpus.open(place / "c")
    names = ["corpus", "vocab_size", "num_types", "min_count", "vocabulary_digest", "splits", "seconds"]
    assert list(record) == names
    assert (record["num_types"], record["min_count"]) == (corpus.num_types, 1)
    assert record["corpus"] == str(place / "c")
    assert record["vocab_size"] == len(corpus.vocabulary) == 20
    assert record["vocabulary_digest"] == corpus.vocabulary.digest
    assert list(record["splits"]) == ["train", "valid", "test"]
    for name, split in record["splits"].items():
        statistics = corpus.statistics[name]
        assert split == {
            "num_tokens": len(corpus.split(name)),
            "num_sentences": statistics.num_sentences,
            "num_documents": statistics.num_documents,
            "num_oov": statistics.num_oov,
            "num_bytes": statistics.num_bytes,
            "sentence_lengths": list(statistics.sentence_lengths),
            "unk_rate": statistics.unk_rate,
        }
        assert split["unk_rate"] > 0.1


def test_table(bnce: Command, text: Path, place: Path) -> None:
    status, out, _ = bnce("prepare", text, "--out", place / "c", "--min-count", 2)
    assert status == 0
    for word in ("train", "valid", "test", "documents", "sentences", "tokens", "<unk> rate", "V ="):
        assert word in out


def test_unknown_words_are_trained_unless_every_word_is_asked_for(bnce: Command, text: Path, place: Path) -> None:
    """Of a vocabulary that would hold every word the singletons are left out, and it is said."""
    text.write_text("\n".join(f"Document {n} says this.\n" for n in range(300)))
    status, out, err = bnce("prepare", text, "--out", place / "c")
    assert status == 0
    corpus = Corpus.open(place / "c")
    assert corpus.target_counts[1] == corpus.statistics["train"].num_oov > 0
    assert int(corpus.target_counts[2:].min()) >= 2
    out = " ".join(out.split())
    assert f"of the {corpus.num_types:,} distinct words of the training text, each occurs at least 2 times" in out
    assert (
        "each occurs at least 2 times. If all words were kept, <unk> would never be trained. --min-count 1 keeps them "
        "all." in out
    )
    assert "Warning" not in err
    # A vocabulary size that is large enough for all is no wish for all.
    assert bnce("prepare", text, "--out", place / "large", "--vocab-size", 100_000)[0] == 0
    assert Corpus.open(place / "large").manifest.hashes == corpus.manifest.hashes

    status, out, err = bnce("prepare", text, "--out", place / "all", "--min-count", 1)
    every = Corpus.open(place / "all")
    assert status == every.target_counts[1] == 0
    assert len(every.vocabulary) == every.num_types + 2 == corpus.num_types + 2
    assert "If all words were kept" not in out
    err = " ".join(err.split())
    assert "Warning: The training text has no <unk>, because the vocabulary has all of its words" in err
    assert f"{every.statistics['valid'].unk_rate:.2%} of the words of valid" in err

    status, out, err = bnce("prepare", text, "--out", place / "given", "--vocab", place / "all" / "vocab.txt")
    assert status == 0
    assert f"Vocabulary: as given; the training text has {every.num_types:,} distinct words." in " ".join(out.split())
    assert Corpus.open(place / "given").vocabulary == every.vocabulary
    assert "Warning: The training text has no <unk>" in " ".join(err.split())
    shown = " ".join(bnce("info", place / "given", "--batch-size", 2)[1].split())
    assert "warning: The training text has no <unk>" in shown
    assert f"<unk>; the training text has {every.num_types:,} distinct words" in shown


def test_standard_input_is_read_once(refused: Refused, text: Path, place: Path) -> None:
    for words in (("-", "-"), ("-", text, "-"), (text, "--valid", "-", "--test", "-")):
        told = refused("prepare", *words, "--out", place / "c")
        assert told == "bnce: '-', standard input, is given twice: it can be read only once."
    assert not (place / "c").exists()


def test_a_given_vocabulary_without_words_is_refused(refused: Refused, text: Path, place: Path) -> None:
    (place / "vocab.txt").write_text("</s>\n<unk>\n", encoding="utf-8")
    for words in (("--vocab", place / "vocab.txt"), ("--vocab-size", 2)):
        told = refused("prepare", text, "--out", place / "c", *words)
        assert told == "bnce: A vocabulary of 2 words is too small: give at least 3, including </s> and <unk>."


def test_one_distinct_word(bnce: Command, text: Path, place: Path) -> None:
    text.write_text("yes\n\n" * 300)
    _, out, _ = bnce("prepare", text, "--out", place / "c", "--min-count", 1)
    assert "Vocabulary: the only distinct word of the training text." in " ".join(out.split())


def test_options_reach_the_corpus(bnce: Command, text: Path, place: Path) -> None:
    vocabulary = text.with_name("vocab.txt")
    vocabulary.write_text("</s>\n<unk>\nIt\nsays\n")
    valid = text.with_name("valid.txt")
    valid.write_text("It says\n")
    options = "--cased --tokens whitespace --sentences lines --numbers word --fraction 0.5 --workers 1"
    given = ["--vocab", vocabulary, "--valid", valid, *options.split()]
    assert bnce("prepare", text, text, "--out", place / "c", *given).status == 0
    corpus = Corpus.open(place / "c")
    assert corpus.normaliser == Normaliser(False, "whitespace", "lines", "word")
    assert corpus.vocabulary.words == ["</s>", "<unk>", "It", "says"]
    assert corpus.split("valid").tolist() == [2, 3, 0]
    assert 200 < corpus.statistics["test"].num_documents < 400


def test_bad_bytes_go_on_request(bnce: Command, refused: Refused, text: Path, place: Path) -> None:
    text.write_bytes(text.read_bytes() + b"a \xff b\n")
    assert "--errors replace" in refused("prepare", text, "--out", place / "c")
    assert list(place.iterdir()) == []
    assert bnce("prepare", text, "--out", place / "c", "--errors", "replace").status == 0


def test_one_document_cannot_be_cut(refused: Refused, text: Path, place: Path) -> None:
    text.write_text("one document\n")
    told = refused("prepare", text, "--out", place / "c", "--json")
    assert "1 document and a fraction of 0.02 gives none to valid" in told
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        ("--vocab-size", "2"),
        ("--min-count", "0"),
        ("--fraction", "1"),
        ("--fraction", "-0.5"),
        ("--tokens", "letters"),
        ("--sentences", "paragraphs"),
        ("--numbers", "spell"),
        ("--errors", "ignore"),
        ("--workers", "0"),
        ("--valid", "nowhere.txt"),
        ("--vocab", "nowhere.txt"),
    ],
)
def test_bad_options(refused: Refused, text: Path, place: Path, options: tuple[str, str]) -> None:
    assert options[1] in refused("prepare", text, "--out", place / "c", *options)
    assert list(place.iterdir()) == []


def test_directories_patterns_and_records(bnce: Command, place: Path) -> None:
    """One text from many places: each file in the order of its name, whatever it is packed in."""
    texts = place.parent / "texts"
    (texts / "deep").mkdir(parents=True)
    (texts / "a.txt").write_text("One two.\n\nThree.\n")
    (texts / "deep" / "b.txt.gz").write_bytes(gzip.compress(b"Four.\n"))
    (place.parent / "c.jsonl").write_text('{"body": "Five."}\n{"body": "Six."}\n')
    for split in ("valid", "test"):
        (place.parent / f"{split}.jsonl").write_text('{"body": "One six."}\n')
    options = ["--valid", place.parent / "valid.jsonl", "--test", place.parent / "test*", "--min-count", 1]
    made = bnce("prepare", texts, place.parent / "c*.jsonl", "--field", "body", "--out", place / "c", *options)
    assert made.status == 0
    corpus = Corpus.open(place / "c")
    decoded = " ".join(corpus.vocabulary.decode(corpus.split("train")))
    assert decoded == "one two . </s> three . </s> four . </s> five . </s> six . </s>"
    assert corpus.statistics["train"].num_documents == 5


def test_a_corpus_name_goes_before_a_file(
    bnce: Command, refused: Refused, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.parent)
    Path("ltcb").write_text("\n\n".join(f"Document {n}." for n in range(200)))
    assert refused("prepare", "ltcb", "--out", place / "c") == (
        "bnce: 'ltcb' needs one path but got 0: give enwik9, plain or compressed. For a file of that name, write "
        "./ltcb."
    )
    assert bnce("prepare", "./ltcb", "--out", place / "c").status == 0
    told = refused("prepare", "./ltcb", "ltcb", "--out", place / "d")
    assert "'ltcb' is the name of a corpus and cannot be combined" in told


def test_options_go_before_what_a_published_corpus_has(bnce: Command, place: Path) -> None:
    write_tar(place.parent / "r13.tar.gz", shards().items())
    options = ["--out", place / "own", "--lowercase", "--min-count", 1, "--workers", 1]
    assert bnce("prepare", "obwb", place.parent / "r13.tar.gz", *options).status == 0
    own = Corpus.open(place / "own")
    assert "smith" in own.vocabulary
    assert "w7" in own.vocabulary
    assert (own.normaliser.tokens, own.normaliser.sentences) == ("whitespace", "lines")


@pytest.mark.parametrize(
    "options",
    [("--valid", "x.txt"), ("--test", "x.txt"), ("--fraction", "0.1")],
)
def test_published_corpora_have_their_own_splits(refused: Refused, place: Path, options: tuple[str, str]) -> None:
    (place.parent / "enwik9").write_bytes(dump())
    told = refused("prepare", "ltcb", place.parent / "enwik9", "--out", place / "c", *options)
    assert "'ltcb' has its own splits" in told
    assert list(place.iterdir()) == []


def test_dump_too_small_for_three_splits(bnce: Command, place: Path) -> None:
    (place.parent / "enwik9").write_bytes(dump(1))
    outcome = bnce("prepare", "ltcb", place.parent / "enwik9", "--out", place / "c")
    assert (outcome.status, "has no words for" in outcome.stderr) == (2, True)
    assert list(place.iterdir()) == []


def test_empty_directory_and_existing_output(refused: Refused, text: Path, place: Path) -> None:
    told = refused("prepare", place, "--out", place / "c")
    assert told == f"bnce: The directory '{place}' has no files: give a directory with text files."
    (place / "mine").write_text("")
    assert "already exists" in refused("prepare", text, "--out", place)


def test_tokenised_text_is_noticed(bnce: Command, tmp_path: Path) -> None:
    text = tmp_path / "ptb.txt"
    text.write_text("the <unk> sat on the mat @-@ by @-@ the door\n" * 30, encoding="utf-8")
    options = ["prepare", text, "--valid", text, "--test", text, "--workers", 1, "--json"]
    status, _, err = bnce(*options, "--out", tmp_path / "cut")
    assert status == 0
    assert "Warning: The text looks tokenised" in err
    assert "Give --tokens whitespace and --sentences lines to read the words between blanks as they are" in err
    _, _, err = bnce(*options, "--tokens", "whitespace", "--sentences", "lines", "--out", tmp_path / "kept")
    assert "looks tokenised" not in err
