"""A run as ONNX: graphs, their weights and the words, checked in onnxruntime before anyone sees them.

Legend: T time steps, B streams, C context words, L = C + T, K chosen words, D last hidden layer, V vocabulary.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnce import files
from bnce.corpus.spelling import SPELLING_FILE
from bnce.corpus.vocabulary import END, UNK
from bnce.corpus.word_index import INDEX_FILE, VOCABULARY_FILE, write_index
from bnce.errors import unknown_name
from bnce.export.agreement import Agreement, all_word_scores, word_scores
from bnce.export.bodies import refuse_unknown_body
from bnce.export.export_record import write_record
from bnce.export.to_safetensors import largest_error
from bnce.language_model import LanguageModel
from bnce.machine.packages import need
from bnce.models.body import Body, State
from bnce.models.recurrent import Recurrent
from bnce.runs.directory import Run
from bnce.runs.model_file import load_model
from bnce.runs.packed_rows import pack_rows, unpack_rows
from bnce.version import __version__

GRAPHS = ("body", "words", "all_words")
OF_RECURRENT = ("enter", "step")
ROW_FORMATS = ("float32", "float16", "int8")
_CHUNKS = ((5, 3), (1, 1), (9, 2))  # T and B of the chunks that are compared
_NUM_WORDS = 7


def export_onnx(run: Run, out: str | Path, row_format: str = "float32") -> dict[str, Any]:
    """Write the graphs and what `bnce.load` needs beside them; give the largest difference from PyTorch.

    Tables are stored as `row_format` says, and the graphs are compared with PyTorch on the rounded tables.
    """
    refuse_unknown_body(run, "onnx")
    if row_format not in ROW_FORMATS:
        raise unknown_name("row format of ONNX", row_format, ROW_FORMATS)
    for package in ("onnx", "onnxruntime"):
        need(package, "Export to ONNX", "export")
    from bnce.export.onnx_graphs import state_names, write_graphs

    out = Path(out)
    files.refuse_existing(out)
    model = load_model(run)
    tensors, tables = model.state_dict(), model.tables()
    packed = pack_rows(tensors, tables, row_format)
    errors = {name: largest_error(name, tensors, packed) for name in tables if tensors[name].ndim == 2}
    model.load_state_dict(unpack_rows(packed))
    with files.atomic_directory(out) as partial, torch.no_grad():
        places = write_graphs(model, partial, packed)
        _write_words(run, partial)
        check = compare(model, partial)
        record = {
            "bnce": __version__,
            "model": run.config.model.name,
            "loss": run.config.loss.name,
            "rows": row_format,
            "vocab_size": len(run.vocabulary),
            "hidden_size": model.output.hidden_size,
            "num_context": model.num_context,
            "num_words_seen": model.body.num_words,
            "state": {
                name: [part.shape[0], "B", *part.shape[2:]]
                for name, part in zip(state_names(model), model.initial_state(1), strict=True)
            },
            "log_z": float(model.output.log_z),
            "self_normalised": model.output.normalises,
            "end_id": END,
            "unk_id": UNK,
            "normaliser": run.normaliser.to_dict(),
            "check": check,
            "weights": places,
        }
        write_record(partial, record)
    return {**check, "rows": row_format, "max_row_error": errors}


def _write_words(run: Run, directory: Path) -> None:
    """Write the vocabulary with its index, and copy what a run may have beside it."""
    run.vocabulary.write(directory / VOCABULARY_FILE)
    write_index(run.vocabulary.words, directory / INDEX_FILE)
    for name in ("counts.npy", SPELLING_FILE):
        if (run.path / name).is_file():
            shutil.copyfile(run.path / name, directory / name)


def compare(model: LanguageModel, directory: Path) -> dict[str, Any]:
    """Run the graphs and the model on the same chunks, each graph on what the model feeds it, and refuse what differs.

    What is allowed is measured: a few times the error that PyTorch's own float32 has against float64.
    """
    generator = torch.Generator().manual_seed(1)
    sessions = {name: open_graph(directory / f"{name}.onnx") for name in GRAPHS}
    log_z = abs(float(model.output.log_z))
    names = OF_RECURRENT if isinstance(model.body, Recurrent) else ()
    by_step = [open_graph(directory / f"{name}.onnx") for name in names]
    seen = {"body": Agreement(0.0), "words": Agreement(log_z), "all_words": Agreement(log_z)}
    exact_body = copy.deepcopy(model.body).double()
    for num_steps, num_streams in _CHUNKS:
        input_LB = _random_words(model, generator, model.num_context + num_steps, num_streams)
        words_TBK = _random_words(model, generator, num_steps, num_streams, _NUM_WORDS)
        state = _random_state(model, generator, num_streams)
        hidden_TBD, after = model(input_LB, state)
        exact_TBD, exact_after = exact_body(model.embedding[input_LB].double(), tuple(part.double() for part in state))
        found = run_body(sessions["body"], input_LB, state)
        seen["body"].note(found, (hidden_TBD, *after), (exact_TBD, *exact_after))

        if by_step:
            found = _run_step(by_step[0], by_step[1], input_LB[0], state)
            hidden_BD, after = model.body.branch(*_pairs(model, input_LB[0], state, model.body))
            exact_BD, exact_after = exact_body.branch(*_pairs(model, input_LB[0], state, exact_body))
            seen["body"].note(found, (hidden_BD, *after), (exact_BD, *exact_after))

        feed = {"hidden": hidden_TBD, "words": words_TBK}
        plain_TBK = model.output.log_probs(hidden_TBD, words_TBK, normalised=False)
        seen["words"].note(run_graph(sessions["words"], feed), [plain_TBK], [word_scores(model, **feed)])

        few_TBD = hidden_TBD[:1]  # a row of V scores each: some are enough
        found = run_graph(sessions["all_words"], {"hidden": few_TBD})
        seen["all_words"].note(
            found, all_word_scores(model, few_TBD, torch.float32), all_word_scores(model, few_TBD, torch.float64)
        )
    for name, agreement in seen.items():
        agreement.require(f"The ONNX graph '{name}'", "try another version of onnxruntime")
    return {
        "max_difference": max(agreement.difference for agreement in seen.values()),
        "graphs": {
            name: {"max_difference": agreement.difference, "tolerance": agreement.tolerance}
            for name, agreement in seen.items()
        },
    }


def open_graph(path: Path) -> Any:
    """Open a graph in onnxruntime, on a CPU."""
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def run_body(session: Any, input_LB: Tensor, state: State) -> list[Tensor]:
    """Run the body graph: the last hidden layer, then the parts of the state after it."""
    names = (each.name for each in session.get_inputs())
    return run_graph(session, dict(zip(names, (input_LB, *state), strict=True)))


def run_graph(session: Any, feed: Mapping[str, Tensor]) -> list[Tensor]:
    """Run a graph on tensors and give all of its outputs, in their order."""
    arrays = {name: tensor.numpy() for name, tensor in feed.items()}
    return [torch.from_numpy(np.asarray(array)) for array in session.run(None, arrays)]


def _run_step(enter: Any, step: Any, word_B: Tensor, state: State) -> list[Tensor]:
    word_W, place_B = torch.unique(word_B, return_inverse=True)
    (entered_WG,) = run_graph(enter, {"words": word_W})
    given = (entered_WG, place_B, torch.arange(len(word_B)), *state)
    return run_graph(step, dict(zip((each.name for each in step.get_inputs()), given, strict=True)))


def _pairs(model: LanguageModel, word_B: Tensor, state: State, body: Body) -> tuple[Any, ...]:
    """Make what one step into pairs of words and states takes: here every state goes on by one word."""
    word_W, place_B = torch.unique(word_B, return_inverse=True)
    dtype = next(body.parameters()).dtype
    entered_WG = body.prepare_words(model.embedding[word_W].to(dtype))
    return entered_WG, place_B, tuple(part.to(dtype) for part in state), torch.arange(len(word_B))


def _random_state(model: LanguageModel, generator: torch.Generator, num_streams: int) -> State:
    """Make a state: any numbers for a recurrent layer; where words are counted, that after some words."""
    start = model.initial_state(num_streams)
    if not model.body.context:
        return tuple(torch.rand(part.shape, generator=generator) - 0.5 for part in start)
    state: State = model(_random_words(model, generator, 2 + model.body.context // 2, num_streams), start)[1]
    return state


def _random_words(model: LanguageModel, generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(model.output.vocab_size, shape, generator=generator)
