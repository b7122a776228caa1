"""`bnce score`: a run and plain text in, log10 probabilities of sentences and words out."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from bnce.cli.completion import complete
from bnce.cli.console import JsonOption, open_model, print_json, shown_progress, stderr
from bnce.cli.options import (
    MAY_EXCEED,
    MODE_HELP,
    MODES,
    DeviceOption,
    ModelArgument,
    choice,
    flag,
    is_normalised,
    option,
    warn_of_tokenised,
)
from bnce.errors import UserError, unknown_name

if TYPE_CHECKING:
    from bnce.scoring.model import Model, Reader
    from bnce.scoring.scored import ScoredSentence
    from bnce.text.normalise import Normaliser

CHECKED, NUM_CHECKED = "checked", 1000  # a mode, and at how many words it compares
SPELT = (
    "A word outside the vocabulary has the probability p(<unk>) times that of its spelling, so every word counts. "
    "Bits per byte are of the text as the model reads it: the UTF-8 bytes of all words, a blank between two words, "
    "and a newline after each sentence."
)


def score(
    run: ModelArgument,
    text: Annotated[
        str, typer.Argument(metavar="FILE", help="Text, one sentence per line; - for standard input.")
    ] = "-",
    mode: Annotated[
        str,
        option(
            "MODE",
            f"{MODE_HELP} {CHECKED}: with the constant Z, compared with the softmax at a sample of words.",
            "--mode",
            autocompletion=complete(*MODES, CHECKED),
        ),
    ] = "unnormalised",
    per_word: Annotated[bool, flag("--per-word", "Print the probability of every word.")] = False,
    layout: Annotated[
        str,
        choice(
            "kenlm|srilm|jsonl",
            "kenlm: as KenLM's query prints. srilm: as SRILM's ngram -ppl prints. jsonl: one JSON object per sentence, "
            "with every word.",
        ),
    ] = "kenlm",
    carry: Annotated[
        str | None,
        choice(
            "text|documents",
            "Score each sentence with the earlier sentences as context: of the whole text, or of its document. A blank "
            "line ends a document and is not scored.",
            show_default="no context",
        ),
    ] = None,
    split: Annotated[
        bool, flag("--split", "Split lines into sentences. Without this option, each line is one sentence.")
    ] = False,
    spell: Annotated[
        bool,
        flag(
            "--spell",
            "Give each unknown word its own probability: p(<unk>) times the probability of its spelling. Also print "
            "bits per byte.",
        ),
    ] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Score text: log10 probabilities, unknown words, perplexity.

    Text is cut into words as the training text was. </s> is scored at the end of every sentence.

    \b
    Examples:
      bnce score runs/relu-lstm news.txt
      echo "the function returns nothing" | bnce score runs/relu-lstm --per-word
      bnce score runs/relu-lstm news.txt.gz --mode checked --json
      bnce score runs/relu-lstm news.txt --split --carry text --spell
      bnce score mixture.toml news.txt
    """
    from bnce.corpus.vocabulary import UNK
    from bnce.scoring.layouts import JSON_LINES, get_layout
    from bnce.scoring.scored import Totals
    from bnce.text.sources import named, read_lines, source_bytes

    if as_json and layout == JSON_LINES:
        raise UserError("--json prints the totals and --layout jsonl the sentences: give only one of them.")
    if per_word and as_json:
        raise UserError("--json prints only the totals: use --layout jsonl for the probability of every word.")
    if carry not in (None, "text", "documents"):
        raise unknown_name("value of --carry", carry, ("text", "documents"))
    normalised = is_normalised(mode, "scoring", (*MODES, CHECKED))
    form = get_layout(layout, per_word)
    num_bytes_read = 0

    def advance(num_bytes: int) -> None:
        nonlocal num_bytes_read
        num_bytes_read += num_bytes

    lines = read_lines(text, advance=advance)
    model = open_model(run, device)
    reader = _open_reader(model, normalised, carry is not None, spell, NUM_CHECKED if mode == CHECKED else None)
    cutter = _Cutter(model.normaliser, split)
    totals = Totals()
    num_spelt = 0
    with _shown_reading(text, source_bytes(text)) as show:
        for scored in _score_documents(reader, lines, carry == "documents", cutter):
            totals.add(scored)
            if spell:
                num_spelt += sum(
                    number == UNK and not is_oov for number, is_oov in zip(scored.ids, scored.oov, strict=True)
                )
            if not as_json:
                sys.stdout.write(form.sentence(scored))
            show(num_bytes_read)
    warn_of_tokenised(cutter.signs, named(text))
    check, log_z = reader.check(), None if normalised else model.log_z
    context = {"text": "text", "documents": "document", None: "sentence" if split else "line"}[carry]
    if as_json:
        record = {"run": str(run), "text": text, "mode": mode, "carry": carry is not None, "context": context}
        record |= {"max_context": model.max_context, "num_lines_of_several_sentences": cutter.num_several}
        record |= {"num_lines": cutter.num_lines, "num_lines_changed": cutter.num_changed}
        record |= {"spell": spell, **({"num_spelt": num_spelt} if spell else {})}
        checked = {} if check is None else {"check": dataclasses.asdict(check)}
        print_json({**record, "log_base": 10, "log_z": log_z, **totals.to_dict(), **checked})
        return
    # Of JSON lines there is exactly one per sentence.
    summary = sys.stderr if layout == JSON_LINES else sys.stdout
    summary.write(form.summary(totals, text))
    if spell:
        bits = "undefined" if totals.bits_per_byte is None else f"{totals.bits_per_byte:.5g}"
        summary.write(f"Spelt words:\t{num_spelt}\nBits per byte:\t{bits}\nBytes:\t{totals.num_bytes}\n")
    if check is not None:
        summary.write(
            f"Check:\t{check.num_positions} words, unnormalised - exact ln p: "
            f"mean {check.mean_difference:.4f}, at most {check.max_difference:.4f}; "
            f"ln Z(context) {check.log_z_mean:.4f} ± {check.log_z_std:.4f} (mean ± standard deviation)\n"
        )
    stderr.print(f"log10 probabilities, {_with_what(model, normalised, carry is not None)}.")
    stderr.print(_describe_context(context, model.max_context))
    stderr.print(f"Perplexities are {form.counted_spelt if spell else form.counted}.")
    if spell:
        stderr.print(SPELT)
    if cutter.num_changed:
        share = 100 * totals.num_oov / max(1, totals.num_words)
        stderr.print(
            f"{cutter.num_changed:,} of {cutter.num_lines:,} lines were brought into the form of the training text; "
            f"{totals.num_oov:,} of {totals.num_words:,} words ({share:.2f}%) are unknown to the model."
        )
    if cutter.num_several:
        stderr.print(
            f"{cutter.num_several:,} of {cutter.num_lines:,} lines have several sentences; the training text had </s> "
            "between sentences. --split cuts lines in the same way and gives a lower perplexity."
        )


class _Cutter:
    """Cuts lines into sentences, and notes what may explain their perplexity."""

    def __init__(self, normaliser: Normaliser, split: bool) -> None:
        from bnce.text.tokenised import TokenisedSigns

        self.signs = TokenisedSigns(normaliser)
        self.num_lines = self.num_several = self.num_changed = 0
        self._normaliser, self._split = normaliser, split

    def __call__(self, line: str) -> list[list[str]]:
        """Cut a line as the training text was, or take it as one sentence."""
        given = line.split()
        self.signs.look(line, len(given))
        sentences = self._normaliser(line)
        words = sentences[0] if len(sentences) == 1 else list(itertools.chain.from_iterable(sentences))
        self.num_lines += 1
        self.num_changed += words != given
        if self._split:
            return sentences or [[]]
        self.num_several += len(sentences) > 1
        return [words]


def _score_documents(reader: Reader, lines: Iterable[str], blank_ends: bool, cut: _Cutter) -> Iterator[ScoredSentence]:
    """Score the sentences of documents, each with nothing before it; blank lines end documents, or nothing does."""
    for is_blank, document in itertools.groupby(lines, key=lambda line: blank_ends and not line.strip()):
        if not is_blank:
            reader.begin_document()
            yield from reader.read(itertools.chain.from_iterable(map(cut, document)))


def _open_reader(model: Model, normalised: bool, carry: bool, spell: bool, num_checked: int | None) -> Reader:
    from bnce.scoring.run_model import RunModel

    if num_checked is not None:
        if not isinstance(model, RunModel):
            raise UserError(
                f"--mode checked is for a run, and '{model.name}' is a file: give a run directory, or leave it out."
            )
        return model.reader(carry=carry, spell=spell, num_checked=num_checked)
    if carry and model.kind == "n-gram":
        raise UserError(f"'{model.name}' is an n-gram model, which ignores earlier sentences: leave out --carry.")
    return model.reader(normalised=normalised, carry=carry, spell=spell)


def _describe_context(context: str, num_words: int | None) -> str:
    """Say what a word is predicted from."""
    seen = {
        "line": "the words before it in its line, not from earlier lines (use --carry text for that)",
        "sentence": "the words before it in its sentence, not from earlier sentences (use --carry text for that)",
        "text": "all words before it in the text, across sentences",
        "document": "all words before it in its document, across sentences; a blank line ends a document",
    }[context]
    return f"Each word is predicted from {seen}{'' if num_words is None else f'; from at most {num_words} of them'}."


def _with_what(model: Model, normalised: bool, carry: bool) -> str:
    """Say what probabilities are of."""
    from bnce.scoring.interpolation import components_of
    from bnce.scoring.run_model import RunModel

    if model.kind == "n-gram":
        return "of an n-gram model"
    if model.kind == "run":
        if isinstance(model, RunModel) and model.is_exact:
            return "exactly normalised by the output layer"
        return "with the softmax" if normalised else f"with the constant ln Z = {model.log_z:.3f} ({MAY_EXCEED})"
    how = "the softmax" if normalised else f"the constant Z ({MAY_EXCEED})"
    afresh = "; n-gram models in it ignore earlier sentences" if carry else ""
    return f"of a mixture of {len(components_of(model))}, runs in it with {how}{afresh}"


@contextlib.contextmanager
def _shown_reading(name: str, num_bytes: int) -> Iterator[Callable[[int], object]]:
    """Give what shows how much of a file is read, where a bar would not stand among the results."""
    if not num_bytes or (sys.stdout.isatty() and sys.stderr.isatty()):
        yield lambda num_bytes_read: None
        return
    with shown_progress(f"scoring {name}") as progress:
        shown = 0

        def show(num_bytes_read: int) -> None:
            nonlocal shown
            if num_bytes_read != shown:  # which most sentences of a block do not change
                shown = num_bytes_read
                progress(num_bytes_read, num_bytes)

        yield show
