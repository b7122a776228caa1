"""`bnce interpolate`: weights, perplexities and a mixture that `score` and `rescore` take; what is refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from command import Command, Refused

from bnce import Corpus

pytest.importorskip("kenlm")


@pytest.fixture
def arpa(corpus: Path, tmp_path: Path) -> Path:
    """A unigram model of the corpus, with a bigram that KenLM insists on; it knows the words the run knows."""
    opened = Corpus.open(corpus)
    counts = opened.target_counts + 1
    pairs = zip(opened.vocabulary.words, counts, strict=True)
    lines = [f"{math.log10(count / counts.sum()):.6f}\t{word}" for word, count in pairs]
    head = f"\\data\\\nngram 1={len(lines) + 1}\nngram 2=1\n\n\\1-grams:\n"
    body = "\n".join(["-99\t<s>\t0", *(f"{line}\t0" for line in lines)])
    bigram = lines[2].split("\t")
    path = tmp_path / "unigram.arpa"
    path.write_text(f"{head}{body}\n\n\\2-grams:\n{bigram[0]}\t<s> {bigram[1]}\n\n\\end\\\n", encoding="utf-8")
    return path


def test_weights_perplexities_and_a_mixture(
    bnce: Command, trained: Path, arpa: Path, texts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "both.toml"
    valid = texts / "valid.txt"
    found = bnce("interpolate", trained, arpa, "--valid", valid, "--out", out, "--json").json
    assert sum(found["weights"]) == pytest.approx(1)
    report = found["valid"]
    assert not report["vocabularies_differ"]
    for model, figures in zip((trained, arpa), report["components"], strict=True):
        scored = bnce("score", model, valid, "--json").json
        assert figures["ppl"] == pytest.approx(scored["ppl"], rel=1e-4)
        assert figures["ppl_known"] == pytest.approx(scored["ppl_no_oov"], rel=1e-4)
    mixed = bnce("score", out, valid, "--json").json
    assert report["mixture"]["ppl"] == pytest.approx(mixed["ppl"], rel=1e-4)
    assert mixed["num_words"] + mixed["num_sentences"] == report["num_tokens"]
    # On the text they were found on, no component by itself is better, but for what EM leaves where it hardly matters.
    assert found["valid"]["mixture"]["ppl"] <= min(one["ppl"] for one in found["valid"]["components"]) * 1.0001
    printed = bnce("interpolate", trained, arpa, "--valid", valid)
    assert "mixture" in printed.stdout
    assert (
        "every line, which is one sentence, starts without context; runs with the constant Z (unnormalised: "
        in printed.stdout
    )
    assert printed.stderr == ""


def test_lines_without_words_are_left_out(
    bnce: Command, trained: Path, arpa: Path, texts: Path, tmp_path: Path
) -> None:
    valid, blank = texts / "valid.txt", tmp_path / "blank.txt"
    lines = valid.read_text(encoding="utf-8").splitlines()[:40]
    valid = tmp_path / "valid.txt"
    valid.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    blank.write_text("".join(f"{line}\n\n \n" for line in lines), encoding="utf-8")
    plain = bnce("interpolate", trained, arpa, "--valid", valid, "--json").json
    found = bnce("interpolate", trained, arpa, "--valid", blank, "--json").json
    assert found["weights"] == plain["weights"]
    assert (found["valid"]["num_lines"], found["valid"]["num_lines_without_words"]) == (120, 80)
    differing = {name for name in plain["valid"] if plain["valid"][name] != found["valid"][name]}
    assert differing == {"num_lines", "num_lines_without_words"}
    told = bnce("interpolate", trained, arpa, "--valid", blank).stderr
    assert "80 of 120 lines of valid have no words and were left out." in told
    assert "left out" not in bnce("interpolate", trained, arpa, "--valid", valid).stderr


def test_a_mixture_scores_and_rescores(
    bnce: Command, refused: Refused, trained: Path, arpa: Path, texts: Path, tmp_path: Path
) -> None:
    out, nbest, full = tmp_path / "both.toml", tmp_path / "nbest", tmp_path / "full.jsonl"
    bnce("interpolate", trained, arpa, "--valid", texts / "valid.txt", "--out", out)
    nbest.write_text("a-1 ba be bi\na-2 ba fu\n", encoding="utf-8")
    text = tmp_path / "text"
    text.write_text("ba be bi\nba fu\n", encoding="utf-8")
    bnce("rescore", out, nbest, "--out", full)
    lines = bnce("score", out, text).stdout.splitlines()[:2]
    totals = [float(line.split()[1]) * math.log(10) for line in lines]
    rescored = [hypothesis["ln_prob"] for hypothesis in json.loads(full.read_text(encoding="utf-8"))["hyps"]]
    assert sorted(totals) == pytest.approx(sorted(rescored), abs=1e-4)
    assert "runs in it with the constant Z" in bnce("score", out, text).stderr
    assert "of an n-gram model" in bnce("score", arpa, text, "--per-word").stderr
    assert "runs in it with the softmax" in bnce("score", out, text, "--mode", "normalised").stderr
    assert "which ignores earlier sentences: leave out --carry" in refused("score", arpa, text, "--carry", "text")
    carried = bnce("score", out, text, "--carry", "text")
    assert carried.stdout.splitlines()[0] == lines[0]
    assert carried.stdout.splitlines()[1] != lines[1]
    assert "n-gram models in it ignore earlier sentences" in carried.stderr
    words = bnce("generate", out, "--prompt", "ba", "--next", 3, "--json").json["next"]
    assert len(words) == 3
    assert len(bnce("generate", out, "-n", 2, "--max-words", 4).stdout.splitlines()) == 2
    assert "--mode checked is for a run" in refused("score", arpa, text, "--mode", "checked")
    assert "Unknown mode 'some'" in refused("score", arpa, text, "--mode", "some")


def test_vocabularies_that_differ_are_told(bnce: Command, trained: Path, arpa: Path, texts: Path) -> None:
    content = arpa.read_text(encoding="utf-8")
    line = next(line for line in content.splitlines() if line.split("\t")[1:2] == ["."])
    arpa.write_text(content.replace(line + "\n", line.replace("\t.\t", "\tzebra\t") + "\n"), encoding="utf-8")
    outcome = bnce("interpolate", trained, arpa, "--valid", texts / "valid.txt", "--json")
    assert "Warning: the models know different words of valid" in outcome.stderr
    report = outcome.json["valid"]
    assert report["vocabularies_differ"]
    assert report["num_known"] <= report["num_tokens"] - 60  # a full stop a sentence


def test_refusals(refused: Refused, trained: Path, arpa: Path, texts: Path, tmp_path: Path) -> None:
    valid = ["--valid", texts / "valid.txt"]
    assert "Only 1 model was given: give two or more." in refused("interpolate", trained, *valid)
    assert "give a name that ends in .toml." in refused("interpolate", trained, arpa, *valid, "--out", "m.json")
    assert "There is no directory 'none'" in refused("interpolate", trained, arpa, *valid, "--out", "none/m.toml")
    assert "is a mixture itself" in refused("interpolate", trained, "m.toml", *valid)
    assert "none' does not exist: check the path" in refused("interpolate", trained, tmp_path / "none", *valid)
    assert "There is no file" in refused("interpolate", trained, arpa, "--valid", tmp_path / "none")
    assert "Unknown mode 'checked'" in refused("interpolate", trained, arpa, *valid, "--mode", "checked")
    softmax = shutil.copytree(trained, tmp_path / "softmax")
    config = (softmax / "config.toml").read_text(encoding="utf-8")
    (softmax / "config.toml").write_text(
        config.replace('name = "bnce"', 'name = "softmax"').replace("num_noise = 0\n", ""), encoding="utf-8"
    )
    told = refused("interpolate", trained, softmax, *valid, "--mode", "unnormalised")
    assert f"'{softmax}' was trained with the loss softmax and has no constant Z" in told


def test_a_mixture_is_evaluated(
    bnce: Command, refused: Refused, trained: Path, corpus: Path, texts: Path, tmp_path: Path
) -> None:
    arpa, out, test = tmp_path / "m.arpa", tmp_path / "m.toml", texts / "test.txt"
    bnce("ngram", corpus, "--order", 2, "--out", arpa)
    bnce("interpolate", trained, arpa, "--valid", texts / "valid.txt", "--out", out)
    record = bnce("evaluate", out, "--text", test, "--json").json
    assert {"ppl_n", "ppl_f", "log_z_mean", "log_z_std", "num_tokens", "num_oov"} <= set(record)
    for key, mode in (("ppl_n", "unnormalised"), ("ppl_f", "normalised")):
        scored = bnce("score", out, test, "--mode", mode, "--split", "--json").json
        assert record[key] == pytest.approx(scored["ppl"], rel=1e-5)
        assert record[f"{key}_no_unk"] == pytest.approx(scored["ppl_no_oov"], rel=1e-5)
        assert (record["num_oov"], record["num_sentences"]) == (scored["num_oov"], scored["num_sentences"])
    by_split = bnce("evaluate", out, "--split", "test", "--json").json
    assert by_split["ppl_f"] == pytest.approx(record["ppl_f"], rel=1e-6)
    assert [Path(part["path"]).resolve() for part in record["components"]] == [trained, arpa]
    alone = bnce("evaluate", arpa, "--text", test, "--json").json
    assert (alone["ppl_n"], alone["ppl_f"]) == (None, pytest.approx(record["components"][1]["ppl_f"], rel=1e-6))
    assert bnce("evaluate", arpa, "--corpus", corpus, "--json").json["ppl_f"] == pytest.approx(alone["ppl_f"])
    assert bnce("evaluate", out, "--max-words", 100, "--json").json["num_tokens"] == 96  # twelve whole sentences
    printed = bnce("evaluate", out, "--text", test).stdout
    assert f"PPLf {record['ppl_f']:.2f}  runs with the softmax" in printed
    assert f"PPLn {record['ppl_n']:.2f}  runs with their constants Z" in printed
    assert "PPLf: the probabilities of all words sum to 1" in printed
    assert "an n-gram model is normalised by itself" in bnce("evaluate", arpa, "--text", test).stdout
    assert "give --text FILE or --corpus DIR" in refused("evaluate", arpa)
    for option in ("--save", "--in-context-only"):
        assert "--detail, --save and --in-context-only are for a run" in refused("evaluate", out, option)
    (tmp_path / "other.txt").write_text("ba be\n", encoding="utf-8")
    other = tmp_path / "other.arpa"
    bnce("ngram", tmp_path / "other.txt", "--order", 2, "--out", other)
    bnce("interpolate", trained, other, "--valid", texts / "valid.txt", "--out", out)
    assert "The models know different words." in bnce("evaluate", out, "--text", test).stdout
