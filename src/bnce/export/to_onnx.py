"""A run as ONNX: three graphs, their weights and the words, checked in onnxruntime before anyone sees them.

Legend: T time steps, B streams, C context words, L = C + T, K chosen words, D last hidden layer, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnce import files
from bnce.corpus.vocabulary import END, UNK
from bnce.export.agreement import Agreement, all_word_scores, word_scores
from bnce.export.bodies import refuse_unknown_body
from bnce.language_model import LanguageModel
from bnce.machine.packages import missing
from bnce.models import State
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import load_model
from bnce.version import __version__

GRAPHS = ("body", "words", "all_words")
METADATA_FILE = "model.json"
_CHUNKS = ((5, 3), (1, 1), (9, 2))  # T and B of the chunks that are compared
_NUM_WORDS = 7


def export_onnx(run: RunDirectory, out: str | Path) -> dict[str, Any]:
    """Write the graphs, vocab.txt and model.json; give the largest difference from PyTorch and what is allowed.

    Beside vocab.txt of a run over pieces stands pieces.json, which says how words are cut.
    """
    refuse_unknown_body(run, "onnx")
    _need_packages()
    from bnce.export.onnx_graphs import state_names, write_graphs

    out = Path(out)
    files.refuse_existing(out)
    model = load_model(run)
    with files.atomic_directory(out) as partial, torch.no_grad():
        write_graphs(model, partial)
        run.vocabulary.write(partial / "vocab.txt")
        check = compare(model, partial)
        record = {
            "bnce": __version__,
            "model": run.config.model.name,
            "unit": run.vocabulary.unit,
            "vocab_size": len(run.vocabulary),
            "hidden_size": model.output.hidden_size,
            "num_context": model.num_context,
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
        }
        files.write_text(partial / METADATA_FILE, files.to_json(record, indent=2) + "\n")
    return check


def compare(model: LanguageModel, directory: Path) -> dict[str, Any]:
    """Run the graphs and the model on the same chunks, each graph on what the model feeds it, and refuse what differs.

    What is allowed is measured: a few times the error that PyTorch's own float32 has against float64.
    """
    generator = torch.Generator().manual_seed(1)
    sessions = {name: open_graph(directory / f"{name}.onnx") for name in GRAPHS}
    log_z = abs(float(model.output.log_z))
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


def _random_state(model: LanguageModel, generator: torch.Generator, num_streams: int) -> State:
    """Make a state: any numbers for a recurrent layer; where words are counted, that after some words."""
    start = model.initial_state(num_streams)
    if not model.body.context:
        return tuple(torch.rand(part.shape, generator=generator) - 0.5 for part in start)
    state: State = model(_random_words(model, generator, 2 + model.body.context // 2, num_streams), start)[1]
    return state


def _random_words(model: LanguageModel, generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(model.output.vocab_size, shape, generator=generator)


def _need_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing(str(error.name), "Export to ONNX", "export") from error
