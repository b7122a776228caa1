"""A corpus and runs small enough for tests: words by chance, and networks of a few units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from making import loss_of, model_of, optimiser_of
from safetensors.torch import load_file

from bnce import Corpus, Model, Normaliser, load, noise
from bnce.corpus.manifest import SplitStatistics, count_lengths
from bnce.corpus.spelling import SPELLING_FILE, SpellingModel
from bnce.corpus.store import VOCABULARY_FILE, IdsFile, ids_dtype, write_description
from bnce.corpus.vocabulary import Vocabulary
from bnce.language_model import LanguageModel
from bnce.runs.directory import Run
from bnce.runs.model_file import load_model, save_weights
from bnce.settings import RunConfig, TrainingConfig

VOCAB_SIZE = 30
# What every vocabulary begins with.
SPECIALS = ("</s>", "<unk>")
END, UNK = 0, 1
WORDS = [*SPECIALS, *(f"w{number}" for number in range(len(SPECIALS), VOCAB_SIZE))]
AT_BLANKS = Normaliser(False, "whitespace", "lines")


def random_ids(num_tokens: int, vocab_size: int = VOCAB_SIZE, seed: int = 1) -> np.ndarray:
    """Draw ids by Zipf's law, but every other time, by a coin, the follower of the word before: something to learn."""
    generator = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, vocab_size + 1)
    ids = generator.choice(vocab_size, size=num_tokens, p=weights / weights.sum())
    for place in np.flatnonzero(generator.random(num_tokens) < 0.5):
        ids[place] = (7 * ids[place - 1] + 3) % vocab_size
    return ids


def write_ids(directory: Path, name: str, ids: np.ndarray, vocab_size: int) -> str:
    """Write the ids of a split and give the hash of the file."""
    file = IdsFile(directory, name, vocab_size)
    file.append(ids.astype(ids_dtype(vocab_size)))
    return file.finish()


def write_corpus(
    directory: Path, splits: Mapping[str, np.ndarray], vocab_size: int = VOCAB_SIZE, *, spells: bool = True
) -> Corpus:
    """Write ids as the corpus directory they would have come from, with a spelling model or without one."""
    directory.mkdir(parents=True)
    words = [*SPECIALS, *(f"w{number}" for number in range(len(SPECIALS), vocab_size))]
    num_bytes_V = np.array([0, *(len(word) + 1 for word in words[1:])])
    statistics, hashes = {}, {}
    for name, ids in splits.items():
        lengths = count_lengths(np.flatnonzero(ids == END)).tolist()
        counted = int(np.sum(ids == END)), 1, int(np.sum(ids == UNK))
        statistics[name] = SplitStatistics(len(ids), *counted, tuple(lengths), int(num_bytes_V[ids].sum()))
        hashes[name] = write_ids(directory, name, ids, vocab_size)
    counts = np.bincount(splits["train"], minlength=vocab_size)
    vocabulary = Vocabulary(words)
    vocabulary.write(directory / VOCABULARY_FILE)
    if spells:
        SpellingModel.train(["zebra", "yak", "w100"]).leaving_out(words).write(directory / SPELLING_FILE)
    write_description(directory, vocabulary, AT_BLANKS, counts, statistics, hashes, num_types=len(words) - 2)
    return Corpus.open(directory)


def small_corpus(directory: Path, num_train: int = 2003) -> Corpus:
    """Write three splits of random ids."""
    sizes = {"train": num_train, "valid": 301, "test": 257}
    return write_corpus(directory, {name: random_ids(size, seed=size) for name, size in sizes.items()})


def small_config(corpus: Corpus | None = None, **sections: Mapping[str, Any]) -> RunConfig:
    """Make settings for a run of a second; `sections` change single ones."""
    settings: dict[str, dict[str, Any]] = {
        "model": {"name": "relu-lstm", "embedding_size": 6, "hidden_size": 8, "bottleneck_size": 7, "order": 3},
        "loss": {"name": "bnce"},
        "optimiser": {"name": "rowwise", "gradient": "tokens", "schedule": "linear", "learning_rate": 0.1},
        "training": {"batch_size": 8, "num_steps": 5, "epochs": 2},
    }
    kinds = {"model": model_of, "loss": loss_of, "optimiser": optimiser_of, "training": TrainingConfig}
    made: dict[str, Any] = {key: kind(**{**settings[key], **sections.get(key, {})}) for key, kind in kinds.items()}
    return RunConfig(recipe="small", corpus="" if corpus is None else str(corpus.directory), **made)


def small_model(name: str = "lstm", loss: str = "bnce", vocab_size: int = VOCAB_SIZE, **model: Any) -> LanguageModel:
    """Make a model off its start: wider weights give contexts that differ, and a log Z that is not 9."""
    torch.manual_seed(3)
    config = small_config(model={"name": name, **model}, loss={"name": loss})
    counts = np.bincount(random_ids(5000, vocab_size), minlength=vocab_size)
    network = LanguageModel(config.model, config.loss, noise.unigram(counts))
    with torch.no_grad():
        network.embedding.normal_()
        network.output.weight.normal_()
        for parameter in network.body.parameters():
            if parameter.ndim == 2 and not parameter.any():  # a layer that adds nothing would hide what is before it
                parameter.normal_(std=0.1)
    return network


def small_run(
    directory: Path,
    name: str = "lstm",
    loss: str = "bnce",
    *,
    words: Sequence[str] = WORDS,
    normaliser: Normaliser = AT_BLANKS,
    spelt: Sequence[str] = ("zebra", "yak"),
    **model: Any,
) -> Path:
    """Write the run directory of a `small_model`, whose spelling model has learnt the words `spelt`."""
    directory.mkdir(parents=True)
    config = small_config(model={"name": name, **model}, loss={"name": loss})
    counts = np.arange(len(words))[::-1].copy()
    if spelt:
        SpellingModel.train(spelt).leaving_out(words).write(directory / SPELLING_FILE)
    run = Run.lay_out(directory, config, Vocabulary(words), normaliser, counts, texts={})
    save_weights(run, small_model(name, loss, len(words), **model).state_dict(), step=1)
    return directory


def open_small_run(
    name: str = "lstm",
    loss: str = "bnce",
    *,
    words: Sequence[str] = WORDS,
    normaliser: Normaliser = AT_BLANKS,
    spelt: Sequence[str] = ("zebra", "yak"),
    **model: Any,
) -> Model:
    """Open such a run, of which only the open model is kept."""
    with TemporaryDirectory() as directory:
        run = small_run(Path(directory) / "run", name, loss, words=words, normaliser=normaliser, spelt=spelt, **model)
        return load(run)


def change_weights(run: Path, change: Callable[[dict[str, torch.Tensor]], object] = lambda tensors: None) -> None:
    """Change the tensors of a run's model, and write them as those of the files that are beside them now."""
    path = run / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    path.unlink()
    save_weights(Run.open(run), tensors, step=1)


def trained_model(run: Path) -> LanguageModel:
    """Open the best model of a run."""
    return load_model(Run.open(run)).eval()


class Watcher:
    """An observer that remembers what it hears."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.seconds_left: list[float | None] = []
        self.records: list[dict[str, Any]] = []
        self.sentences: list[str] = []
        self.evaluations: list[tuple[str, int, int]] = []

    def advanced(self, *, tokens: int, words_per_second: float, loss: float, seconds_left: float | None) -> None:
        self.tokens.append(tokens)
        self.seconds_left.append(seconds_left)

    def evaluating(self, split: str, num_done: int, num_tokens: int) -> None:
        self.evaluations.append((split, num_done, num_tokens))

    def evaluated(self, record: dict[str, Any]) -> None:
        self.records.append(record)

    def noticed(self, sentence: str) -> None:
        self.sentences.append(sentence)
