"""`bnce rescore`: lists in, the best out, errors before and after; weights tuned, kept and used; what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from command import Command, Refused

from bnce import load

KALDI = "x-1 ba be bi\nx-2 ba be\nx-3\ny-1 xyzzy fu\ny-2 fu\n"
AM = "x-1 3\nx-2 2\nx-3 9\ny-1 1\ny-2 1.5\n"
REFS = "x ba be\ny fu\n"


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    for name, content in (("nbest", KALDI), ("am", AM), ("refs", REFS)):
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def test_the_best_by_the_model_alone(bnce: Command, trained: Path, lists: Path) -> None:
    outcome = bnce("rescore", trained, lists / "nbest", "--weight", "rank_weight=0")
    model = load(trained)
    expected = []
    for name, texts in (("x", ["ba be bi", "ba be", ""]), ("y", ["xyzzy fu", "fu"])):
        best = max(model.score(texts), key=lambda one: one.log_prob)
        expected.append(" ".join([name, *best.words[:-1]]))
    assert outcome.stdout.splitlines() == expected
    assert "2 utterances, 5 hypotheses; am_weight 0, old_lm_weight 0, lm_weight 1" in outcome.stderr


def test_without_scores_the_order_counts(bnce: Command, trained: Path, lists: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    outcome = bnce("rescore", trained, lists / "nbest", "--out", out)
    assert "has no acoustic scores, so the order of the hypotheses counts" in outcome.stderr
    for one in map(json.loads, out.read_text(encoding="utf-8").splitlines()):
        for row in one["hyps"]:
            assert row["total"] == pytest.approx(row["ln_prob"] - 16 * math.log(row["place"]))
    assert bnce("rescore", trained, lists / "nbest", "--weight", "lm=0").stdout == "x ba be bi\ny xyzzy fu\n"
    found = bnce("rescore", trained, lists / "nbest", "--json").json
    assert (found["by_rank"], found["weights"]["rank_weight"], found["weights"]["am_weight"]) == (True, 16, 0)
    # Weights of lists with scores, or of a version that knew no rank, say nothing about the order.
    (tmp_path / "w.json").write_text('{"am_weight": 1, "lm_weight": 0.5}', encoding="utf-8")
    found = bnce("rescore", trained, lists / "nbest", "--weights", tmp_path / "w.json", "--json").json
    assert (found["weights"]["rank_weight"], found["weights"]["lm_weight"]) == (16, 0.5)
    scored = bnce("rescore", trained, lists / "nbest", "--scores", f"am={lists / 'am'}", "--json").json
    assert (scored["by_rank"], scored["weights"]["rank_weight"]) == (False, 0)
    (lists / "lm").write_text(AM, encoding="utf-8")
    assert bnce("rescore", trained, lists / "nbest", "--scores", f"lm={lists / 'lm'}", "--json").json["by_rank"] is True


def test_weights_and_costs(bnce: Command, trained: Path, lists: Path) -> None:
    options = [lists / "nbest", "--scores", f"am={lists / 'am'}", "--weight", "lm=0"]
    for out in ([], ["--out", "-"]):
        assert bnce("rescore", trained, *options, *out).stdout == "x\ny fu\n"
    assert bnce("rescore", trained, *options, "--costs").stdout == "x ba be\ny xyzzy fu\n"


def test_errors_before_and_after(bnce: Command, trained: Path, lists: Path) -> None:
    options = [lists / "nbest", "--scores", f"am={lists / 'am'}", "--costs", "--weight", "lm=0"]
    options += ["--refs", lists / "refs"]
    found = bnce("rescore", trained, *options, "--json").json
    assert found["before"] == {
        "wer": 2 / 3, "num_utterances": 2, "num_words": 3, "substitutions": 0, "deletions": 0, "insertions": 2,
        "interval": [0.5, 1.0],
    }  # fmt: skip
    assert found["oracle"]["interval"] == [0, 0]
    assert found["difference"] == {"wer": pytest.approx(-1 / 3), "interval": [-0.5, 0.0]}
    assert found["tuning"] is None
    assert found["after"]["wer"] == pytest.approx(1 / 3)
    assert found["oracle"]["wer"] == 0
    assert (found["num_utterances"], found["num_hypotheses"], found["tuned"]) == (2, 5, False)
    told = bnce("rescore", trained, *options).stderr
    assert "WER before 66.67% (2 of 3 words in 2 utterances: 0 substitutions, 0 deletions, 2 insertions)" in told
    assert "2 insertions); 95% interval 50.00 to 100.00%" in told
    assert "WER after − before: -33.33 points; 95% interval -50.00 to 0.00 points (paired bootstrap)." in told
    assert "2 utterances are too few to judge." in told


def test_tuned_weights_are_kept_and_used(bnce: Command, trained: Path, lists: Path) -> None:
    am = "x-1 3\nx-2 3.5\nx-3 0\ny-1 1\ny-2 1.5\n"
    for name, content in (("nbest", KALDI), ("am", am), ("refs", REFS)):
        lines = (f"u{number}{line}\n" for number in range(6) for line in content.splitlines())
        (lists / name).write_text("".join(lines), encoding="utf-8")
    options = [trained, lists / "nbest", "--scores", f"am={lists / 'am'}"]
    saved = lists / "weights.json"
    tuned = bnce("rescore", *options, "--tune", lists / "refs", "--save-weights", saved, "--json").json
    assert tuned["after"]["wer"] < tuned["before"]["wer"]
    assert tuned["difference"]["interval"][1] < 0
    assert tuned["tuned"] is True
    assert tuned["tuning"] == {
        "refs": str(lists / "refs"),
        "num_utterances": 12,
        "weights": ["lm_weight", "word_penalty", "oov_penalty"],
        "kept_first_best": False,
    }
    assert json.loads(saved.read_text(encoding="utf-8")) == tuned["weights"]
    used = bnce("rescore", *options, "--weights", saved, "--refs", lists / "refs", "--json").json
    assert used["after"] == tuned["after"]
    held = bnce("rescore", *options, "--tune", lists / "refs", "--weight", "lm=0.125", "--json").json
    assert held["weights"]["lm_weight"] == 0.125
    over = bnce("rescore", *options, "--weights", saved, "--weight", "word_penalty=7", "--json").json
    assert over["weights"] == {**tuned["weights"], "word_penalty": 7.0}
    told = bnce("rescore", *options, "--tune", lists / "refs", "--weight", "word_penalty=1").stderr
    assert f"Tuned on 12 utterances of '{lists / 'nbest'}' with the references '{lists / 'refs'}': lm_weight" in told
    assert "lm_weight and oov_penalty.\n" in told
    assert "measure word error rates on others" in told
    told = bnce("rescore", *options, "--weights", saved, "--refs", lists / "refs").stderr
    assert f"The weights are those of '{saved}'." in told
    assert "12 utterances are too few to judge." in told


def test_weights_that_lose_to_the_first_best_are_refused(bnce: Command, trained: Path, lists: Path) -> None:
    (lists / "refs").write_text("x ba be bi\ny xyzzy fu\n", encoding="utf-8")
    saved = lists / "weights.json"
    scored = ["--scores", f"am={lists / 'am'}", "--weight", "lm=1"]
    for options in ([], scored):
        arguments = [trained, lists / "nbest", *options, "--tune", lists / "refs", "--save-weights", saved]
        outcome = bnce("rescore", *arguments)
        assert outcome.stdout == "x ba be bi\ny xyzzy fu\n"
        assert "by more than chance, so the first hypotheses are kept." in outcome.stderr
        found = bnce("rescore", *arguments, "--json").json
        assert found["tuning"]["kept_first_best"] is True
        assert found["difference"] == {"wer": 0, "interval": [0, 0]}
    options = [*scored, "--weight", "word_penalty=99", "--refs", lists / "refs"]
    worse = bnce("rescore", trained, lists / "nbest", *options).stderr
    assert "2 utterances are too few to judge." in worse


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--mode", "checked"], "Unknown mode 'checked': choose one of unnormalised, normalised."),
        (["--tune", "{refs}", "--refs", "{refs}"], "used once and without --test or --refs: leave out NBEST"),
        (["--out", "none/best"], "There is no directory 'none' to write 'best' to: create it first."),
        (["--out", "-", "--json"], "--out - and --json both write to standard output: leave one of them out."),
        (["--save-weights", "none/w.json"], "There is no directory 'none'"),
        (["--save-weights", "-"], "'-' stands for standard output, where this cannot be written"),
        (["--weight", "old_lm=2"], "has no old language model scores: leave it out."),
        (["--weights", "none.json"], "'none.json' is not a weights file"),
        (["--refs", "{am}"], "has no reference for 'x'"),
    ],
)
def test_refusals(refused: Refused, trained: Path, lists: Path, options: list[str], told: str) -> None:
    filled = [option.format(refs=lists / "refs", am=lists / "am") for option in options]
    assert told in refused("rescore", trained, lists / "nbest", *filled)


def test_what_is_not_there(refused: Refused, trained: Path, lists: Path) -> None:
    assert "There is no file" in refused("rescore", trained, lists / "none")
    assert "is not a run directory" in refused("rescore", lists, lists / "nbest")
    assert "is not an n-gram model that KenLM can read" in refused("rescore", lists / "refs", lists / "nbest")


def test_tokenised_hypotheses_are_noticed(bnce: Command, trained: Path, tmp_path: Path) -> None:
    nbest = tmp_path / "nbest"
    nbest.write_text("x-1 ba <unk> be\nx-2 ba be @-@ bi\n", encoding="utf-8")
    told = bnce("rescore", trained, nbest).stderr
    assert f"Warning: '{nbest}' looks tokenised: 2 of the 7 checked words" in told
    assert "Use the text from before tokenisation." in told


def test_one_utterance_with_references_beside_it(bnce: Command, trained: Path, tmp_path: Path) -> None:
    nbest, refs = tmp_path / "nbest", tmp_path / "refs"
    nbest.write_text("x-1 ba\n", encoding="utf-8")
    refs.write_text("x be\n", encoding="utf-8")
    told = bnce("rescore", trained, nbest, "--refs", refs).stderr
    assert ": 1 utterance, 1 hypothesis, no references inside; no scores." in told
    assert "without references" not in told
    assert "(1 of 1 word in 1 utterance: 1 substitution, 0 deletions, 0 insertions)" in told
    assert "(1 hypothesis, " in told
    assert "Another hypothesis was chosen for 0 utterances: " in told


def make_lists(place: Path, name: str, count: int = 6) -> Path:
    """Make lists with references in which the score 'ctc' is right and the others mislead."""
    records = []
    for number in range(count):
        hypotheses = [
            {"text": "ba be bi", "score": -1, "ctc": -9.0, "dec": 0.5},
            {"text": "ba be", "score": -2, "ctc": -1.0, "dec": 0.5},
        ]
        records.append({"id": f"{name}-{number}", "ref": "ba be", "hyps": hypotheses})
    path = place / f"{name}.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_tuned_on_one_and_tested_on_another(bnce: Command, trained: Path, tmp_path: Path) -> None:
    dev, more, test = (make_lists(tmp_path, name) for name in ("dev", "more", "test"))
    saved = tmp_path / "w.json"
    fields = ["--scores", "ctc", "--scores", "dec"]
    options = ["--tune", dev, "--tune", more, "--test", test, "--save-weights", saved, *fields]
    outcome = bnce("rescore", trained, *options, "--weight", "lm=0", "--weight", "word_penalty=0")
    assert outcome.stdout == "".join(f"test-{number} ba be\n" for number in range(6))
    assert (
        f"'{test}' was read as JSON lines: 6 utterances, 12 hypotheses, with references; scores: am ('score'), ctc"
        in outcome.stderr
    )
    assert f"Tuned on 12 utterances of '{dev}' and '{more}' with the references inside: ctc and dec." in outcome.stderr
    assert "WER there: 50.00% before, 0.00% after." in outcome.stderr
    assert "measure word error rates on others" not in outcome.stderr
    assert "(36 hypotheses, " in outcome.stderr
    assert "per second), tuning " in outcome.stderr
    found = bnce("rescore", trained, *options, "--weight", "lm=0", "--weight", "word_penalty=0", "--json").json
    assert (found["nbest"], found["before"]["wer"], found["after"]["wer"]) == (str(test), 0.5, 0.0)
    assert (found["tuning"]["nbest"], found["tuning"]["after"]["wer"]) == ([str(dev), str(more)], 0.0)
    assert found["weights"]["scores"]["ctc"] > 0.125
    assert found["num_scored"] == 36
    assert set(found["seconds"]) == {"load", "score", "tune"}
    assert json.loads(saved.read_text(encoding="utf-8")) == found["weights"]
    used = bnce("rescore", trained, test, "--weights", saved, "--json").json
    assert used["after"] == found["after"]
    assert used["num_scored"] == 12
    assert used["hypotheses_per_second"] > 0


def test_weights_by_name(bnce: Command, trained: Path, tmp_path: Path) -> None:
    nbest = make_lists(tmp_path, "x", 1)
    options = [trained, nbest, "--weight", "lm=0"]
    assert bnce("rescore", *options).stdout == "x-0 ba be bi\n"
    assert bnce("rescore", *options, "--weight", "ctc=1").stdout == "x-0 ba be\n"
    assert bnce("rescore", *options, "--weight", "score=-1").stdout == "x-0 ba be\n"
    full = tmp_path / "full.tsv"
    bnce("rescore", *options, "--scores", "ctc", "--scores", "dec", "--out", full)
    head = full.read_text(encoding="utf-8").splitlines()[0]
    assert head == "utt\tplace\ttotal\tam\told_lm\tctc\tdec\tln_prob\tnum_words\tnum_oov\thypothesis"


def test_untuned_weights_are_told(bnce: Command, trained: Path, lists: Path) -> None:
    scored = [trained, lists / "nbest", "--scores", f"am={lists / 'am'}"]
    told = "No weights were tuned: these are cautious defaults"
    for options in (scored, scored[:2]):
        assert told in bnce("rescore", *options).stderr
        assert bnce("rescore", *options, "--json").json["untuned"] is True
    assert told not in bnce("rescore", *scored, "--weight", "lm=0.5").stderr
    assert told not in bnce("rescore", *scored, "--tune", lists / "refs").stderr


def test_refused_lists_to_tune_on(refused: Refused, trained: Path, lists: Path, tmp_path: Path) -> None:
    dev, test = make_lists(tmp_path, "dev"), make_lists(tmp_path, "test")
    nbest = lists / "nbest"
    assert "give NBEST, or lists with references" in refused("rescore", trained)
    assert "--test needs weights from --tune DEV" in refused("rescore", trained, "--test", test)
    for options in (["--test", test], ["--tune", dev, "--tune", test]):
        assert "With NBEST, --tune is the file of its references" in refused("rescore", trained, dev, *options)
    assert "has no references to tune on: give them with --refs" in refused("rescore", trained, "--tune", nbest)
    assert "give lists with the same scores" in refused(
        "rescore", trained, "--tune", dev, "--test", nbest, "--refs", dev, "--refs", lists / "refs"
    )
    three = [part for _ in range(3) for part in ("--refs", lists / "refs")]
    assert "--refs is given 3 times for 2 lists" in refused("rescore", trained, "--tune", dev, "--test", test, *three)


def test_changes_are_counted(bnce: Command, trained: Path, tmp_path: Path) -> None:
    """The recogniser is right in two utterances and wrong in one; an equal text at another place is no change."""
    records = [
        {"utt": name, "ref": "ba be", "hyps": [{"text": first, "ctc": 0}, {"text": second, "ctc": 1}]}
        for name, first, second in (("a", "ba", "ba be"), ("b", "ba be", "be"), ("c", "ba be", "bi"), ("d", "ba", "ba"))
    ]
    lists = tmp_path / "lists.jsonl"
    lists.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    options = [trained, lists, "--weight", "lm=0", "--weight", "ctc=1"]
    assert bnce("rescore", *options, "--json").json["changes"] == {"num_changed": 3, "num_better": 1, "num_worse": 2}
    told = bnce("rescore", *options).stderr
    assert "Another hypothesis was chosen for 3 utterances: 1 with fewer errors, 2 with more.\n" in told


def test_files_beside_several_lists(bnce: Command, trained: Path, lists: Path) -> None:
    """Scores and references in files of their own: one for each list, those of --tune first, or one for all."""
    (lists / "nbest2").write_text("z-1 fu\nz-2 ba\n", encoding="utf-8")
    (lists / "am2").write_text("z-1 1\nz-2 2\n", encoding="utf-8")
    (lists / "refs2").write_text("z ba\n", encoding="utf-8")
    options = ["--tune", lists / "nbest", "--test", lists / "nbest2", "--weight", "lm=0"]
    each = [part for name in ("am", "am2") for part in ("--scores", f"am={lists / name}")]
    each += [part for name in ("refs", "refs2") for part in ("--refs", lists / name)]
    found = bnce("rescore", trained, *options, *each, "--json").json
    assert (found["before"]["num_words"], found["tuning"]["before"]["num_words"]) == (1, 3)
    for kind in ("am", "refs"):
        both = "".join((lists / name).read_text(encoding="utf-8") for name in (kind, f"{kind}2"))
        (lists / f"{kind}-all").write_text(both, encoding="utf-8")
    shared = ["--scores", f"am={lists / 'am-all'}", "--refs", lists / "refs-all"]
    again = bnce("rescore", trained, *options, *shared, "--json").json
    assert (again["weights"], again["after"]) == (found["weights"], found["after"])


def write_lists(place: Path, *records: tuple[str, list[tuple[str, float]]]) -> Path:
    """Write lists with references and scores."""
    path = place / "lists.jsonl"
    lines = [
        {"utt": str(number), "ref": reference, "hyps": [{"text": text, "score": score} for text, score in own]}
        for number, (reference, own) in enumerate(records)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_model_that_knows_no_word_is_refused(bnce: Command, refused: Refused, trained: Path, tmp_path: Path) -> None:
    lists = write_lists(tmp_path, ("uno dos", [("uno dos", -1), ("uno", -2)]))
    told = refused("rescore", trained, lists)
    assert f"'{lists}' has no word that the model knows: give a model of the same language and the same form" in told
    assert "has no word that the model knows" in refused("rescore", trained, "--tune", lists, "--weight", "lm=0")
    # Without the model's say it does not matter.
    assert bnce("rescore", trained, lists, "--weight", "lm=0").stdout == "0 uno dos\n"


def test_many_unknown_words_are_warned_of(bnce: Command, trained: Path, tmp_path: Path) -> None:
    lists = write_lists(tmp_path, ("ba be", [("ba be bi uno", -1), ("ba", -2)]))
    assert "Warning" not in bnce("rescore", trained, lists).stderr
    lists = write_lists(tmp_path, ("ba be", [("ba be bi uno", -1), ("dos", -2)]))
    told = bnce("rescore", trained, lists, "--json").stderr
    assert f"Warning: '{lists}': 2 of 5 words (40.00%) are unknown to the model; give a model of the same" in told


def test_references_in_capital_letters(bnce: Command, trained: Path, tmp_path: Path) -> None:
    lists = write_lists(tmp_path, ("BA BE BI", [("ba be bi", -1)]), ("BO BA", [("bo be", -1), ("bo ba", -2)]))
    found = bnce("rescore", trained, lists, "--json").json
    assert (found["before"]["substitutions"], found["before"]["wer"]) == (1, 1 / 5)
    assert found["oracle"]["wer"] == 0
    assert found["ignores_case"] is True
    told = "References and hypotheses differ in capital letters, so both were compared in small letters."
    assert told in bnce("rescore", trained, lists).stderr
    # A capital letter here and there counts as it is written.
    lists = write_lists(tmp_path, ("Ba be bi", [("ba be bi", -1)]))
    found = bnce("rescore", trained, lists, "--json").json
    assert (found["before"]["substitutions"], found["ignores_case"]) == (1, False)


def test_the_mode_is_chosen_and_told(bnce: Command, trained: Path, lists: Path) -> None:
    assert bnce("rescore", trained, lists / "nbest", "--json").json["mode"] == "unnormalised"
    found = bnce("rescore", trained, lists / "nbest", "--mode", "normalised")
    assert "; normalised probabilities\n" in found.stderr


def test_formats_are_those_of_the_table() -> None:
    from bnce.cli.rescore import FORMATS
    from bnce.rescoring import nbest_formats

    assert tuple(nbest_formats.FORMATS) == FORMATS
