"""A Wikipedia dump as articles: which pages, which splits, which words, and a last page that is cut."""

from __future__ import annotations

import bz2
import itertools
import zipfile
from pathlib import Path

import pytest

from bnce import Normaliser, UserError, prepare
from bnce.text import blocks, unpack, wikipedia
from bnce.text.markup import strip_markup
from bnce.text.wikipedia import MarkupNormaliser, Page, article_source, read_articles
from tests.text.published import ARTICLE_LINES, HEAD, dump, page


def write(directory: Path, content: bytes, name: str = "enwik9") -> str:
    path = directory / name
    path.write_bytes(content)
    return str(path)


def refusal(path: str, errors: str = "strict") -> str:
    with pytest.raises(UserError) as caught:
        list(read_articles(path, errors))
    return str(caught.value)


def read(path: str, errors: str = "strict") -> list[list[str]]:
    """Read the lines of every article, without markup."""
    texts = (strip_markup(source) for _, [source] in read_articles(path, errors))
    return [[line for line in text.split("\n") if line.strip()] for text in texts]


def test_articles_only(tmp_path: Path) -> None:
    articles = read(write(tmp_path, dump()))
    assert articles[0] == ARTICLE_LINES
    assert articles[1] == ["Place 000 is a place. It is small."]
    assert len(articles) == 32
    # The cut goes through a word, which is none any more.
    assert articles[-1] == ["The last page is cut in the"]


def test_splits_are_cut_by_bytes_in_order(tmp_path: Path) -> None:
    content = dump(400)
    articles = list(read_articles(write(tmp_path, content)))
    splits = [split for split, _ in articles]
    assert splits == sorted(splits, key=["train", "valid", "test"].index)
    first = {split: document[0].split(".")[0] for split, document in reversed(articles)}
    begins = {split: content.index(first[split].encode()) / len(content) for split in ("valid", "test")}
    # An article belongs where its page begins, some 200 bytes before its text.
    assert begins["valid"] == pytest.approx(133 / 148.7, abs=0.006)
    assert begins["test"] == pytest.approx(140.8 / 148.7, abs=0.006)
    assert begins["valid"] >= 133 / 148.7
    assert begins["test"] >= 140.8 / 148.7


def test_packed_dumps_are_the_same(tmp_path: Path) -> None:
    content = dump()
    plain = list(read_articles(write(tmp_path, content)))
    with zipfile.ZipFile(tmp_path / "enwik9.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("enwik9", content)
    for path in (str(tmp_path / "enwik9.zip"), write(tmp_path, bz2.compress(content), "enwik9.bz2")):
        assert list(read_articles(path)) == plain


@pytest.mark.parametrize("chunk_bytes", [1, 7, 100])
def test_chunks_leave_no_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    path = write(tmp_path, dump(5))
    whole = list(read_articles(path))
    monkeypatch.setattr(unpack, "CHUNK_BYTES", chunk_bytes)
    assert list(read_articles(path)) == whole


def test_every_place_of_the_cut_is_read(tmp_path: Path) -> None:
    """Wherever the dump ends, in a tag, an entity or a character, what was whole before is there."""
    content = (HEAD + page("A", "Whole.") + page("B", 'Né & "né" là')).encode()
    begin = content.index(b"<page>", content.index(b"Whole."))
    texts = set()
    for end in range(begin, len(content)):
        articles = read(write(tmp_path, content[:end]))
        assert articles[0] == ["Whole."]
        texts.add(" ".join(articles[1]) if len(articles) > 1 else "")
    assert texts == {"", "Né", "Né &", 'Né & "né"', 'Né & "né" là'}


def test_numbered_namespaces_and_marked_redirects(tmp_path: Path) -> None:
    pages = [
        page("Talk", "No colon, no namespace.", namespace="    <ns>0</ns>\n"),
        page("Elsewhere", "By number.", namespace="    <ns>4</ns>\n"),
        page("Moved", "By tag.", namespace='    <ns>0</ns>\n    <redirect title="Talk" />\n'),
        page("Mission: Impossible", "A colon is no namespace by itself."),
        page("Moved too", "\n# redirect [[Talk]]"),
    ]
    assert read(write(tmp_path, (HEAD + "".join(pages)).encode())) == [
        ["No colon, no namespace."],
        ["A colon is no namespace by itself."],
    ]


def test_dump_without_a_head(tmp_path: Path) -> None:
    pages = page("User talk:Me", "Chatter.") + page("Sun", "It shines.")
    assert read(write(tmp_path, pages.encode())) == [["It shines."]]


def test_bad_bytes(tmp_path: Path) -> None:
    content = (HEAD + page("A", "One X two.") + page("B", "Three.")).encode().replace(b"X", b"\xff")
    path = write(tmp_path, content)
    assert f"invalid UTF-8 at byte offset {content.index(0xFF)}" in refusal(path)
    assert read(path, "replace")[0] == ["One \ufffd two."]


def test_what_is_no_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no <page> in its first MiB" in refusal(write(tmp_path, b"plain text\n" * 200_000))
    assert "no <page>" in refusal(write(tmp_path, b""))
    assert "no article" in refusal(write(tmp_path, (HEAD + page("Talk:A", "x")).encode()))
    assert "no file" in refusal(str(tmp_path / "missing"))
    assert "Standard input" in refusal("-")
    assert "damaged" in refusal(write(tmp_path, b"no zip", "enwik9.zip"))
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a", "x")
        archive.writestr("b", "x")
    assert "holds 2 files" in refusal(str(tmp_path / "two.zip"))
    monkeypatch.setattr(wikipedia, "MAX_PAGE_BYTES", 1000)
    assert "a page of more than" in refusal(write(tmp_path, (HEAD + page("A", "word " * 500_000)).encode()))


def test_page_without_text() -> None:
    empty = Page(0, b'<title>A</title><text xml:space="preserve" />', is_whole=True)
    assert article_source(empty, frozenset(), "strict", "dump") == ""
    assert article_source(Page(0, b"<title>A", is_whole=False), frozenset(), "strict", "dump") == ""


@pytest.mark.parametrize("num_workers", [1, 2])
def test_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int) -> None:
    monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", 1000)
    steps: list[tuple[int, int]] = []
    corpus = prepare(
        ["ltcb", write(tmp_path, dump(60))],
        tmp_path / "corpus",
        vocab_size=80_000,
        min_count=1,
        num_workers=num_workers,
        progress=lambda *step: steps.append(step),
    )
    text = " ".join(corpus.vocabulary.decode(corpus.split("train")))
    assert text.startswith(
        "élan is a long river in wales . </s> it flows — slowly . </s> course </s> "
        "the upper part , see the map . </s> h 2 o & [ [ brackets ] ] </s> place 000 is a place . </s>"
    )
    assert corpus.vocabulary.words[:7] == ["</s>", "<unk>", ".", "is", "place", "a", "it"]
    assert corpus.normaliser.to_dict() == Normaliser().to_dict()
    num_documents = {split: figures.num_documents for split, figures in corpus.statistics.items()}
    assert num_documents == {"train": 55, "valid": 4, "test": 3}
    # Every number of a place is a word that occurs once: unknown wherever it was not trained on.
    assert corpus.statistics["valid"].num_oov == 4
    assert corpus.statistics["train"].num_oov == 0
    assert steps[-1][0] == steps[-1][1]


def test_vocabulary_of_eighty_thousand(tmp_path: Path) -> None:
    """The default is the paper's; what the user asks for goes before it."""
    letters = itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=4)
    words = " ".join(f"w{''.join(four)}" for four in itertools.islice(letters, 80_100))
    content = HEAD + page("Many", words) + "".join(page(f"P{n}", "Some words. " * 3000) for n in range(40))
    path = write(tmp_path, content.encode())
    assert len(prepare(["ltcb", path], tmp_path / "default").vocabulary) == 80_000
    assert len(prepare(["ltcb", path], tmp_path / "all", min_count=1).vocabulary) == 80_105
    assert len(prepare(["ltcb", path], tmp_path / "few", vocab_size=5).vocabulary) == 5


def test_markup_goes_before_words_are_cut() -> None:
    plain = Normaliser(lowercase=False, numbers="zero")
    marked = MarkupNormaliser(**plain.to_dict())
    assert marked.spaced("A [[b|c]] {{d\n\0\ne}} f 12.").split() == ["A", "c", "d", "\0", "e", "f", "00", "."]
    assert marked.to_dict() == plain.to_dict()
