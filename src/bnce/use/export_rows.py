"""A run's model alone, with its tables in as few bits as asked for: a directory that is itself a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bnce import files
from bnce.checkpoint import MODEL_FILE, MODEL_FORMAT, read_model, write_tensors
from bnce.packed_rows import pack_rows, unpack_rows
from bnce.run_directory import RunDirectory
from bnce.version import __version__


def export_rows(run: RunDirectory, out: Path, row_format: str = "float32") -> dict[str, Any]:
    """Write the run without its states and records; say how many bytes the model takes and what rounding cost."""
    files.refuse_existing(out)
    model = run.load_model()
    tensors, tables = model.state_dict(), model.tables()
    packed = pack_rows(tensors, tables, row_format)
    _, metadata = read_model(run.path / MODEL_FILE)
    header = {
        **{key: value for key, value in metadata.items() if key in ("owner", "step", "vocabulary")},
        "rows": row_format,
        "model": run.config.model.name,
        "log_z": repr(float(model.output.log_z)),
        "bnce": __version__,
    }
    with files.atomic_directory(out) as partial:
        run.copy_description(partial)
        write_tensors(partial / MODEL_FILE, packed, MODEL_FORMAT, header)
    unpacked = unpack_rows(packed)
    return {
        "rows": row_format,
        "model_bytes": (out / MODEL_FILE).stat().st_size,
        "max_row_error": {
            name: float((unpacked[name] - tensors[name]).abs().max()) for name in tables if tensors[name].ndim == 2
        },
    }
