"""What `bnce rescore` reads and what it tells: which lists are tuned on and judged, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from bnce.errors import UserError, counted
from bnce.rescoring.nbest_formats import NBEST_FORMATS

if TYPE_CHECKING:
    from bnce.rescoring.comparison import Changes, Comparison
    from bnce.rescoring.form import Form
    from bnce.rescoring.nbest import NBest
    from bnce.rescoring.rescore import Judge
    from bnce.scoring.weights import Weights


class Chosen(NamedTuple):
    """Which lists are tuned on, which are rescored in the end, and the files of references, one for each or for all."""

    tuned_on: tuple[str, ...]
    rescored: str | None  # None: those that are tuned on
    references: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """All lists, those that are tuned on first."""
        return self.tuned_on if self.rescored is None else (*self.tuned_on, self.rescored)

    @property
    def tuned_with(self) -> str | None:
        """The references that were tuned on, if they are in a file."""
        return self.references[0] if self.references else None


@dataclass
class Lists:
    """N-best lists with what was said, if it is known."""

    path: str
    nbest: NBest
    spoken: list[str] | None
    parts: Sequence[tuple[str, NBest]]  # the files that they came from

    @cached_property
    def judge(self) -> Judge:
        """The errors of all hypotheses, where it is known what was said."""
        from bnce.rescoring.rescore import Judge

        assert self.spoken is not None
        return Judge(self.nbest, self.spoken)

    def lines(self) -> Iterator[str]:
        """Say how each file was read, and what was left out of it."""
        from bnce.text.sources import named

        for path, nbest in self.parts:
            yield f"{named(path)} was read as {NBEST_FORMATS[nbest.form].shown}: {nbest.told()}."
            yield from nbest.left_out


def which_lists(nbest: str | None, tuned_on: Sequence[str], test: str | None, refs: Sequence[str]) -> Chosen:
    """Tell lists from references: with NBEST, --tune is the file of its references; without it, it has the lists."""
    if nbest is None:
        if not tuned_on:
            what = "--test needs weights from --tune DEV" if test is not None else "There are no n-best lists"
            raise UserError(f"{what}: give NBEST, or lists with references as --tune DEV.")
        return Chosen(tuple(tuned_on), test, tuple(refs))
    if test is not None:
        raise UserError(
            "NBEST and --test cannot be used together: leave out NBEST, and give the lists to tune on as --tune DEV."
        )
    if len(tuned_on) > 1:
        raise UserError(
            f"--tune is given {len(tuned_on)} times: with NBEST it is the file of its references; leave out NBEST to "
            "tune on several lists."
        )
    if tuned_on and refs:
        raise UserError(
            "--tune and --refs cannot be used together: tune with --tune first, then use --weights and --refs."
        )
    return Chosen((nbest,), None, tuple(tuned_on)) if tuned_on else Chosen((), nbest, tuple(refs))


def read_lists(
    chosen: Chosen, form: str, score_files: Sequence[tuple[str, str]], costs: bool
) -> tuple[Lists | None, Lists]:
    """Read the lists to tune on, if there are some, and those to rescore in the end, which may be the same."""
    from bnce.rescoring.error_rate import import_jiwer
    from bnce.rescoring.nbest import check_same_scores, pool, read_nbest
    from bnce.rescoring.references import read_references

    if chosen.tuned_on or chosen.references:
        import_jiwer()
    has_jiwer = find_spec("jiwer") is not None

    def take(values: Sequence[str], place: int, option: str) -> str:
        if len(values) not in (1, len(chosen.paths)):
            raise UserError(
                f"{option} is given {len(values)} times for {len(chosen.paths)} lists: give it once, or once for each "
                "list, those of --tune first."
            )
        return values[place if len(values) > 1 else 0]

    files_by_name: dict[str, list[str]] = {}
    for name, file in score_files:
        files_by_name.setdefault(name, []).append(file)
    found: list[tuple[str, NBest, list[str] | None]] = []
    for place, path in enumerate(chosen.paths):
        own = {name: take(given, place, f"--scores {name}") for name, given in files_by_name.items()}
        nbest = read_nbest(path, form, score_files=own, costs=costs)
        spoken = None
        if chosen.references:
            spoken = read_references(take(chosen.references, place, "--refs"), nbest.utterances)
        elif nbest.has_references and has_jiwer:
            spoken = [str(utterance.reference) for utterance in nbest.utterances]
        elif place < len(chosen.tuned_on):
            raise UserError(f"'{path}' has no references to tune on: give them with --refs.")
        found.append((path, nbest, spoken))
    num_tuned = len(chosen.tuned_on)
    parts = [(path, nbest) for path, nbest, _ in found]
    dev = None
    if num_tuned:
        together = [text for _, _, spoken in found[:num_tuned] for text in spoken or []]
        dev = Lists(parts[0][0], pool(parts[:num_tuned]), together, parts[:num_tuned])
    if chosen.rescored is None:
        assert dev is not None
        return dev, dev
    if dev is not None:
        check_same_scores(parts[0], parts[-1])
    path, nbest, spoken = found[-1]
    return dev, Lists(path, nbest, spoken, parts[-1:])


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
    record: Mapping[str, Any],
    lists: Lists,
    weights: Weights,
    form: Form,
    compared: Comparison | None,
    changes: Changes | None,
    *,
    tests: bool,
) -> Iterator[str]:
    """Say in sentences what came of rescoring; `tests`: on others than the lists that were tuned on."""
    from bnce.text.sources import named

    nbest, name, tuning = lists.nbest, named(lists.path), record["tuning"]
    yield f"{nbest.counted()}; {weights}"
    yield _speed(record)
    yield str(form)
    if record["by_rank"]:
        yield (
            f"{name} has no acoustic scores, so the order of the hypotheses counts: the first one of a list is the "
            "recogniser's best, the second one its second best, and so on."
        )
    elif not nbest.has_am and not any(weight for _, weight in weights.scores):
        yield (
            f"{name} has no acoustic scores, and rank_weight is 0: the recogniser's order of the hypotheses does not "
            "count."
        )
    if record["untuned"]:
        yield (
            "No weights were tuned: these are cautious defaults, which fit no recogniser well. Give --tune with "
            "references to find weights, or --weight lm=W."
        )
    if tuning is not None:
        yield _told(tuning, name)
    if compared is not None:
        yield from compared.lines()
    if changes is not None:
        yield str(changes)
    if tuning is not None and not tests:
        yield "The weights were tuned on these references: measure word error rates on others."
    elif record["weights_file"] is not None and tuning is None:
        yield f"The weights are those of '{record['weights_file']}'."


def _speed(record: Mapping[str, Any]) -> str:
    seconds = record["seconds"]
    scored = counted(record["num_scored"], "hypothesis", "hypotheses")
    scoring = f"scoring {seconds['score']:.1f} s ({scored}, {record['hypotheses_per_second']:,.0f} per second)"
    parts = [f"loading {seconds['load']:.1f} s", scoring]
    if record["tuning"] is not None:
        parts.append(f"tuning {seconds['tune']:.1f} s")
    return f"Time: {', '.join(parts)}."


def _told(tuning: Mapping[str, Any], nbest: str) -> str:
    """Say which weights were tuned on what, or that no weights were good enough."""
    names = " and ".join(", ".join(tuning["weights"]).rsplit(", ", 1)) or "No weight"
    where = " and ".join(f"'{path}'" for path in tuning["nbest"]) if "nbest" in tuning else nbest
    references = "the references inside" if tuning["refs"] is None else f"the references '{tuning['refs']}'"
    told = f"Tuned on {counted(tuning['num_utterances'], 'utterance')} of {where} with {references}: {names}."
    if "nbest" in tuning and tuning["before"]["wer"] is not None:
        told += f" WER there: {100 * tuning['before']['wer']:.2f}% before, {100 * tuning['after']['wer']:.2f}% after."
    if tuning["kept_first_best"]:
        told += (
            " No weights made fewer errors than the first hypotheses by more than chance, so the first hypotheses are "
            "kept."
        )
    return told
