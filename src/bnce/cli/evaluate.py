"""`bnce evaluate`: a run and a text in, perplexities out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bnce import files
from bnce.cli.console import JsonOption, open_corpus, open_model, print_json, shown_progress, stderr, stdout
from bnce.cli.options import (
    MAY_EXCEED,
    DeviceOption,
    TrainedModelArgument,
    choice,
    flag,
    option,
    warn_of_tokenised,
)
from bnce.errors import UserError, counted

if TYPE_CHECKING:
    from rich.table import Table

    from bnce.corpus.cutter import Tokens
    from bnce.scoring.model import Model

BLOCK_SENTENCES = 2**14  # of a corpus, in memory at a time


def evaluate(
    run: TrainedModelArgument,
    split: Annotated[
        str | None, choice("train|valid|test", "Split of the corpus to evaluate on.", show_default="test")
    ] = None,
    text: Annotated[str | None, option("FILE", "Evaluate on this text file instead of a split.")] = None,
    corpus: Annotated[str | None, option("DIR", "Another corpus with the same vocabulary.")] = None,
    max_words: Annotated[int, option("N", "Evaluate on the first N words, </s> counted; 0 for all.", min=0)] = 0,
    in_context_only: Annotated[
        bool, flag("--in-context-only", "Skip the sentence-by-sentence figures, which double the time.")
    ] = False,
    detail: Annotated[
        bool, flag("--detail", "Also print perplexity by word frequency and position, and the worst sentences.")
    ] = False,
    save: Annotated[
        bool, flag("--save", "Write the figures to RUN/evaluation.json, where 'bnce compare' reads them.")
    ] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure the perplexity of a run, or of a mixture.

    A run is measured in two ways. In context: a word is predicted from the words before it, also from earlier
    sentences. Sentence by sentence: every sentence starts without context, as in 'bnce score' and 'bnce rescore'. Do
    not compare figures of one way with those of the other. A mixture is measured sentence by sentence only.

    PPLf is the perplexity with the full softmax. PPLn is the perplexity with the constant Z in place of the softmax
    sum; a model trained with softmax, or another loss without a constant, has no PPLn. The command also prints ln
    Z(context), the logarithm of the exact softmax sum, and the number of unknown words.

    \b
    Examples:
      bnce evaluate runs/relu-lstm
      bnce evaluate runs/relu-lstm --split valid --json
      bnce evaluate runs/relu-lstm --text news.txt.gz --detail
      bnce evaluate mixture.toml --text news.txt.gz
    """
    from bnce.runs.texts import check_one_text, open_corpus_of

    check_one_text(split=split, text=text, corpus=corpus)
    name = text or split or "test"
    about: dict[str, Any] = {"run": str(run), "split" if text is None else "text": name}
    if run.is_file():
        if detail or save or in_context_only:
            raise UserError(
                f"--detail, --save and --in-context-only are for a run, and '{run}' is a file: leave them out."
            )
        from bnce.scoring.interpolation import evaluate_any

        model = open_model(run, device)
        texts = _read_corpus(model, corpus, name) if text is None else _read_text(model, text)
        with shown_progress(f"evaluating on {name}") as progress:
            first = _first(texts, max_words)
            record = {**about, **evaluate_any(model, first, lambda done: progress(done, 0))}
        if as_json:
            print_json(record)
        else:
            describe(record, name)
        if model.notice is not None:
            stderr.print(model.notice)
        return
    from bnce.api import evaluate as measure
    from bnce.evaluation.breakdown import without_detail
    from bnce.machine.threads import use_threads
    from bnce.runs.directory import Run

    use_threads()
    opened = Run.open(run)
    with shown_progress(f"evaluating on {name}") as progress:
        result = measure(
            opened,
            split=split,
            text=text,
            corpus=None if text is not None else open_corpus_of(opened.path, opened.config, corpus, open_corpus),
            max_words=max_words,
            by_sentence=not in_context_only,
            device=device,
            progress=progress,
            notice=lambda sentence: stderr.print(f"Warning: {sentence}"),
        )
    figures = result.to_dict()
    if save:
        # A comparison sets figures on different texts apart by their split.
        measured = {"split": name if text is None else Path(text).name, **figures}
        files.write_json(opened.path / "evaluation.json", measured)
    record = {**about, **figures}
    if as_json:
        print_json(record if detail else without_detail(record))
    else:
        describe(record, name)
        if detail:
            describe_detail(record["detail"])


def describe(record: Mapping[str, Any], name: str) -> None:
    """Print an evaluation with its units and conditions; only that of a mixture or an n-gram model has components."""
    parts = record.get("components", ())
    unknown = "OOV" if parts else "<unk>"
    rate = record["num_oov"] / max(1, record["num_tokens"] - record["num_sentences"])
    stdout.print(
        f"{name}: {counted(record['num_tokens'], 'token')}, {record['num_sentences']:,} of them </s>, "
        f"{record['num_oov']:,} {unknown} ({100 * rate:.2f}% of words)"
    )
    has_constant = record["ppl_n"] is not None
    is_exact = has_constant and record["log_z"] == record["log_z_mean"] == record["log_z_std"] == 0
    normalised = "exactly normalised by the output layer" if is_exact else "with the softmax"
    constant = "runs with their constants Z" if parts else f"with the constant ln Z = {_number(record['log_z'], 3)}"
    if parts:
        normalised = "runs with the softmax" if len(parts) > 1 else "an n-gram model is normalised by itself"
    for key, title, how in (("n", "PPLn", constant), ("f", "PPLn = PPLf" if is_exact else "PPLf", normalised)):
        if key == "f" or (has_constant and not is_exact):
            stdout.print(
                f"  {title} {_number(record[f'ppl_{key}'], 2)}  {how}; without {unknown} "
                f"{_number(record[f'ppl_{key}_no_unk'], 2)}; log10 total {_number(record[f'log10_prob_{key}'], 1)}"
            )
    if not is_exact and not parts:
        stdout.print(f"  {_ln_z(record)} (mean ± standard deviation)")
    if record.get("bits_per_byte") is not None:
        without = ", without the cost of spelling <unk>" if record["num_oov"] else ""
        stdout.print(
            f"  {record['bits_per_byte']:.4f} bits per byte, {normalised}, over {record['num_bytes']:,} bytes of words "
            f"and blanks{without}"
        )
    stdout.print(f"  perplexities are per token and count </s> and {'OOV words (as <unk>)' if parts else '<unk>'}")
    if parts:
        _describe_mixture(record)
    else:
        _describe_contexts(record, is_exact)
    if has_constant and not is_exact:
        stdout.print(f"  PPLn is {MAY_EXCEED}")


def _describe_mixture(record: Mapping[str, Any]) -> None:
    """Print the components, and say plainly what is normalised."""
    parts = record["components"] if len(record["components"]) > 1 else ()
    stdout.print("  every sentence starts without context")
    for part in parts:
        stdout.print(f"  {part['weight']:.4f} × {part['path']}: PPLf {_number(part['ppl_f'], 2)}")
    if record["vocabularies_differ"]:
        stdout.print(
            "  The models know different words. A word that one of them does not know gets the probability of its "
            "<unk>, which is too high: probabilities sum to more than 1."
        )
    elif parts:
        stdout.print("  PPLf: the probabilities of all words sum to 1")


def _describe_contexts(record: Mapping[str, Any], is_exact: bool) -> None:
    """Say what a word is predicted from, and print the second figures so that they are not taken for the first."""
    least, most = record["min_context"], record["max_context"]
    start = "" if least == most else " (from all of them at the start of the text)"
    span = f"{most}" if least == most else f"{least} to {most}"
    stdout.print(f"  each word is predicted from the {span} words before it, across sentences{start}")
    if (own := record.get("by_sentence")) is None:
        return
    figures = [f"{'PPLn = ' if is_exact else ''}PPLf {_number(own['ppl_f'], 2)}"]
    if not is_exact:
        constant = [] if own["ppl_n"] is None else [f"PPLn {_number(own['ppl_n'], 2)}"]
        figures = [*constant, *figures, _ln_z(own)]
    every = "every sentence starts without context; the others are in context"
    stdout.print(f"  sentence by sentence: {', '.join(figures)}; {every}")


def _ln_z(record: Mapping[str, Any]) -> str:
    return f"ln Z(context) {_number(record['log_z_mean'], 3)} ± {_number(record['log_z_std'], 3)}"


def _number(value: float | None, num_digits: int) -> str:
    """Write a figure; read back from a file, one that is not finite is None."""
    return "undefined" if value is None or math.isnan(value) else f"{value:.{num_digits}f}"


def describe_detail(detail: Mapping[str, Any]) -> None:
    """Print where the text is hard: two tables, then the worst sentences with every word's loss."""
    for key, heading in (("by_frequency", "rank in training text"), ("by_position", "position in sentence")):
        stdout.print(_group_table(detail[key], heading))
    for sentence in detail["worst_sentences"]:
        words = (f"{word} {loss:.1f}" for word, loss in zip(sentence["words"], sentence["losses_nats"], strict=True))
        rest = " · …" if len(sentence["words"]) < sentence["num_tokens"] else ""
        stdout.print(f"  {sentence['mean_loss_nats']:.2f}  {' · '.join(words)}{rest}")
    if detail["worst_sentences"]:
        stdout.print("  the worst sentences: mean loss, then every word with its loss (nats, with the softmax)")


def _group_table(groups: list[Mapping[str, Any]], heading: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    constant = any(group["ppl_n"] is not None for group in groups)
    for column in (heading, "tokens", *(("PPLn",) if constant else ()), "PPLf"):
        table.add_column(column, justify="right" if column != heading else "left", no_wrap=True)
    for group in groups:
        perplexities = [group["ppl_n"], group["ppl_f"]] if constant else [group["ppl_f"]]
        table.add_row(group["name"], f"{group['num_tokens']:,}", *(f"{value:,.1f}" for value in perplexities))
    return table


def _read_text(model: Model, path: str) -> Iterator[Tokens]:
    """Cut a text into sentences as the training text was."""
    from bnce.corpus.cutter import Cutter
    from bnce.text.sources import named

    cutter = Cutter(model.normaliser)
    yield from cutter.cut_file(path)
    warn_of_tokenised(cutter.signs, named(path))


def _read_corpus(model: Model, corpus: str | None, split: str) -> Iterator[Tokens]:
    """Spell the sentences of a split: of the corpus that is named, or else of the first run's."""
    import numpy as np

    from bnce.corpus.cutter import Tokens
    from bnce.corpus.vocabulary import END
    from bnce.runs.directory import Run
    from bnce.runs.texts import open_corpus_of
    from bnce.scoring.interpolation import components_of

    runs = [part for part in components_of(model) if part.kind == "run"]
    if corpus is None and not runs:
        raise UserError(f"'{model.name}' is an n-gram model and has no corpus: give --text FILE or --corpus DIR.")
    opened = [Run.open(run.name) for run in runs]
    source = (
        open_corpus_of(opened[0].path, opened[0].config, corpus, open_corpus) if opened else open_corpus(str(corpus))
    )
    for run in opened:
        run.check_words(source)
    ids = source.split(split)
    ends = np.flatnonzero(ids == END) + 1
    # Whole sentences, many at once; what follows the last `</s>` is none.
    for begin in range(0, len(ends), BLOCK_SENTENCES):
        last, own = int(ends[begin - 1]) if begin else 0, ends[begin : begin + BLOCK_SENTENCES]
        words = source.vocabulary.decode(ids[last : own[-1]].tolist())
        yield Tokens(words, np.diff(own, prepend=last))


def _first(texts: Iterable[Tokens], max_words: int) -> Iterator[Tokens]:
    """Take the sentences that lie whole within the first words; 0 is no limit."""
    left = max_words or math.inf
    for tokens in texts:
        num_whole = int((tokens.num_words_S.cumsum() <= left).sum())
        yield tokens.first(num_whole)
        left -= len(tokens.words)
        if left <= 0:
            return
