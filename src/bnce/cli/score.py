"""`bnce score`: a run and plain text in, log10 probabilities of sentences and words out."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from bnce import files
from bnce.cli.completion import complete
from bnce.cli.conditions import MAY_EXCEED, TokenisedOption, read_as, seen_by_score, warn_of_tokenised
from bnce.cli.console import JsonOption, ThreadsOption, print_json, progress_bar, stderr
from bnce.cli.options import DeviceOption, ErrorsOption, ModelArgument
from bnce.errors import UserError, unknown_name

if TYPE_CHECKING:
    from bnce.scoring.scored import ScoredSentence
    from bnce.scoring.sentences import Check
    from bnce.text.normalise import Normaliser


def score(
    run: ModelArgument,
    text: Annotated[
        str, typer.Argument(metavar="FILE", help="Text, one sentence per line; - for standard input.")
    ] = "-",
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="unnormalised: with the constant Z (fast). normalised: with the softmax (exact). checked: with the "
            "constant Z, compared with the softmax at a sample of words.",
            autocompletion=complete("unnormalised", "normalised", "checked"),
        ),
    ] = "unnormalised",
    per_word: Annotated[bool, typer.Option("--per-word", help="Print the probability of every word.")] = False,
    layout: Annotated[
        str,
        typer.Option(
            metavar="kenlm|srilm",
            help="Print in the format of KenLM's query, or of SRILM's ngram -ppl.",
            autocompletion=complete("kenlm", "srilm"),
        ),
    ] = "kenlm",
    carry: Annotated[
        bool,
        typer.Option(
            "--carry",
            help="Score each sentence with the earlier sentences as context. Without it each one starts afresh.",
        ),
    ] = False,
    documents: Annotated[
        str | None,
        typer.Option(
            metavar="blank",
            help="With --carry: a blank line ends a document, and the next document starts afresh. Blank lines are not "
            "scored.",
            show_default="one document",
        ),
    ] = None,
    split: Annotated[
        bool, typer.Option("--split", help="Split lines into sentences. Without it one line is one sentence.")
    ] = False,
    num_checked: Annotated[int, typer.Option(min=1, metavar="N", help="With --mode checked: check N words.")] = 1000,
    errors: ErrorsOption = "strict",
    tokenised: TokenisedOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Print one JSON object per sentence, with every word.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Score text: log10 probabilities, unknown words, perplexity.

    Text is cut into words as the training text was. </s> is scored at the end of every sentence.

    \b
    Examples:
      bnce score runs/relu-lstm news.txt
      echo "the function returns nothing" | bnce score runs/relu-lstm --per-word
      bnce score runs/relu-lstm news.txt.gz --mode checked --json
      bnce score mixture.toml news.txt
    """
    from bnce.machine.threads import use_threads
    from bnce.scoring.layouts import get_layout
    from bnce.scoring.scored import Totals
    from bnce.text.sources import named, read_lines, source_bytes

    if as_json and as_jsonl:
        raise UserError("--json prints the totals and --jsonl the sentences: give one of the two.")
    if per_word and as_json:
        raise UserError("--json prints the totals alone: give --jsonl for the probability of every word.")
    if documents is not None and (not carry or documents != "blank"):
        raise UserError(
            f"--documents is '{documents}': give 'blank'."
            if carry
            else "--documents says how context is carried over: give --carry, too."
        )
    form = get_layout(layout, per_word)
    num_bytes_read = 0

    def advance(num_bytes: int) -> None:
        nonlocal num_bytes_read
        num_bytes_read += num_bytes

    use_threads(threads)
    lines = read_lines(text, errors, advance)
    source = _open_file(run, mode, carry, device) if run.is_file() else _open_run(run, mode, carry, num_checked, device)
    cutter = _Cutter(read_as(source.normaliser, tokenised), split)
    scored_sentences = itertools.chain.from_iterable(
        source.score_document(map(cutter, document)) for document in _documents(lines, documents is not None)
    )
    totals = Totals()
    with _shown_progress(text, source_bytes(text)) as show:
        for scored in scored_sentences:
            totals.add(scored)
            if as_jsonl:
                sys.stdout.write(files.to_json(scored.to_dict()) + "\n")
            elif not as_json:
                sys.stdout.write(form.sentence(scored))
            show(num_bytes_read)
    warn_of_tokenised(cutter.signs, named(text))
    check = None if source.check is None else source.check()
    context = ("document" if documents else "text") if carry else "sentence" if split else "line"
    if as_json:
        record = {"run": str(run), "text": text, "mode": mode, "carry": carry, "context": context}
        record |= {"max_context": source.num_words_seen, "num_lines_of_several_sentences": cutter.num_several}
        checked = {} if check is None else {"check": dataclasses.asdict(check)}
        print_json({**record, "log_base": 10, "log_z": source.log_z, **totals.to_dict(), **checked})
        return
    # Of JSON lines there is one a sentence and none besides.
    summary = sys.stderr if as_jsonl else sys.stdout
    summary.write(form.summary(totals, text))
    if check is not None:
        summary.write(
            f"Check:\t{check.num_positions} words, unnormalised - exact ln p: mean {check.mean_difference:.4f}, "
            f"at most {check.max_difference:.4f}; ln Z(context) {check.log_z_mean:.4f} ± {check.log_z_std:.4f} "
            "(mean ± standard deviation)\n"
        )
    stderr.print(f"log10 probabilities, {source.with_what}.", markup=False)
    stderr.print(seen_by_score(context, source.num_words_seen), markup=False)
    stderr.print(f"Perplexities are {form.counted}.", markup=False)
    if cutter.num_several:
        stderr.print(
            f"{cutter.num_several:,} of {cutter.num_lines:,} lines hold several sentences, which the training text had "
            "</s> between: --split cuts lines likewise and gives the lower perplexity.",
            markup=False,
        )


class _Cutter:
    """Cuts lines into sentences, and notes what may explain their perplexity."""

    def __init__(self, normaliser: Normaliser, split: bool) -> None:
        from bnce.text.tokenised import TokenisedSigns

        self.signs = TokenisedSigns(normaliser)
        self.num_lines = self.num_several = 0
        self._normaliser, self._split = normaliser, split

    def __call__(self, line: str) -> list[list[str]]:
        """Cut a line as the training text was, or take it as one sentence."""
        self.signs.look(line)
        sentences = self._normaliser(line)
        if self._split:
            return sentences or [[]]
        self.num_lines += 1
        self.num_several += len(sentences) > 1
        return [list(itertools.chain.from_iterable(sentences))]


@dataclasses.dataclass(frozen=True)
class _Source:
    """What scores sentences, and what there is to say of it."""

    normaliser: Normaliser
    score: Callable[[Iterable[list[str]]], Iterator[ScoredSentence]]
    begin_document: Callable[[], None]
    with_what: str
    num_words_seen: int | None = None
    log_z: float | None = None
    check: Callable[[], Check] | None = None

    def score_document(self, lines: Iterable[list[list[str]]]) -> Iterator[ScoredSentence]:
        """Score the sentences of lines, with nothing before them."""
        self.begin_document()
        return self.score(itertools.chain.from_iterable(lines))


def _documents(lines: Iterable[str], cut: bool) -> Iterator[Iterable[str]]:
    """Cut lines into documents at blank ones, or give all of them as one."""
    if not cut:
        yield lines
        return
    for is_blank, document in itertools.groupby(lines, key=lambda line: not line or line.isspace()):
        if not is_blank:
            yield document


def _open_run(run: Path, mode: str, carry: bool, num_checked: int, device: str) -> _Source:
    from bnce.evaluation.evaluate import num_words_seen
    from bnce.scoring.model import load
    from bnce.scoring.sentences import SentenceScorer

    model = load(run, device)
    scorer = SentenceScorer(model.network, mode, carry=carry, num_checked=num_checked)
    log_z = None if mode == "normalised" else float(model.network.output.log_z)
    return _Source(
        model.normaliser,
        lambda sentences: model.score_words(scorer, sentences),
        scorer.begin_document,
        "with the softmax" if log_z is None else f"with the constant ln Z = {log_z:.3f} ({MAY_EXCEED})",
        num_words_seen(model.network),
        log_z,
        scorer.check if mode == "checked" else None,
    )


def _open_file(path: Path, mode: str, carry: bool, device: str) -> _Source:
    """Open a mixture, whose runs may go on from the sentence before, or an n-gram model, which never does."""
    from bnce.scoring.any_model import open_any
    from bnce.scoring.mixture import Mixture
    from bnce.scoring.sentences import MODES

    if mode not in MODES:
        raise unknown_name("mode of scoring", mode, MODES)
    if mode == "checked":
        raise UserError(f"--mode checked is for a run, and '{path}' is a file: give a run directory, or leave it out.")
    model = open_any(path, mode == "normalised", device, carry)
    what = "an n-gram model"
    if isinstance(model, Mixture):
        how = "the softmax" if mode == "normalised" else f"the constant Z ({MAY_EXCEED})"
        what = f"a mixture of {len(model.components)}, runs in it with {how}"
        if carry:
            what += "; n-gram models in it start every sentence afresh"
    elif carry:
        raise UserError(f"'{path}' is an n-gram model, which starts every sentence afresh: leave out --carry.")
    return _Source(model.normaliser, model.score_sentences, model.begin_document, f"of {what}")


@contextlib.contextmanager
def _shown_progress(name: str, num_bytes: int) -> Iterator[Callable[[int], object]]:
    """Give what shows how much of a file is read, where a bar would not stand among the results."""
    if not num_bytes or (sys.stdout.isatty() and sys.stderr.isatty()):
        yield lambda num_bytes_read: None
        return
    with progress_bar() as bar:
        task = bar.add_task(f"scoring {escape(name)}", total=num_bytes)
        yield lambda num_bytes_read: bar.update(task, completed=num_bytes_read)
