"""A run as a directory that the transformers library opens, with its code and tokenizer; it stays a run of ours, too.

Legend: T time steps, B streams, C context words, L = C + T, D last hidden layer, V vocabulary.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from bnce import files
from bnce.corpus.vocabulary import END, UNK
from bnce.export.agreement import Agreement, all_word_scores, refuse_unknown_body, run_in_float64
from bnce.export.word_tokenizer import TOKENIZER_CLASS, TOKENIZER_CONFIG, TOKENIZER_FILE, build_tokenizer
from bnce.language_model import LanguageModel
from bnce.machine.packages import need
from bnce.runs.checkpoint import TRANSFORMERS_FORMAT, write_tensors
from bnce.runs.directory import MODEL_FILE, Run
from bnce.runs.model_file import RUN_KEY, calibration_of, load_model, read_metadata
from bnce.version import __version__

# The modules of this package that the code is made of, which import one another, PyTorch and transformers alone.
_MODULES = ("export.modeling_bnce", "models.body", "models.feedforward", "models.recurrent", "models.transformer")
_NO_KERNELS = '''"""In the place of kernels for training on a GPU, which bnce has: here there are none."""

from torch import Tensor


def usable(tensor: Tensor, *, autocast: bool = False) -> bool:
    """Say that there are no kernels for this tensor."""
    return False
'''
_SPECIAL_IDS = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END}


def export_transformers(run: Run, out: str | Path) -> dict[str, Any]:
    """Write model, code, tokenizer and settings; give the largest difference from PyTorch and what is allowed."""
    refuse_unknown_body(run, "transformers")
    need("transformers", "Export to transformers", "export")
    out = Path(out)
    files.refuse_existing(out)
    model = load_model(run)
    with files.atomic_directory(out) as partial:
        run.copy_description(partial)
        # The library reads only files that carry its own mark; names and tensors are those of a run's model.
        metadata = {"bnce": __version__, RUN_KEY: run.digest, **calibration_of(read_metadata(run.path / MODEL_FILE))}
        write_tensors(partial / MODEL_FILE, model.state_dict(), TRANSFORMERS_FORMAT, metadata)
        write_code(partial)
        files.write_json(partial / "config.json", _config(run, model))
        # As `bnce generate` does, <unk> is not made up.
        files.write_json(partial / "generation_config.json", {**_SPECIAL_IDS, "suppress_tokens": [UNK]})
        # By our own hand: its `save` tells of a full disk in words only.
        tokenizer = build_tokenizer(run.vocabulary, run.normaliser).to_str(pretty=True)
        (partial / TOKENIZER_FILE).write_text(tokenizer, encoding="utf-8")
        files.write_json(partial / "tokenizer_config.json", TOKENIZER_CONFIG)
        return compare(model, partial)


def write_code(directory: Path) -> None:
    """Copy the modules that compute the model into one directory, where they import each other from beside them."""
    for module in _MODULES:
        folder, name = module.split(".")
        code = (Path(__file__).parents[1] / folder / f"{name}.py").read_text(encoding="utf-8")
        code = re.sub(r"from bnce\.models\.(\w+) import", r"from .\1 import", code)
        code = re.sub(r"from bnce\.kernels\S* import", "from .kernels import", code)
        (directory / f"{name}.py").write_text(code, encoding="utf-8")
    (directory / "kernels.py").write_text(_NO_KERNELS, encoding="utf-8")


def compare(model: LanguageModel, directory: Path) -> dict[str, Any]:
    """Open the directory as transformers does and compare its logits with the model's."""
    from bnce.export.modeling_bnce import BnceForCausalLM

    generator = torch.Generator().manual_seed(1)
    words_TB = torch.randint(model.output.vocab_size, (3, 2), generator=generator)
    context_LB = torch.cat([torch.full((model.num_context, 2), END), words_TB])
    with _no_progress():
        opened = BnceForCausalLM.from_pretrained(directory).eval()
    agreement = Agreement(abs(float(model.output.log_z)))
    with torch.no_grad():
        state = model.initial_state(2)
        hidden_TBD, _ = model(context_LB, state)
        exact_TBD, _ = run_in_float64(model, context_LB, state)
        agreement.note(
            [opened(words_TB.t()).logits.transpose(0, 1)],
            all_word_scores(model, hidden_TBD, torch.float32)[:1],
            all_word_scores(model, exact_TBD, torch.float64)[:1],
        )
    agreement.require("The model that transformers opens", "try another version of transformers")
    return {"max_difference": agreement.difference, "tolerance": agreement.tolerance}


@contextlib.contextmanager
def _no_progress() -> Iterator[None]:
    """Keep the library from drawing bars of its own."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _config(run: Run, model: LanguageModel) -> dict[str, Any]:
    sizes = run.config.model
    return {
        "model_type": "bnce",
        "architectures": ["BnceForCausalLM"],
        "auto_map": {
            "AutoConfig": "modeling_bnce.BnceConfig",
            "AutoModelForCausalLM": "modeling_bnce.BnceForCausalLM",
        },
        "vocab_size": len(run.vocabulary),
        "body": sizes.name,
        **msgspec.structs.asdict(sizes),
        "context": model.body.context,
        "log_z": float(model.output.log_z),
        "dtype": "float32",
        "tokenizer_class": TOKENIZER_CLASS,  # older pipelines look for it here
        **_SPECIAL_IDS,
    }
