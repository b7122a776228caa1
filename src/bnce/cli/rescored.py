"""What `bnce rescore` reads and what it reports: which lists are tuned on and judged, and what came of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bnce.errors import UserError, counted

if TYPE_CHECKING:
    from bnce.rescoring.error_rates import Comparison, Judge
    from bnce.rescoring.nbest import NBest
    from bnce.scoring.weights import Weights

# The lists that are tuned on, the other one that is rescored, and files of references: one for each or one for all.
Chosen = tuple[list[str], list[str], list[str]]


class Lists(NamedTuple):
    """N-best lists, the files that they came from, and the errors of all hypotheses where there are references."""

    path: str
    nbest: NBest
    parts: Sequence[tuple[str, NBest]]
    judge: Judge | None


def which_lists(nbest: str | None, tuned_on: list[str], test: str | None, refs: list[str]) -> Chosen:
    """Tell lists from references: with NBEST, --tune is the file of its references; without it, it has the lists."""
    if nbest is None:
        if not tuned_on:
            what = "--test needs weights from --tune DEV" if test is not None else "There are no n-best lists"
            raise UserError(f"{what}: give NBEST, or lists with references as --tune DEV.")
        return tuned_on, [] if test is None else [test], refs
    if test is not None or len(tuned_on) > 1 or (tuned_on and refs):
        raise UserError(
            "With NBEST, --tune is the file of its references, and is used once and without --test or --refs: leave "
            "out NBEST, and give the lists to tune on as --tune DEV."
        )
    return ([nbest], [], tuned_on) if tuned_on else ([], [nbest], refs)


def read_lists(
    chosen: Chosen, form: str, score_files: Sequence[tuple[str, str]], fields: Sequence[str], costs: bool
) -> tuple[Lists | None, Lists]:
    """Read the lists to tune on, if there are some, and those to rescore in the end, which may be the same."""
    from bnce.rescoring.error_rates import Judge
    from bnce.rescoring.nbest import check_same_scores, pool
    from bnce.rescoring.nbest_formats import read_nbest, read_references

    tuned_on, rescored, references = chosen
    paths = [*tuned_on, *rescored]

    def take(values: Sequence[str], place: int, option: str) -> str:
        if len(values) not in (1, len(paths)):
            raise UserError(
                f"{option} is given {len(values)} times for {len(paths)} lists: give it once, or once for each list, "
                "those of --tune first."
            )
        return values[place if len(values) > 1 else 0]

    files_by_name: dict[str, list[str]] = {}
    for name, file in score_files:
        files_by_name.setdefault(name, []).append(file)
    parts: list[tuple[str, NBest]] = []
    known: list[list[str]] = []  # the references of each list, or none
    for place, path in enumerate(paths):
        own = {name: take(given, place, f"--scores {name}") for name, given in files_by_name.items()}
        nbest = read_nbest(path, form, score_files=own, fields=fields, costs=costs)
        parts.append((path, nbest))
        if references:
            names = [utterance.name for utterance in nbest.utterances]
            known.append(read_references(take(references, place, "--refs"), names))
        elif place < len(tuned_on) and not nbest.has_references:
            raise UserError(f"'{path}' has no references to tune on: give them with --refs.")
        else:
            has_own = nbest.has_references
            known.append([str(utterance.reference) for utterance in nbest.utterances] if has_own else [])

    check_same_scores(parts)

    def judged(which: slice) -> Lists:
        nbest, spoken = pool(parts[which]), list(itertools.chain.from_iterable(known[which]))
        return Lists(parts[which][0][0], nbest, parts[which], Judge(nbest, spoken) if spoken else None)

    dev = judged(slice(len(tuned_on))) if tuned_on else None
    return dev, judged(slice(len(tuned_on), None)) if dev is None or rescored else dev


def pairs(given: Sequence[str], option: str, metavar: str) -> list[tuple[str, str]]:
    """Read the values of an option that is repeated, each a name and what belongs to it."""
    found = []
    for one in given:
        name, _, value = one.partition("=")
        if not name.strip() or not value.strip():
            raise UserError(f"{option} is '{one}': give {metavar}.")
        found.append((name, value))
    return found


def outcome_lines(
    record: Mapping[str, Any], every: Sequence[Lists], weights: Weights, form: object, compared: Comparison | None
) -> Iterator[str]:
    """Say in sentences how the lists were read, and what came of rescoring the last."""
    from bnce.rescoring.nbest_formats import FORMATS
    from bnce.text.sources import named

    for path, part in [part for lists in every for part in lists.parts]:
        yield f"{named(path)} was read as {FORMATS[part.form].shown}: {part.described()}."
        yield from part.left_out
    lists = every[-1]
    nbest, name, tuning = lists.nbest, named(lists.path), record["tuning"]
    yield f"{nbest.counted()}; {weights}; {record['mode']} probabilities"
    seconds, scored = record["seconds"], counted(record["num_scored"], "hypothesis", "hypotheses")
    tuned = f", tuning {seconds['tune']:.1f} s" if tuning else ""
    speed = f"{scored}, {record['hypotheses_per_second']:,.0f} per second"
    yield f"Time: loading {seconds['load']:.1f} s, scoring {seconds['score']:.1f} s ({speed}){tuned}."
    yield str(form)
    if record["by_rank"]:
        yield (
            f"{name} has no acoustic scores, so the order of the hypotheses counts: the first one of a list is the "
            "recogniser's best, the second one its second best, and so on."
        )
    if record["untuned"]:
        yield (
            "No weights were tuned: these are cautious defaults, which fit no recogniser well. Give --tune with "
            "references to find weights, or --weight lm=W."
        )
    if tuning:
        yield _describe_tuning(tuning, name)
    if compared is not None:
        yield from compared.lines()
    if tuning and "nbest" not in tuning:
        yield "The weights were tuned on these references: measure word error rates on others."
    elif record["weights_file"] is not None and not tuning:
        yield f"The weights are those of '{record['weights_file']}'."


def _describe_tuning(tuning: Mapping[str, Any], nbest: str) -> str:
    """Say which weights were tuned on what, or that no weights were good enough."""
    names = " and ".join(", ".join(tuning["weights"]).rsplit(", ", 1)) or "No weight"
    where = " and ".join(f"'{path}'" for path in tuning["nbest"]) if "nbest" in tuning else nbest
    references = "the references inside" if tuning["refs"] is None else f"the references '{tuning['refs']}'"
    line = f"Tuned on {counted(tuning['num_utterances'], 'utterance')} of {where} with {references}: {names}."
    if "nbest" in tuning and tuning["before"]["wer"] is not None:
        line += f" WER there: {100 * tuning['before']['wer']:.2f}% before, {100 * tuning['after']['wer']:.2f}% after."
    if tuning["kept_first_best"]:
        line += (
            " No weights made fewer errors than the first hypotheses by more than chance, so the first hypotheses are "
            "kept."
        )
    return line
