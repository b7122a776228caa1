"""Words per second when given words are scored: by one CPU thread, and by the GPU where there is one.

A model that normalises itself divides by its constant; another has to sum over the vocabulary. That is the price of
normalisation at use time.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bnce.corpus.store import Corpus
from bnce.corpus.vocabulary import END
from bnce.engine.network import Query
from bnce.engine.packer import score
from bnce.engine.torch_network import TorchNetwork
from bnce.language_model import LanguageModel
from bnce.machine.devices import synchronize
from bnce.runs.directory import Run
from bnce.runs.model_file import load_model

MAX_SENTENCES = {"cpu": 128, "cuda": 4096}  # scored side by side
SECONDS = 1.0  # that are measured
SHORT_SECONDS = 0.1  # a batch that takes less is made larger


def measure_scoring(path: Path, corpus: Corpus, device: torch.device) -> dict[str, Any]:
    """Time a run's best model on the corpus's test words (or validation words)."""
    run = Run.open(path)
    split = "test" if "test" in corpus.statistics else "valid"
    words = np.asarray(corpus.split(split)[:200_000], dtype=np.int64)
    sentences = np.split(words, np.flatnonzero(words == END) + 1)
    sentences = [sentence for sentence in sentences if len(sentence)]
    record: dict[str, Any] = {"cpu_threads": 1}
    for kind in dict.fromkeys(("cpu", device.type)):
        place = torch.device("cpu") if kind == "cpu" else device
        model = load_model(run, str(place))
        normalised = not model.output.normalises
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            record[f"{kind}_words_per_second"] = _time(model, sentences, place, normalised)
        finally:
            torch.set_num_threads(num_threads)
        record["normalised_by"] = "sum over the vocabulary" if normalised else "constant or structure"
    return record


def _time(model: LanguageModel, sentences: list[NDArray[np.int64]], device: torch.device, normalised: bool) -> float:
    network, query = TorchNetwork(model), Query(log_z=normalised)
    num_at_once, place, num_words, begin = 8, 0, 0, time.perf_counter()
    score(network, sentences[:2], query)
    synchronize(device)
    begin = time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        if place + num_at_once > len(sentences):
            place = 0
        batch, batch_begin = sentences[place : place + num_at_once], time.perf_counter()
        score(network, batch, query)
        place += num_at_once
        num_words += sum(map(len, batch))
        if time.perf_counter() - batch_begin < SHORT_SECONDS and num_at_once < MAX_SENTENCES[device.type]:
            num_at_once *= 2
            num_words, begin = 0, time.perf_counter()
    return num_words / (time.perf_counter() - begin)
