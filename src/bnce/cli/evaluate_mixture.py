"""What `bnce evaluate` does with a mixture or an n-gram model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnce.cli.conditions import MAY_EXCEED, read_as, warn_of_tokenised
from bnce.cli.console import open_corpus, shown_progress, stdout
from bnce.errors import UserError

if TYPE_CHECKING:
    from bnce.scoring.model import Model


def evaluate_mixture(
    path: Path,
    *,
    split: str | None,
    text: str | None,
    corpus: str | None,
    max_tokens: int,
    errors: str,
    tokenised: bool,
    device: str,
) -> dict[str, Any]:
    """Evaluate the model of a file, and give its figures as JSON has them."""
    from bnce.scoring.interpolation import evaluate_sentences
    from bnce.scoring.loading import load

    model = load(path, device)
    if text is not None:
        name, sentences = text, _sentences_of_text(model, text, errors, tokenised)
    else:
        name, sentences = split or "test", _sentences_of_corpus(model, corpus, split or "test")
    with shown_progress(f"evaluating on {name}") as progress:
        figures = evaluate_sentences(model, _first(sentences, max_tokens), lambda done: progress(done, 0))
    return {"run": str(path), "split" if text is None else "text": name, **figures}


def describe_mixture(record: dict[str, Any], name: str) -> None:
    """Print the figures, and say plainly what is normalised."""
    rate = record["num_oov"] / max(1, record["num_tokens"] - record["num_sentences"])
    parts = record["components"]
    stdout.print(
        f"{name}: {record['num_tokens']:,} tokens, {record['num_sentences']:,} of them </s>, "
        f"{record['num_oov']:,} OOV ({100 * rate:.2f}% of words)"
    )
    is_mixture = len(parts) > 1
    how = "runs with the softmax" if is_mixture else "an n-gram model is normalised by itself"
    stdout.print(f"  PPLf {_number(record['ppl_f'])}  {how}; without OOV {_number(record['ppl_f_no_unk'])}")
    if record["ppl_n"] is not None:
        stdout.print(
            f"  PPLn {_number(record['ppl_n'])}  runs with their constants Z; "
            f"without OOV {_number(record['ppl_n_no_unk'])}"
        )
    for part in parts if is_mixture else []:
        stdout.print(f"  {part['weight']:.4f} × {part['path']}: PPLf {_number(part['ppl_f'])}")
    stdout.print("  perplexities are per token and count </s> and OOV words (as <unk>); every sentence starts afresh")
    if record["vocabularies_differ"]:
        stdout.print(
            "  The models know different words. A word that one of them does not know gets the probability of its "
            "<unk>, which is too high: probabilities sum to more than 1."
        )
    elif is_mixture and not record["has_pieces"]:
        stdout.print("  PPLf: the probabilities of all words sum to 1")
    if is_mixture and record["has_pieces"]:
        stdout.print(
            "  A run over pieces gives the end of a word its probability only with the first piece of the next word: "
            "probabilities of all words sum to more than 1, and PPLf is a little too low."
        )
    if record["ppl_n"] is not None:
        stdout.print(f"  PPLn is {MAY_EXCEED}")


def _sentences_of_text(model: Model, path: str, errors: str, tokenised: bool) -> Iterator[list[str]]:
    """Cut a text into sentences as the training text was."""
    from bnce.text.sources import named, read_lines
    from bnce.text.tokenised import TokenisedSigns

    normaliser = read_as(model.normaliser, tokenised)
    signs = TokenisedSigns(normaliser)
    lines = read_lines(path, errors)

    def cut() -> Iterator[list[str]]:
        for line in lines:
            signs.look(line)
            yield from normaliser(line)
        warn_of_tokenised(signs, named(path))

    return cut()


def _sentences_of_corpus(model: Model, corpus: str | None, split: str) -> Iterator[list[str]]:
    """Spell the sentences of a split: of the corpus that is named, or else of the first run's."""
    import numpy as np

    from bnce.corpus.vocabulary import END
    from bnce.runs.directory import RunDirectory
    from bnce.scoring.interpolation import components_of

    runs = [part for part in components_of(model) if part.kind == "run"]
    if corpus is None and not runs:
        raise UserError(f"'{model.name}' is an n-gram model and has no corpus: give --text FILE or --corpus DIR.")
    source = open_corpus(corpus or RunDirectory.open(runs[0].name).config.corpus)
    for run in runs:
        if run.vocabulary.unit == source.vocabulary.unit:
            RunDirectory.open(run.name).check_vocabulary(source)
    ids = source.split(split)

    def spell() -> Iterator[list[str]]:
        begin = 0
        for end in np.flatnonzero(ids == END).tolist():
            yield source.vocabulary.spell(ids[begin:end].tolist())
            begin = end + 1

    return spell()


def _first(sentences: Iterator[list[str]], max_tokens: int) -> Iterator[list[str]]:
    """Take the sentences that lie whole within the first tokens; 0 is no limit."""
    num_tokens = 0
    for words in sentences:
        num_tokens += len(words) + 1
        if 0 < max_tokens < num_tokens:
            return
        yield words


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.2f}"
