"""`bnce score`: a run and plain text in, log10 probabilities of sentences and words out."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Iterable, Iterator
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
SHORT_BYTES = 2**20  # of a text that is scored before a progress bar would be seen
FILE_HELP = "Text, one sentence per line, or records (.jsonl, .parquet); - for standard input."
SPELT = (
    "A word outside the vocabulary has the probability p(<unk>) times that of its spelling, so every word counts. "
    "Bits per byte are of the text as the model reads it: the UTF-8 bytes of all words, a blank between two words, "
    "and a newline after each sentence."
)
# What a word is predicted from.
CONTEXTS = {
    "line": "the words before it in its line, not from earlier lines (use --carry text for that)",
    "sentence": "the words before it in its sentence, not from earlier sentences (use --carry text for that)",
    "text": "all words before it in the text, across sentences",
    "document": "all words before it in its document, across sentences; a blank line ends a document",
}


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
    from bnce.corpus.cutter import Cutter
    from bnce.corpus.vocabulary import UNK
    from bnce.scoring.results import JSON_LINES, Totals, WordScores, get_layout, kenlm_sums
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
    used = model.choose_mode("unnormalised" if mode == CHECKED else mode)
    check = _Check(model, bool(carry)) if mode == CHECKED else None
    cutter, totals = Cutter(model.normaliser), Totals()
    num_lines = num_changed = num_several = num_spelt = num_bytes_read = 0

    def advance(num_bytes: int) -> None:
        nonlocal num_bytes_read
        num_bytes_read += num_bytes

    def scored() -> Iterator[WordScores | Sums]:
        passages: Iterable[Iterable[str]] = read_passages(text, blank_ends=carry == "documents", advance=advance)
        for passage in passages if carry else [itertools.chain.from_iterable(passages)]:
            blocks = cutter.cut_in_blocks(passage, "split" if split else "one", keep_empty=True)
            if check is not None:
                blocks = check.look_on(blocks)
            if form.sentence or carry or spell:
                yield from model.score_blocks(blocks, mode=used, carry=bool(carry), spell=spell)
            else:  # of an n-gram model sums alone take half the time
                yield from (model.sums(block, mode=used) for block in blocks)

    num_bytes = source_bytes(text)
    # No bar among the results, and none that would be gone before it is seen.
    hides = num_bytes < SHORT_BYTES or (sys.stdout.isatty() and sys.stderr.isatty())
    with contextlib.nullcontext() if hides else shown_progress(f"scoring {text}") as progress:
        for found in scored():
            sums = found.sums() if isinstance(found, WordScores) else found
            tokens = sums.text
            totals.add(sums)
            num_lines += len(tokens.num_sequences_T)
            num_changed, num_several = num_changed + tokens.num_changed, num_several + tokens.num_several
            if spell and isinstance(found, WordScores):
                num_spelt += int(((tokens.ids == UNK) & ~found.oov_N).sum())
            if not as_json and form.sentence is not None and isinstance(found, WordScores):
                sys.stdout.writelines(map(form.sentence, found))
            elif not as_json:
                sys.stdout.write(kenlm_sums(sums))
            if progress is not None:
                progress(num_bytes_read, num_bytes)
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
        told = check.to_dict()
        summary.write(
            f"Check:\t{told['num_positions']} words, unnormalised - exact ln p: "
            f"mean {told['mean_difference']:.4f}, at most {told['max_difference']:.4f}; "
            f"ln Z(context) {told['log_z_mean']:.4f} ± {told['log_z_std']:.4f} (mean ± standard deviation)\n"
        )
    stderr.print(f"log10 probabilities, {_with_what(model, used, bool(carry))}.")
    seen = "" if model.max_context is None else f"; from at most {model.max_context} of them"
    stderr.print(f"Each word is predicted from {CONTEXTS[context]}{seen}.")
    if model.notice is not None:
        stderr.print(model.notice)
    stderr.print(SPELT if spell else f"Perplexities are {form.counted}.")
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


class _Check:
    """Compares the constant with the softmax at the first words: differences of ln p are unnormalised − exact."""

    def __init__(self, model: Model, carry: bool) -> None:
        self.model, self.carry = model, carry
        self.differences: list[float] = []

    def look_on(self, blocks: Iterable[Tokens]) -> Iterator[Tokens]:
        """Give the blocks of a passage, and take words of the first one while more are wanted."""
        for number, tokens in enumerate(blocks):
            left = NUM_CHECKED - len(self.differences)
            if not number and left > 0:
                sample = [tokens.first(1 + int((tokens.num_words_S.cumsum() < left).sum()))]
                (own,) = self.model.score_blocks(sample, mode="unnormalised", carry=self.carry)
                (exact,) = self.model.score_blocks(sample, mode="normalised", carry=self.carry)
                self.differences += (own.log_prob_N - exact.log_prob_N).tolist()
            yield tokens

    def to_dict(self) -> dict[str, Any]:
        """Give how far the constant is from ln Z(context)."""
        import numpy as np

        # Where there is nothing to compare, all are NaN.
        difference_N = np.array(self.differences[:NUM_CHECKED] or [math.nan])
        mean, log_z = float(difference_N.mean()), self.model.log_z or 0.0
        return {
            "num_positions": min(len(self.differences), NUM_CHECKED),
            "log_z": log_z,
            "mean_difference": mean,
            "max_difference": float(np.abs(difference_N).max()),
            "log_z_mean": log_z + mean,
            "log_z_std": float(difference_N.std()),
        }


def _with_what(model: Model, mode: Mode, carry: bool) -> str:
    """Say what probabilities are of."""
    from bnce.scoring.run_model import RunModel

    if model.kind == "n-gram":
        return "of an n-gram model"
    if isinstance(model, RunModel) and model.network.is_exact:
        return "exactly normalised by the output layer"
    constant = "Z" if model.log_z is None else f"ln Z = {model.log_z:.3f}"
    how = "with the softmax" if mode == "normalised" else f"with the constant {constant} ({MAY_EXCEED})"
    afresh = "; n-gram models in it ignore earlier sentences" if carry else ""
    return how if model.kind == "run" else f"of a mixture, runs in it {how}{afresh}"
