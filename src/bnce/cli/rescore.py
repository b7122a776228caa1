"""`bnce rescore`: a model and n-best lists in, the best hypotheses out, and how many words are wrong."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bnce import files
from bnce.cli.completion import complete
from bnce.cli.console import JsonOption, open_model, print_json, progress_bar, stderr
from bnce.cli.options import (
    DeviceOption,
    ModelArgument,
    ModeOption,
    flag,
    goes_to_stdout,
    option,
    warn_of_tokenised,
)

# As bnce.rescoring.nbest_formats has them, which `bnce --help` has no time to load.
FORMATS = ("espnet", "jsonl", "tsv", "kaldi")

_weighing = partial(option, rich_help_panel="Weights")


def rescore(
    run: ModelArgument,
    nbest: Annotated[
        str | None,
        typer.Argument(
            metavar="[NBEST]",
            help="N-best lists: a file, a directory (ESPnet), or - for standard input. Leave it out if --tune gives "
            "the lists.",
            show_default=False,
        ),
    ] = None,
    form: Annotated[
        str,
        option(
            "NAME",
            f"Format of NBEST: {', '.join(FORMATS)}; auto decides by the name and the first lines.",
            "--format",
            autocompletion=complete("auto", *FORMATS),
        ),
    ] = "auto",
    score_files: Annotated[
        list[str] | None,
        option(
            "NAME[=FILE]",
            "Scores for Kaldi text, in a file of 'key score' lines: am=FILE (acoustic scores), lm=FILE (old language "
            "model) or any other name. NAME alone: use this number of JSON lines as a score, too, beside those named "
            "score, am or lm. May be given several times.",
            "--scores",
        ),
    ] = None,
    costs: Annotated[bool, flag("--costs", "Scores are costs, as in Kaldi: lower is better.")] = False,
    weight: Annotated[
        list[str] | None,
        _weighing(
            "NAME=W",
            "Set a weight by its name, such as lm=0.5: am, old_lm, lm, word_penalty, oov_penalty, rank_weight, or the "
            "name of any other score in NBEST. May be given several times.",
        ),
    ] = None,
    weights_file: Annotated[
        Path | None, _weighing("FILE", "Read the weights from a file that --save-weights wrote.", "--weights")
    ] = None,
    tune_on: Annotated[
        list[str] | None,
        _weighing(
            "DEV",
            "Find weights with few word errors; of nearly equal ones those that change fewest first hypotheses. With "
            "NBEST, DEV is the file of its references. Without NBEST, DEV is n-best lists with references, and --tune "
            "can be repeated. Weights given by --weight stay fixed.",
            "--tune",
        ),
    ] = None,
    test: Annotated[
        str | None, _weighing("TEST", "Rescore these n-best lists with the weights that were tuned on DEV.", "--test")
    ] = None,
    save_weights: Annotated[Path | None, _weighing("FILE", "Write the weights to a JSON file.")] = None,
    refs: Annotated[
        list[str] | None,
        option(
            "REFS",
            "References: 'utt words…' lines or JSON lines. For several lists, give one file for all of them, or one "
            "file per list, with those of --tune first.",
            "--refs",
            show_default="those in the lists",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "FILE",
            "Write the best hypotheses to FILE, as Kaldi text or, if FILE ends in .trn, as SCTK transcripts. "
            "FILE.jsonl and FILE.tsv get all hypotheses with all scores.",
            show_default="standard output",
        ),
    ] = None,
    mode: ModeOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Pick the best hypotheses of a recogniser (n-best lists).

    The best hypothesis has the highest total:

    \b
      am_weight · am + old_lm_weight · old_lm + lm_weight · ln p
          − word_penalty · words − oov_penalty · unknown words
          − rank_weight · ln place + W · score for every other score

    Scores are logarithms: higher is better. Without --tune, the am_weight is 1, the lm_weight 0.25, and the
    oov_penalty 16 times the lm_weight; all other weights are 0. If NBEST has no acoustic scores, the order of the
    hypotheses counts instead: the rank_weight is 16, the lm_weight 1, and all other weights are 0.

    The best hypotheses are printed as Kaldi text, 'utt words…'.

    \b
    Examples:
      bnce rescore runs/relu-lstm --tune dev.jsonl --test test.jsonl \\
          --save-weights w.json
      bnce rescore runs/relu-lstm dev.nbest --scores am=dev.am \\
          --scores lm=dev.lm --tune dev.ref --save-weights w.json
      bnce rescore mixture.toml hypotheses.jsonl --weight lm=0.5 \\
          --weight ctc=0.3 --out scores.tsv
    """
    from bnce.cli.rescored import outcome_lines, pairs, read_lists, which_lists
    from bnce.rescoring.error_rates import compare
    from bnce.rescoring.nbest_writer import check_writable, out_format, write_lists
    from bnce.rescoring.rescore import score_nbest
    from bnce.rescoring.score_names import check_scores, complete_weights, resolve
    from bnce.rescoring.tuning import free_weights, tune
    from bnce.scoring.loading import model_files
    from bnce.scoring.weights import FIRST_BEST, OTHER, Weights
    from bnce.text.sources import named
    from bnce.text.tokenised import TokenisedSigns

    if out is not None and goes_to_stdout(out, as_json):
        out = None
    outputs = [path for path in (save_weights, out) if path is not None]
    for path in outputs:
        files.check_place(path)
    kept = None if weights_file is None else Weights.read(weights_file)
    chosen = tuned_on, rescored, references = which_lists(nbest, tune_on or [], test, refs or [])
    scores_of = pairs([one for one in score_files or [] if "=" in one], "--scores", "NAME=FILE")
    named_weights = pairs(weight or [], "--weight", "NAME=W")
    inputs: list[str | Path] = [*tuned_on, *rescored, *references, *(path for _, path in scores_of), *model_files(run)]
    files.refuse_overwriting(outputs, [*inputs, *([] if weights_file is None else [weights_file])])
    fields = [one for one in score_files or [] if "=" not in one]
    wanted = [*fields, *dict(named_weights), *dict(() if kept is None else kept.scores)]
    dev, last = read_lists(chosen, form, scores_of, wanted, costs)
    last.nbest.check_names(fields)
    written_as = out_format(out)
    if out is not None or not as_json:
        check_writable(last.nbest, written_as)
    given = resolve(named_weights, last.nbest)
    weights = complete_weights(kept, given, last.nbest, tunes=dev is not None)
    check_scores(weights, last.nbest, last.path, given)
    begun = time.perf_counter()
    model = open_model(run, device)
    used_mode = model.choose_mode(mode)
    seconds = {"load": time.perf_counter() - begun, "score": 0.0, "tune": 0.0}
    every = [last] if dev is None or dev is last else [dev, last]
    for lists in every:
        signs = TokenisedSigns(model.normaliser)
        for utterance in lists.nbest.utterances:
            signs.look(" ".join(utterance.texts))
        warn_of_tokenised(signs, named(lists.path))
    num_scored = sum(lists.nbest.num_hypotheses for lists in every)
    begun = time.perf_counter()
    with progress_bar() as bar:
        task = bar.add_task("rescoring", total=num_scored)
        scored = [
            score_nbest(model, lists.nbest, lambda num: bar.update(task, advance=num), mode=used_mode)
            for lists in every
        ]
    seconds["score"] = time.perf_counter() - begun
    model_decides = dev is not None or bool(weights.lm_weight or weights.oov_penalty)
    for lists, (_, found_form) in zip(every, scored, strict=True):
        if warning := found_form.judge_unknown(named(lists.path), refuse=model_decides):
            stderr.print(f"Warning: {warning}")
    scores, found_form = scored[-1]
    tuning: dict[str, Any] | None = None
    if dev is not None and dev.judge is not None:
        dev_scores, judge, start = scored[0][0], dev.judge, weights
        begun = time.perf_counter()
        weights = tune(dev_scores, judge.num_errors_N, start, given)
        seconds["tune"] = time.perf_counter() - begun
        tuning = {
            "refs": references[0] if references else None,
            "num_utterances": len(dev.nbest.utterances),
            "weights": [name.removeprefix(OTHER) for name in free_weights(dev_scores, start, given)],
            "kept_first_best": weights == FIRST_BEST,
        }
        if last is not dev:
            tuning |= {"nbest": tuned_on, **compare(judge, dev_scores.best(weights)).to_dict()}
    if save_weights is not None:
        weights.write(save_weights)
    best = "".join(write_lists(scores, weights, written_as))
    if out is not None:
        files.write_text(out, best)
    elif not as_json:
        sys.stdout.write(best)
    compared = None if last.judge is None else compare(last.judge, scores.best(weights))
    record = {
        "run": str(run),
        "nbest": last.path,
        "format": last.nbest.form,
        "scores": list(last.nbest.score_names),
        "left_out": list(last.nbest.left_out),
        "mode": used_mode,
        "num_utterances": len(last.nbest.utterances),
        "num_hypotheses": last.nbest.num_hypotheses,
        "form": asdict(found_form),
        # Whether the order of the hypotheses took the place of scores.
        "by_rank": not last.nbest.has_am and weights.rank_weight != 0,
        "weights": weights.to_dict(),
        "weights_file": None if weights_file is None else str(weights_file),
        "tuned": tuning is not None,
        # Whether nobody set the weight of the new model.
        "untuned": dev is None and weights_file is None and "lm_weight" not in given,
        "tuning": tuning,
        "seconds": seconds,
        "num_scored": num_scored,
        "hypotheses_per_second": num_scored / seconds["score"],
        **({} if compared is None else compared.to_dict()),
    }
    if as_json:
        print_json(record)
        return
    for line in outcome_lines(record, every, weights, found_form, compared):
        stderr.print(line)
