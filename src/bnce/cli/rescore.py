"""`bnce rescore`: a model and n-best lists in, the best hypotheses out, and how many words are wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce import files
from bnce.cli.conditions import TokenisedOption, read_as, warn_of_tokenised
from bnce.cli.console import JsonOption, ThreadsOption, print_json, progress_bar, stderr
from bnce.cli.options import DeviceOption, ModelArgument, ModeOption, is_normalised
from bnce.errors import UserError
from bnce.kinds.nbest_formats import NBEST_FORMATS

if TYPE_CHECKING:
    from bnce.rescoring.rescore import Scores
    from bnce.scoring.weights import Weights

PANEL = "Weights (logarithms, higher is better)"
CARRY_PANEL = "Context from earlier utterances"


def _weight(text: str, default: str = "0") -> Any:
    """Make the option of a weight, which has its default where neither it nor a file is given."""
    return typer.Option(metavar="W", help=text, show_default=default, rich_help_panel=PANEL)


def rescore(
    run: ModelArgument,
    nbest: Annotated[
        str,
        typer.Argument(metavar="NBEST", help="N-best lists: a file, a directory (ESPnet), or - for standard input."),
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help=f"Format of NBEST: {', '.join(NBEST_FORMATS.names)}; auto decides by the name and the first lines.",
        ),
    ] = "auto",
    keys: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Keys of Kaldi text: numbered (utt-1, utt-2, …), plain (utt on every line), or auto.",
        ),
    ] = "auto",
    am_scores: Annotated[
        str | None, typer.Option(metavar="FILE", help="Acoustic scores for Kaldi text: 'key score' lines.")
    ] = None,
    lm_scores: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Scores of the old language model for Kaldi text: 'key score' lines."),
    ] = None,
    score_files: Annotated[
        list[str] | None,
        typer.Option(
            "--scores", metavar="NAME=FILE", help="Any other score for Kaldi text: 'key score' lines. Can be repeated."
        ),
    ] = None,
    manifest: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Manifest of NeMo beams, with the names and references of the utterances."),
    ] = None,
    beam_size: Annotated[
        int | None, typer.Option(metavar="N", help="Hypotheses per utterance of NeMo beams, if all have as many.")
    ] = None,
    costs: Annotated[bool, typer.Option("--costs", help="Scores are costs, as in Kaldi: lower is better.")] = (False),
    am_weight: Annotated[float | None, _weight("Weight of the acoustic score.", "1")] = None,
    old_lm_weight: Annotated[float | None, _weight("Weight of the old language model's score.")] = None,
    lm_weight: Annotated[float | None, _weight("Weight of RUN's ln p (natural logarithm).", "1")] = None,
    word_penalty: Annotated[float | None, _weight("Subtract W per word.")] = None,
    oov_penalty: Annotated[float | None, _weight("Subtract W per word that RUN does not know.")] = None,
    rank_weight: Annotated[
        float | None,
        _weight(
            "Subtract W times ln(place). The first hypothesis of a list has place 1.",
            "0, or 16 without acoustic scores",
        ),
    ] = None,
    weights_file: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            metavar="FILE",
            help="Read the weights from a file that --save-weights wrote.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    tune_on: Annotated[
        str | None,
        typer.Option(
            "--tune",
            metavar="REFS",
            help="Find weights with few word errors against these references: of those within chance of the fewest "
            "errors, the ones that change the fewest first hypotheses. Weights given as options stay fixed.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    save_weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the weights to a JSON file.", rich_help_panel=PANEL)
    ] = None,
    refs: Annotated[
        str | None,
        typer.Option(
            metavar="REFS",
            help="Print word error rates against these references: 'utt words…' lines, a .trn file or JSON lines.",
            show_default="those in NBEST, if it has some",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the best hypotheses to FILE.", show_default="standard output"),
    ] = None,
    out_form: Annotated[
        str,
        typer.Option(
            "--out-format",
            metavar="NAME",
            help="Format of the output: kaldi, trn, or jsonl (all hypotheses with all scores); auto decides by the "
            "file extension of --out.",
        ),
    ] = "auto",
    full: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write all hypotheses with all scores to FILE, which ends in .tsv or .jsonl."
        ),
    ] = None,
    mode: ModeOption = "unnormalised",
    carry: Annotated[
        bool,
        typer.Option(
            "--carry",
            help="Score each utterance with the earlier utterances as context. NBEST must be in the order of speaking.",
            rich_help_panel=CARRY_PANEL,
        ),
    ] = False,
    carry_from: Annotated[
        str | None,
        typer.Option(
            metavar="best|first",
            help="Hypothesis to use as context: the best by the weights, or the first of its list.",
            show_default="best",
            rich_help_panel=CARRY_PANEL,
        ),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(
            metavar="blank|REGEX",
            help="blank: a blank line ends a document, and the next one starts afresh. REGEX: utterances whose names "
            "begin with the same match are one document.",
            show_default="one document",
            rich_help_panel=CARRY_PANEL,
        ),
    ] = None,
    tokenised: TokenisedOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Pick the best hypotheses of a recogniser (n-best lists).

    The best hypothesis has the highest total:

    \b
      am_weight · am + old_lm_weight · old_lm + lm_weight · ln p
          − word_penalty · words − oov_penalty · unknown words
          − rank_weight · ln place

    If NBEST has no acoustic scores, the order of the hypotheses counts instead (rank_weight).

    The best hypotheses are printed as Kaldi text, 'utt words…'.

    \b
    Examples:
      bnce rescore runs/relu-lstm dev.nbest --am-scores dev.am \\
          --lm-scores dev.lm --tune dev.ref --save-weights w.json
      bnce rescore runs/relu-lstm test.nbest --am-scores test.am \\
          --lm-scores test.lm --weights w.json --refs test.ref
      bnce rescore mixture.toml hypotheses.jsonl --lm-weight 0.5 \\
          --full scores.tsv
      bnce rescore runs/relu-lstm librispeech.jsonl --weights w.json --carry \\
          --documents '[^-]+-[^-]+'
    """
    from bnce.machine.threads import use_threads
    from bnce.rescoring.comparison import compare
    from bnce.rescoring.error_rate import import_jiwer
    from bnce.rescoring.in_order import check_carry_from, find_documents, score_in_order, tune_in_order
    from bnce.rescoring.nbest import read_nbest
    from bnce.rescoring.references import read_references
    from bnce.rescoring.rescore import Judge, score_nbest
    from bnce.rescoring.tuning import free_weights, tune
    from bnce.rescoring.writing import check_writable, out_format, written
    from bnce.scoring.loading import load
    from bnce.scoring.weights import FIRST_BEST, NAMES, RANK_WEIGHT, Weights
    from bnce.text.sources import named
    from bnce.text.tokenised import TokenisedSigns

    normalised = is_normalised(mode, "rescoring")
    if tune_on is not None and refs is not None:
        raise UserError(
            "--tune and --refs cannot be used together: tune with --tune first, then use --weights and --refs."
        )
    rule = carry_from or "best"
    check_carry_from(rule)
    if not carry and (carry_from is not None or documents is not None):
        what = "--documents" if carry_from is None else "--carry-from"
        raise UserError(f"{what} works only with --carry: give --carry, too.")
    if full is not None and full.suffix not in (".tsv", ".jsonl"):
        raise UserError(f"--full is '{full}': give a file name that ends in .tsv or .jsonl.")
    for path in (save_weights, out, full):
        if path is not None:
            files.check_place(path)
    options = (am_weight, old_lm_weight, lm_weight, word_penalty, oov_penalty, rank_weight)
    given = {name: value for name, value in zip(NAMES, options, strict=True) if value is not None}
    weights = replace(Weights() if weights_file is None else Weights.read(weights_file), **given)
    references = tune_on if refs is None else refs
    if references is not None:
        import_jiwer()
    lists = read_nbest(
        nbest,
        form,
        keys=keys,
        am_scores=am_scores,
        lm_scores=lm_scores,
        score_files=_named(score_files or [], "--scores", "NAME=FILE"),
        manifest=manifest,
        beam_size=beam_size,
        costs=costs,
    )
    written_as = out_format(None if out is None else str(out), out_form)
    check_writable(lists, written_as)
    if references is not None:
        spoken = read_references(references, lists.utterances)
    elif lists.has_references and find_spec("jiwer") is not None:
        spoken = [str(utterance.reference) for utterance in lists.utterances]
    else:
        spoken = None
    for name, has in (("am_weight", lists.has_am), ("old_lm_weight", lists.has_old_lm)):
        if given.get(name) and not has:
            kind = name.removesuffix("_weight").replace("am", "acoustic").replace("_lm", " language model")
            raise UserError(f"--{name.replace('_', '-')} is {given[name]:g}, but '{nbest}' has no {kind} scores.")
    if not lists.has_am:
        weights = replace(weights, am_weight=0.0)
        if not weights.rank_weight and rank_weight is None:
            # Tuning measures the other weights by this one, so that it is 1 there, as the acoustic weight is elsewhere.
            weights = replace(weights, rank_weight=RANK_WEIGHT if tune_on is None else 1.0)
    start = weights
    use_threads(threads)
    model = load(run, device)
    if not normalised:
        model.refuse_unnormalised()
    model.normaliser = read_as(model.normaliser, tokenised)
    signs = TokenisedSigns(model.normaliser)
    for utterance in lists.utterances:
        signs.look(" ".join(utterance.texts))
    warn_of_tokenised(signs, named(nbest))
    judge = None if spoken is None else Judge(lists, spoken)
    with progress_bar() as bar:
        task = bar.add_task("rescoring", total=lists.num_hypotheses)

        def advance(num: int) -> None:
            bar.update(task, advance=num)

        def score(by: Weights | None) -> Scores:
            bar.update(task, completed=0)
            carried_by = None if rule == "first" else by
            return score_in_order(model, lists, carried_by, documents, advance, normalised=normalised)

        def find(found: Scores) -> Weights:
            return start if judge is None else tune(found, judge.num_errors_N, start, fixed=given)

        def loses(found: Scores, by: Weights) -> bool:
            return judge is not None and judge.judge(found.best(by)).total > judge.first().total

        if carry and rule == "best" and tune_on is not None:
            scores, weights = tune_in_order(score, find, loses)
        else:
            scores = score(weights) if carry else score_nbest(model, lists, advance, normalised=normalised)
            if tune_on is not None:
                weights = find(scores)
    if save_weights is not None:
        weights.write(save_weights)
    if full is not None:
        files.write_text(full, "".join(_full_lines(scores, weights, full.suffix)))
    best = "".join(written(scores, weights, written_as))
    if out is not None:
        files.write_text(out, best)
    elif not as_json:
        sys.stdout.write(best)
    compared = None if judge is None else compare(judge, scores.best(weights))
    tuning = None
    if tune_on is not None:
        tuning = {
            "refs": tune_on,
            "num_utterances": len(lists.utterances),
            "weights": free_weights(scores, start, given),
            "kept_first_best": weights == FIRST_BEST,
        }
    num_documents = len(find_documents(lists, documents)) if carry else None
    by_rank = not lists.has_am and weights.rank_weight != 0
    if as_json:
        print_json(
            {
                "run": str(run),
                "nbest": nbest,
                "format": lists.form,
                "mode": mode,
                "carry": rule if carry else None,
                "num_documents": num_documents,
                "num_utterances": len(lists.utterances),
                "num_hypotheses": lists.num_hypotheses,
                "by_rank": by_rank,
                "weights": asdict(weights),
                "weights_file": None if weights_file is None else str(weights_file),
                "tuned": tune_on is not None,
                "tuning": tuning,
                **({} if compared is None else compared.to_dict()),
            }
        )
        return
    stderr.print(f"{named(nbest)} was read as {NBEST_FORMATS.find(lists.form).shown}: {lists.told()}.", markup=False)
    for sentence in lists.left_out:
        stderr.print(sentence, markup=False)
    stderr.print(
        f"{len(lists.utterances)} utterances, {lists.num_hypotheses} hypotheses; {_shown(weights)}", markup=False
    )
    if by_rank:
        stderr.print(
            f"{named(nbest)} has no acoustic scores, so the order of the hypotheses counts: the first one of a list is "
            "taken to be the recogniser's best, and so on.",
            markup=False,
        )
    elif not lists.has_am:
        stderr.print(
            f"{named(nbest)} has no acoustic scores, and rank_weight is 0: what the recogniser preferred does not "
            "count.",
            markup=False,
        )
    if num_documents is not None:
        stderr.print(
            f"Each utterance was scored with the {rule} hypotheses of earlier utterances as context, in "
            f"{num_documents} document{'' if num_documents == 1 else 's'}.",
            markup=False,
        )
    if tuning is not None:
        stderr.print(_told(tuning, named(nbest)), markup=False)
    for line in () if compared is None else compared.lines():
        stderr.print(line, markup=False)
    if tuning is not None:
        stderr.print("The weights were tuned on these references: measure word error rates on others.", markup=False)
    elif weights_file is not None:
        stderr.print(f"The weights are those of '{weights_file}'.", markup=False)


def _named(given: Sequence[str], option: str, metavar: str) -> dict[str, str]:
    """Read the values of an option that is repeated, each a name and what belongs to it."""
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.strip() or not value.strip() or name in found:
            raise UserError(f"{option} is '{one}': give {metavar}, each name once.")
        found[name] = value
    return found


def _full_lines(scores: Scores, weights: Weights, ending: str) -> Iterator[str]:
    from bnce.rescoring.rescore import FULL_COLUMNS

    if ending == ".jsonl":
        yield from (files.to_json(row) + "\n" for row in scores.rows(weights))
        return
    yield "\t".join(FULL_COLUMNS) + "\n"
    for row in scores.rows(weights):
        yield "\t".join("" if value is None else str(value) for value in row.values()) + "\n"


def _told(tuning: dict[str, Any], nbest: str) -> str:
    """Say which weights were tuned on what, or that no weights were good enough."""
    names = " and ".join(", ".join(tuning["weights"]).rsplit(", ", 1)) or "No weight"
    told = f"Tuned on {tuning['num_utterances']} utterances of {nbest} with the references '{tuning['refs']}': {names}."
    if tuning["kept_first_best"]:
        told += (
            " No weights made fewer errors than the first hypotheses by more than chance, so the first hypotheses are "
            "kept."
        )
    return told


def _shown(weights: Weights) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in asdict(weights).items())
