"""`bnce score`: a run and plain text in, log10 probabilities of sentences and words out."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce.cli.completion import complete
from bnce.cli.console import JsonOption, open_model, print_json, shown_progress, stderr
from bnce.cli.options import (
    MAY_EXCEED,
    MODE_DEFAULT,
    MODE_HELP,
    MODES,
    DeviceOption,
    ModelArgument,
    choice,
    flag,
    option,
    warn_of_tokenised,
)
from bnce.errors import UserError, unknown_name

if TYPE_CHECKING:
    from bnce.corpus.cutter import Tokens
    from bnce.engine.network import Mode
    from bnce.scoring.model import Model
    from bnce.scoring.results import Sums, WordScores

CHECKED, NUM_CHECKED = "checked", 1000  # a mode, and at how many words it compares
FILE_HELP = "Text, one sentence per line, or records (.jsonl, .parquet); - for standard input."
_CHECKED = ("mean_difference", "max_difference", "log_z_mean", "log_z_std")
SPELT = (
    "A word outside the vocabulary has the probability p(<unk>) times that of its spelling, so every word counts. "
    "Bits per byte are of the text as the model reads it: the UTF-8 bytes of all words, a blank between two words, "
    "and a newline after each sentence."
)


def score(
    run: ModelArgument,
    text: Annotated[str, typer.Argument(metavar="FILE", help=FILE_HELP)] = "-",
    mode: Annotated[
        str | None,
        option(
            "MODE",
            f"{MODE_HELP} {CHECKED}: with the constant Z, compared with the softmax at {NUM_CHECKED:,} words.",
            "--mode",
            autocompletion=complete(*MODES, CHECKED),
            show_default=MODE_DEFAULT,
        ),
    ] = None,
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
    from bnce.scoring.results import JSON_LINES, Totals, get_layout, scored_sentences
    from bnce.text.records import read_passages
    from bnce.text.sources import check_source, named, source_bytes

    if as_json and layout == JSON_LINES:
        raise UserError("--json prints the totals and --layout jsonl the sentences: give only one of them.")
    if per_word and as_json:
        raise UserError("--json prints only the totals: use --layout jsonl for the probability of every word.")
    if carry not in (None, "text", "documents"):
        raise unknown_name("value of --carry", carry, ("text", "documents"))
    if mode is not None and mode not in (*MODES, CHECKED):
        raise unknown_name("mode", mode, (*MODES, CHECKED))
    form = get_layout(layout, per_word)
    check_source(text)
    model = open_model(run, device)
    if carry and model.kind == "n-gram":
        raise UserError(f"'{model.name}' is an n-gram model, which ignores earlier sentences: leave out --carry.")
    if mode == CHECKED and model.kind != "run":
        raise UserError(
            f"--mode checked is for a run, and '{model.name}' is a file: give a run directory, or leave it out."
        )
    scoring = _Scoring(model, model.choose_mode("unnormalised" if mode == CHECKED else mode), bool(carry), spell)
    used, check = scoring.mode, _Check(scoring) if mode == CHECKED else None
    cutter, totals = model.cutter(), Totals()
    num_lines = num_changed = num_several = num_spelt = num_bytes_read = 0

    def advance(num_bytes: int) -> None:
        nonlocal num_bytes_read
        num_bytes_read += num_bytes

    passages: Iterable[Iterable[str]] = read_passages(text, blank_ends=carry == "documents", advance=advance)
    if carry is None:
        passages = [itertools.chain.from_iterable(passages)]
    with _shown_reading(text, source_bytes(text)) as show:
        for passage in passages:
            blocks = cutter.cut_in_blocks(passage, "split" if split else "one", keep_empty=True)
            for number, (tokens, scores, sums) in enumerate(scoring.score(blocks, form.sentence is not None)):
                totals.add(tokens, sums)
                num_lines += len(tokens.num_sequences_T)
                num_changed, num_several = num_changed + tokens.num_changed, num_several + tokens.num_several
                if scores is not None and tokens.ids is not None and spell:
                    num_spelt += int(((tokens.ids == UNK) & ~scores.oov_N).sum())
                if check is not None and not number:
                    check.look(tokens)
                if not as_json and form.sentence is not None and scores is not None:
                    sys.stdout.writelines(map(form.sentence, scored_sentences(tokens, scores)))
                elif not as_json:
                    sys.stdout.write(form.write_sums(sums))
                show(num_bytes_read)
    warn_of_tokenised(cutter.signs, named(text))
    log_z = None if used == "normalised" else model.log_z
    context = {"text": "text", "documents": "document", None: "sentence" if split else "line"}[carry]
    if as_json:
        record = {"run": str(run), "text": text, "mode": used, "carry": carry is not None, "context": context}
        record |= {"max_context": model.max_context, "num_lines_of_several_sentences": num_several}
        record |= {"num_lines": num_lines, "num_lines_changed": num_changed}
        record |= {"spell": spell, **({"num_spelt": num_spelt} if spell else {})}
        checked = {} if check is None else {"check": check.to_dict()}
        print_json({**record, "log_base": 10, "log_z": log_z, **totals.to_dict(), **checked})
        return
    # Of JSON lines there is exactly one per sentence.
    summary = sys.stderr if layout == JSON_LINES else sys.stdout
    summary.write(form.summary(totals, text))
    if spell:
        bits = "undefined" if totals.bits_per_byte is None else f"{totals.bits_per_byte:.5g}"
        summary.write(f"Spelt words:\t{num_spelt}\nBits per byte:\t{bits}\nBytes:\t{totals.num_bytes}\n")
    if check is not None:
        found = check.to_dict()
        summary.write(
            f"Check:\t{found['num_positions']} words, unnormalised - exact ln p: "
            f"mean {found['mean_difference']:.4f}, at most {found['max_difference']:.4f}; "
            f"ln Z(context) {found['log_z_mean']:.4f} ± {found['log_z_std']:.4f} (mean ± standard deviation)\n"
        )
    stderr.print(f"log10 probabilities, {_with_what(scoring)}.")
    stderr.print(_describe_context(context, model.max_context))
    if model.notice is not None:
        stderr.print(model.notice)
    stderr.print(f"Perplexities are {form.counted_spelt if spell else form.counted}.")
    if spell:
        stderr.print(SPELT)
    if num_changed:
        share = 100 * totals.num_oov / max(1, totals.num_words)
        stderr.print(
            f"{num_changed:,} of {num_lines:,} lines were brought into the form of the training text; "
            f"{totals.num_oov:,} of {totals.num_words:,} words ({share:.2f}%) are unknown to the model."
        )
    if num_several:
        stderr.print(
            f"{num_several:,} of {num_lines:,} lines have several sentences; the training text had </s> "
            "between sentences. --split cuts lines in the same way and gives a lower perplexity."
        )


@dataclasses.dataclass(frozen=True)
class _Scoring:
    """How the text is scored."""

    model: Model
    mode: Mode
    carry: bool
    spell: bool

    def score(self, blocks: Iterable[Tokens], per_word: bool) -> Iterator[tuple[Tokens, WordScores | None, Sums]]:
        """Score the blocks of a passage; of an n-gram model sums alone take half the time."""
        if not (per_word or self.carry or self.spell):
            yield from ((tokens, None, self.model.sums(tokens, mode=self.mode)) for tokens in blocks)
            return
        found = self.model.score_blocks(blocks, mode=self.mode, carry=self.carry, spell=self.spell)
        yield from ((tokens, scores, scores.sums()) for tokens, scores in found)


class _Check:
    """Compares the constant with the softmax at the first words: differences of ln p are unnormalised − exact."""

    def __init__(self, scoring: _Scoring) -> None:
        self.scoring = scoring
        self.differences: list[float] = []

    def look(self, tokens: Tokens) -> None:
        """Take words of the first block of a passage, if more are wanted."""
        if len(self.differences) >= NUM_CHECKED:
            return
        model, left = self.scoring.model, NUM_CHECKED - len(self.differences)
        sample = [tokens.first(1 + int((tokens.num_words_S.cumsum() < left).sum()))]
        (own, exact) = (
            next(model.score_blocks(sample, mode=model.choose_mode(mode), carry=self.scoring.carry))[1].log_prob_N
            for mode in MODES
        )
        self.differences += (own - exact).tolist()

    def to_dict(self) -> dict[str, Any]:
        """Give how far the constant is from ln Z(context)."""
        import numpy as np

        difference_N, log_z = np.array(self.differences[:NUM_CHECKED]), self.scoring.model.log_z or 0.0
        if not len(difference_N):
            return {"num_positions": 0, "log_z": log_z, **dict.fromkeys(_CHECKED, math.nan)}
        mean = float(difference_N.mean())
        values = mean, float(np.abs(difference_N).max()), log_z + mean, float(difference_N.std())
        return {"num_positions": len(difference_N), "log_z": log_z, **dict(zip(_CHECKED, values, strict=True))}


def _describe_context(context: str, num_words: int | None) -> str:
    """Say what a word is predicted from."""
    seen = {
        "line": "the words before it in its line, not from earlier lines (use --carry text for that)",
        "sentence": "the words before it in its sentence, not from earlier sentences (use --carry text for that)",
        "text": "all words before it in the text, across sentences",
        "document": "all words before it in its document, across sentences; a blank line ends a document",
    }[context]
    return f"Each word is predicted from {seen}{'' if num_words is None else f'; from at most {num_words} of them'}."


def _with_what(scoring: _Scoring) -> str:
    """Say what probabilities are of."""
    from bnce.scoring.run_model import RunModel

    model, normalised = scoring.model, scoring.mode == "normalised"
    if model.kind == "n-gram":
        return "of an n-gram model"
    if isinstance(model, RunModel):
        if model.network.is_exact:
            return "exactly normalised by the output layer"
        return "with the softmax" if normalised else f"with the constant ln Z = {model.log_z:.3f} ({MAY_EXCEED})"
    from bnce.scoring.interpolation import components_of

    how = "the softmax" if normalised else f"the constant Z ({MAY_EXCEED})"
    afresh = "; n-gram models in it ignore earlier sentences" if scoring.carry else ""
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
