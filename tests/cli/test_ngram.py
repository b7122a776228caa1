"""`bnce ngram`: text in every form, the vocabulary of a run, figures; what is refused."""

from __future__ import annotations

import gzip
import io
import math
import sys
from pathlib import Path

import pytest
from command import Command, Refused

from bnce import Corpus, load

kenlm = pytest.importorskip("kenlm")


def test_a_model_with_the_words_of_a_run_is_mixed_with_it(
    bnce: Command, trained: Path, texts: Path, tmp_path: Path
) -> None:
    arpa, mixture = tmp_path / "m.arpa", tmp_path / "m.toml"
    made = bnce("ngram", texts / "train.txt", "--vocab", trained, "--out", arpa, "--json")
    record, run = made.json, load(trained)
    assert record["vocabulary_digest"] == run.vocabulary.digest
    assert record["normaliser"] == run.normaliser.to_dict()
    assert (record["order"], record["num_tokens"], record["num_sentences"]) == (3, 400 * 8, 400)
    assert record["num_oov"] > 0
    assert record["num_ngrams"][0] == record["vocab_size"] + 1  # <s>
    assert record["num_pruned"] == [0, 0, 0]
    assert record["discounts_estimated"] == [False, True, True]  # of 30 words too few occur in 1 to 4 contexts
    model = kenlm.Model(str(arpa))
    assert all(word in model for word in run.vocabulary.words if word != "<unk>")
    mixed = bnce("interpolate", trained, arpa, "--valid", texts / "valid.txt", "--out", mixture, "--json")
    assert mixed.stderr == ""  # no warning that vocabularies differ
    assert sum(mixed.json["weights"]) == pytest.approx(1)
    # By itself the file cuts raw text as the run does.
    (tmp_path / "raw.txt").write_text("Ba BE, bi.\n", encoding="utf-8")
    by_file = bnce("score", arpa, tmp_path / "raw.txt", "--json").json
    assert by_file["num_words"] == 5
    assert by_file["log10_prob"] == pytest.approx(model.score("ba be <unk> bi ."), abs=1e-4)


def test_text_comes_in_every_form(
    bnce: Command, corpus: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two packed files, a directory, standard input or the corpus that was made of it: the same bytes."""
    lines = (texts / "train.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    parts = tmp_path / "parts"
    parts.mkdir()
    for name, part in (("1.txt.gz", lines[:100]), ("2.txt.gz", lines[100:])):
        (parts / name).write_bytes(gzip.compress("".join(part).encode()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("".join(lines).encode())))
    sources = [[texts / "train.txt"], [parts / "1.txt.gz", parts / "2.txt.gz"], [parts], [parts / "*.gz"], ["-"]]
    made = []
    for number, source in enumerate(sources):
        out = tmp_path / f"{number}.arpa"
        assert bnce("ngram", *source, "--vocab", corpus, "--order", 2, "--out", out).status == 0
        made.append(out.read_bytes())
    printed = bnce("ngram", corpus, "--order", 2, "--out", tmp_path / "corpus.arpa")
    assert "31 1-grams" in printed.stdout
    made.append((tmp_path / "corpus.arpa").read_bytes())
    assert len(set(made)) == 1


def test_without_a_vocabulary_every_word_is_known(bnce: Command, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.arpa"
    (tmp_path / "few.txt").write_text("One two.\nOne three <s>\n", encoding="utf-8")
    made = bnce("ngram", tmp_path / "few.txt", "--order", 2, "--out", out, "--json")
    assert "warning: the text has too few 1-grams to estimate their discounts: 0.5, 1, 1.5 are used." in made.stderr
    record = made.json
    assert (record["num_oov"], record["discounts_estimated"]) == (0, [False, False])
    # Marks are words, so that no text can spell <s>.
    model = kenlm.Model(str(out))
    assert all(word in model for word in ("one", "two", "three", ".", "<", "s", ">"))
    assert record["normaliser"] == {"lowercase": True, "tokens": "words", "sentences": "split", "numbers": "keep"}


def test_fewer_ngrams(bnce: Command, corpus: Path, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.arpa"
    whole = bnce("ngram", corpus, "--out", out, "--json").json
    size = out.stat().st_size
    pruned = bnce("ngram", corpus, "--prune", "0,0,1", "--out", out, "--json").json
    assert pruned["prune"] == [0, 0, 1]
    assert pruned["num_pruned"][:2] == [0, 0]
    assert pruned["num_ngrams"][2] + pruned["num_pruned"][2] == whole["num_ngrams"][2]
    assert pruned["out_bytes"] == out.stat().st_size < size == whole["out_bytes"]
    scored = bnce("score", out, texts / "test.txt", "--json").json
    assert scored["ppl"] < len(Corpus.open(corpus).vocabulary)
    assert math.isfinite(scored["log10_prob"])


def test_refusals(
    refused: Refused, corpus: Path, trained: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ["--out", tmp_path / "m.arpa"]
    text = texts / "train.txt"
    assert "There is no file 'none'" in refused("ngram", "none", *out)
    assert "There is no directory" in refused("ngram", text, "--out", tmp_path / "none" / "m.arpa")
    assert "No such option: -o" in refused("ngram", "-o", "5", text, *out), "lmplz's order is no file"
    assert "The pruned counts are '0,2,1'" in refused("ngram", text, *out, "--prune", "0,2,1")
    assert "--prune received 'some'" in refused("ngram", text, *out, "--prune", "some")
    assert "is a prepared corpus: give only this corpus" in refused("ngram", corpus, text, *out)
    (tmp_path / "vocab.txt").write_text("</s>\n<unk>\nba\n", encoding="utf-8")
    assert "has other words than --vocab" in refused("ngram", corpus, "--vocab", tmp_path / "vocab.txt", *out)
    assert "is not a run directory" in refused("ngram", text, "--vocab", tmp_path, *out)
    (tmp_path / "vocab.txt").write_text("</s>\n<unk>\n<s>\n", encoding="utf-8")
    told = refused("ngram", text, "--vocab", tmp_path / "vocab.txt", *out)
    assert "<s> is one of the words" in told
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    assert "has no words" in refused("ngram", tmp_path / "empty.txt", *out)
    monkeypatch.setattr(sys.modules["bnce.cli.ngram"], "_available_bytes", lambda: 100_000)
    for source in (corpus, text):
        told = refused("ngram", source, *out)
        assert "of 3,200 tokens or more needs 0.00 GiB of memory" in told
        assert "give text of at most 555 tokens or a lower --order" in told
    assert not (tmp_path / "m.arpa").exists()
