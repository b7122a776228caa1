"""A run as ONNX: graphs, their weights and the words, checked in onnxruntime before anyone sees them.

Legend: T time steps, B streams, C context words, L = C + T, K chosen words, D last hidden layer, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bnce import files
from bnce.corpus.vocabulary import END, UNK
from bnce.export.agreement import Agreement, all_word_scores, refuse_unknown_body, run_in_float64
from bnce.language_model import LanguageModel
from bnce.machine.packages import need
from bnce.runs.directory import Run
from bnce.runs.model_file import load_model
from bnce.version import __version__

GRAPHS = ("body", "words", "all_words")
FORMAT = 5
_CHUNKS = ((5, 3), (1, 1), (9, 2))  # T and B of the chunks that are compared
_NUM_WORDS = 7


def export_onnx(run: Run, out: str | Path) -> dict[str, Any]:
    """Write the graphs, their weights and what describes them; give the largest difference from PyTorch."""
    refuse_unknown_body(run, "onnx")
    for package in ("onnx", "onnxruntime"):
        need(package, "Export to ONNX", "export")
    from bnce.export.onnx_graphs import state_sizes, write_graphs

    out = Path(out)
    files.refuse_existing(out)
    model = load_model(run)
    with files.atomic_directory(out) as partial, torch.no_grad():
        write_graphs(model, partial)
        sizes = state_sizes(model)
        run.vocabulary.write(partial / "vocab.txt")
        check = compare(model, partial, sizes)
        record = {
            "format": FORMAT,
            "bnce": __version__,
            "model": run.config.model.name,
            "loss": run.config.loss.name,
            "vocab_size": len(run.vocabulary),
            "hidden_size": model.output.hidden_size,
            "num_context": model.num_context,
            "state": sizes,
            "log_z": float(model.output.log_z),
            "self_normalised": model.output.normalises,
            "end_id": END,
            "unk_id": UNK,
            "normaliser": run.normaliser.to_dict(),
            "check": check,
        }
        files.write_manifest(partial, "model.json", record, sorted(path.name for path in partial.iterdir()))
    return check


def compare(model: LanguageModel, directory: Path, state_names: Iterable[str]) -> dict[str, Any]:
    """Run the graphs and the model on the same chunks, each graph on what the model feeds it, and refuse what differs.

    What is allowed is measured: a few times the error that PyTorch's own float32 has against float64.
    """
    generator = torch.Generator().manual_seed(1)
    sessions = {name: open_graph(directory / f"{name}.onnx") for name in GRAPHS}
    seen = {name: Agreement(0.0 if name == "body" else abs(float(model.output.log_z))) for name in GRAPHS}
    for num_steps, num_streams in _CHUNKS:
        before_LB = _random_words(model, generator, model.num_context + 2 + model.body.context // 2, num_streams)
        input_LB = _random_words(model, generator, model.num_context + num_steps, num_streams)
        _, state = model(before_LB, model.initial_state(num_streams))
        hidden_TBD, after = model(input_LB, state)
        exact_TBD, exact_after = run_in_float64(model, input_LB, state)
        parts = dict(zip(state_names, state, strict=True))
        found = run_graph(sessions["body"], {"input_ids": input_LB, **parts})
        seen["body"].note(found, (hidden_TBD, *after), (exact_TBD, *exact_after))

        few_1BD = hidden_TBD[:1]  # a row of V scores each: some are enough
        plain, exact = (all_word_scores(model, few_1BD, dtype) for dtype in (torch.float32, torch.float64))
        seen["all_words"].note(run_graph(sessions["all_words"], {"hidden": few_1BD}), plain, exact)
        words_1BK = _random_words(model, generator, 1, num_streams, _NUM_WORDS)
        found = run_graph(sessions["words"], {"hidden": few_1BD, "words": words_1BK})
        seen["words"].note(found, [plain[0].gather(2, words_1BK)], [exact[0].gather(2, words_1BK)])
    for name, agreement in seen.items():
        agreement.require(f"The ONNX graph '{name}'", "try another version of onnxruntime")
    graphs = {name: {"max_difference": one.difference, "tolerance": one.tolerance} for name, one in seen.items()}
    return {"max_difference": max(one.difference for one in seen.values()), "graphs": graphs}


def open_graph(path: Path) -> Any:
    """Open a graph in onnxruntime, on a CPU."""
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def run_graph(session: Any, feed: Mapping[str, Tensor]) -> list[Tensor]:
    """Run a graph on tensors and give all of its outputs, in their order."""
    arrays = {name: tensor.numpy() for name, tensor in feed.items()}
    return [torch.from_numpy(array) for array in session.run(None, arrays)]


def _random_words(model: LanguageModel, generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(model.output.vocab_size, shape, generator=generator)
