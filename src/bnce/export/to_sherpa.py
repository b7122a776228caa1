"""A run as sherpa-onnx's RNN language model: the ONNX files, names and metadata that icefall's export has.

Without a state, for a whole hypothesis: `x` (N, L) and `x_lens` (N,), int64, give `nll` (N,), the negative natural
log-likelihood with `</s>`. A self-normalised run reads the rows of these tokens alone. With a state, for decoding token
by token: `x` (N, 1), `h0` and `c0` (layers, N, hidden) give `log_softmax` (N, V), `next_h0` and `next_c0`.

A recogniser numbers its own tokens. Given its tokens.txt, the tables are written in its order.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnce import files
from bnce.corpus.vocabulary import END, UNK, Vocabulary
from bnce.errors import UserError
from bnce.export.agreement import Agreement
from bnce.export.bodies import refuse_unknown_body
from bnce.export.to_onnx import need_packages, open_graph, run_graph
from bnce.language_model import LanguageModel
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import load_model
from bnce.text.sources import read_lines
from bnce.version import __version__

NO_STATE, WITH_STATE = GRAPHS = ("no-state", "with-state")
TOKENS_FILE = "tokens.txt"
# How recognisers call the start and end of a sentence.
_ENDS = ("<sos/eos>", "</s>", "<eos>", "<s>", "<sos>")
_SHAPES = ((3, 5), (1, 1), (2, 9))  # N and L of what is compared


def export_sherpa(run: RunDirectory, out: str | Path, tokens: str | Path | None = None) -> dict[str, Any]:
    """Write both graphs, in float32 and int8, and tokens.txt; give the differences from PyTorch."""
    refuse_unknown_body(run, "sherpa")
    need_packages()
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from bnce.export.sherpa_graphs import write_no_state, write_with_state

    out = Path(out)
    files.refuse_existing(out)
    names, row = _read_tokens(tokens, run.vocabulary)
    model = _reorder(load_model(run), row)
    end = int(np.flatnonzero(row == END)[0])
    body = run.config.model
    about = {
        "model_type": "rnnlm",
        "version": "1",
        "model_author": "bnce",
        "comment": f"bnce {__version__}",
        "sos_id": str(end),
        "eos_id": str(end),
        "vocab_size": str(len(row)),
    }
    state = model.initial_state(1)[0]
    sizes = {"num_layers": state.shape[0], "hidden_size": state.shape[2], "embedding_dim": body.embedding_size}
    with files.atomic_directory(out) as partial, torch.no_grad():
        write_no_state(model, end, partial / f"{NO_STATE}.onnx", about)
        about_state = {**about, **{name: str(size) for name, size in sizes.items()}}
        write_with_state(model, partial / f"{WITH_STATE}.onnx", about_state)
        check = compare(model, end, partial)
        for graph in GRAPHS:
            with _quiet():
                quantize_dynamic(partial / f"{graph}.onnx", partial / f"{graph}.int8.onnx", weight_type=QuantType.QInt8)
        check["int8"] = {graph: _difference(model, end, partial / f"{graph}.int8.onnx") for graph in GRAPHS}
        lines = (f"{name} {number}\n" for number, name in enumerate(names))
        files.write_text(partial / TOKENS_FILE, "".join(lines))
    unknown = int(np.count_nonzero(row == UNK)) - 1
    return {
        **check,
        "vocab_size": len(row),
        "num_unknown_tokens": max(0, unknown),
        "self_normalised": model.output.normalises,
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep ONNX Runtime's advice on quantising from standard error, where the root logger would print it."""
    root, silent, before = logging.getLogger(), logging.NullHandler(), logging.root.manager.disable
    root.addHandler(silent)
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
        root.removeHandler(silent)


def compare(model: LanguageModel, end: int, directory: Path) -> dict[str, Any]:
    """Run both graphs and the model on the same tokens, and refuse what differs."""
    seen = {graph: Agreement(abs(float(model.output.log_z))) for graph in GRAPHS}
    exact = copy.deepcopy(model).double()
    for graph in GRAPHS:
        session = open_graph(directory / f"{graph}.onnx")
        for feed in _feeds(model, graph):
            found = run_graph(session, feed)
            seen[graph].note(found, answer(model, end, graph, feed), answer(exact, end, graph, feed))
        seen[graph].require(f"The ONNX graph '{graph}'", "try another version of onnxruntime")
    return {"max_difference": max(one.difference for one in seen.values())}


def answer(model: LanguageModel, end: int, graph: str, feed: Mapping[str, Tensor]) -> list[Tensor]:
    """Compute with PyTorch what a graph gives."""
    dtype = model.embedding.dtype
    if graph == WITH_STATE:
        hidden_TND, (h, c) = model(feed["x"].t(), (feed["h0"].to(dtype), feed["c0"].to(dtype)))
        return [torch.log_softmax(model.output.all_scores(hidden_TND[0]), 1), h, c]
    found = []
    for text, length in zip(feed["x"], feed["x_lens"].tolist(), strict=True):
        ids = torch.cat([torch.tensor([end]), text[:length], torch.tensor([end])])
        hidden_TND, _ = model(ids[:-1].unsqueeze(1), model.initial_state(1))
        score_TV = model.output.all_scores(hidden_TND[:, 0])
        constant = model.output.log_z if model.output.normalises else torch.logsumexp(score_TV, 1, keepdim=True)
        found.append(-(score_TV - constant).gather(1, ids[1:].unsqueeze(1)).sum())
    return [torch.stack(found)]


def _difference(model: LanguageModel, end: int, path: Path) -> float:
    """Give the mean difference per token of a smaller graph from PyTorch."""
    graph = path.name.split(".")[0]
    session = open_graph(path)
    differences = []
    for feed in _feeds(model, graph):
        found, plain = run_graph(session, feed)[0], answer(model, end, graph, feed)[0]
        per_token = feed["x_lens"] + 1 if graph == NO_STATE else torch.ones(1)
        differences.append(float(((found - plain).abs() / (per_token if found.ndim == 1 else 1)).mean()))
    return float(np.mean(differences))


def _feeds(model: LanguageModel, graph: str) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    feeds = []
    for num, length in _SHAPES:
        x = torch.randint(model.output.vocab_size, (num, length), generator=generator)
        if graph == NO_STATE:
            x_lens = torch.randint(length + 1, (num,), generator=generator)
            x_lens[0] = length
            feeds.append({"x": x, "x_lens": x_lens})
        else:
            shape = model.initial_state(num)[0].shape
            h0, c0 = (torch.rand(shape, generator=generator) - 0.5 for _ in range(2))
            feeds.append({"x": x[:, :1], "h0": h0, "c0": c0})
    return feeds


def _read_tokens(path: str | Path | None, vocabulary: Vocabulary) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Give the tokens in their order, and the row of the run for each; an end of sentence is added if there is none."""
    if path is None:
        return list(vocabulary.words), np.arange(len(vocabulary))
    names = _parse_tokens(path)
    row = np.array([END if name in _ENDS else int(vocabulary.encode([name])[0]) for name in names])
    num_known = int(np.count_nonzero(row > UNK))
    if 2 * num_known < len(names):
        raise UserError(
            f"'{path}' has {len(names)} tokens, but only {num_known} of them are words of this run: train on text that "
            "is cut into the recogniser's tokens, with blanks between them."
        )
    if END not in row:
        names, row = [*names, _ENDS[0]], np.append(row, END)
    return names, row


def _parse_tokens(path: str | Path) -> list[str]:
    found: dict[int, str] = {}
    for line, text in enumerate(read_lines(str(path)), 1):
        name, _, number = text.rpartition(" ")
        if not text.strip():
            continue
        if not name.strip() or not number.isdecimal() or int(number) in found:
            raise UserError(f"'{path}' has {text[:60]!r} on line {line}: give 'token number' lines, each number once.")
        found[int(number)] = name.strip()
    if sorted(found) != list(range(len(found))) or not found:
        raise UserError(f"'{path}' does not number its {len(found)} tokens from 0 without gaps: give a tokens.txt.")
    return [found[number] for number in range(len(found))]


def _reorder(model: LanguageModel, row: Sequence[int] | np.ndarray[Any, Any]) -> LanguageModel:
    """Give the tables the rows of other tokens, in their order."""
    place = torch.from_numpy(np.asarray(row))
    with torch.no_grad():
        for owner, name in ((model, "embedding"), (model.output, "weight"), (model.output, "bias")):
            setattr(owner, name, torch.nn.Parameter(getattr(owner, name)[place], requires_grad=False))
    model.output.vocab_size = len(place)
    return model.eval()
