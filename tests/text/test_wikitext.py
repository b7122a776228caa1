"""WikiText as published: tokens as they are, raw text cut into words, articles and splits."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from bnce import UserError, prepare
from bnce.text.wikitext import find_kind, group_articles, plain, read_wikitext
from tests.text.published import WIKITEXT, write_wikitext


def decoded(corpus, split: str) -> str:
    return " ".join(corpus.vocabulary.decode(corpus.split(split)))


def test_tokens(tmp_path: Path) -> None:
    corpus = prepare(["wikitext", str(write_wikitext(tmp_path / "wikitext-2"))], tmp_path / "c")
    assert decoded(corpus, "train") == (
        "= Robert Boulter = </s> Robert <unk> is an English actor , born @-@ 1 @,@ 979 . </s> He had a role . </s> "
        "= = Career = = </s> A guest @-@ starring role . </s> = Other = </s> It is an actor . </s>"
    )
    assert decoded(corpus, "valid") == "= <unk> = </s> <unk> <unk> is a <unk> . </s>"
    # <unk> as published is the unknown word, and no word of the vocabulary is dropped.
    assert corpus.statistics["train"].num_oov == 1
    assert corpus.statistics["train"].num_documents == 2
    assert corpus.vocabulary.words.count("<unk>") == 1
    assert "@-@" in corpus.vocabulary


def test_zip_is_the_same(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "wikitext-103-v1.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("wikitext-103")
        for split, text in WIKITEXT.items():
            archive.writestr(f"wikitext-103/wiki.{split}.tokens", text)
    packed = list(read_wikitext(str(tmp_path / "wikitext-103-v1.zip")))
    assert packed == list(read_wikitext(str(write_wikitext(tmp_path / "unpacked"))))
    assert [split for split, _ in packed] == ["train", "train", "valid", "test"]


def test_raw(tmp_path: Path) -> None:
    corpus = prepare(["wikitext", str(write_wikitext(tmp_path / "raw", "raw"))], tmp_path / "c", min_count=1)
    assert decoded(corpus, "train").startswith(
        "Robert Boulter </s> Robert < unk > is an English actor , born - 1,979 . </s> He had a role . </s> Career </s>"
    )
    assert "@" not in corpus.vocabulary
    assert "guest - starring" in decoded(corpus, "train")


def test_plain() -> None:
    assert plain(" = = = Deep = = = ") == "Deep"
    assert plain(" 1 @.@ 5 x @-@ y @,@ z ") == " 1.5 x-y,z "
    assert plain(" a = b ") == " a = b "


def test_articles_begin_at_titles() -> None:
    lines = [" ", " = A = ", " text = more ", " = = Section = = ", "", " = X Y = ", " = = = Deep = = = "]
    assert list(group_articles(iter(lines))) == [
        [" = A = ", " text = more ", " = = Section = = "],
        [" = X Y = ", " = = = Deep = = = "],
    ]


def test_what_is_no_wikitext(tmp_path: Path) -> None:
    write_wikitext(tmp_path / "some")
    (tmp_path / "some" / "wiki.test.tokens").unlink()
    with pytest.raises(UserError, match=r"some' lacks wiki\.test\.tokens: give the whole"):
        find_kind(str(tmp_path / "some"))
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="none' has no WikiText: give the directory"):
        find_kind(str(tmp_path / "none"))
    (tmp_path / "text.txt").write_text("words")
    with pytest.raises(UserError, match=r"text\.txt' is neither a directory nor a \.zip"):
        find_kind(str(tmp_path / "text.txt"))
    with pytest.raises(UserError, match="no file"):
        find_kind(str(tmp_path / "missing"))
