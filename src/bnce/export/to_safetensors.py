"""A run's model alone, with its tables in as few bits as asked for: a directory that is itself a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bnce import files
from bnce.runs.checkpoint import MODEL_FORMAT, write_tensors
from bnce.runs.directory import MODEL_FILE, Run
from bnce.runs.model_file import RUN_KEY, calibration_of, load_model, read_metadata
from bnce.runs.packed_rows import SCALE_SUFFIX, pack_rows, unpack_rows


def export_rows(run: Run, out: str | Path, row_format: str = "float32") -> dict[str, Any]:
    """Write the run without its states and records; say how many bytes the model takes and what rounding cost."""
    out = Path(out)
    files.refuse_existing(out)
    model = load_model(run)
    tensors, tables = model.state_dict(), model.tables()
    packed = pack_rows(tensors, tables, row_format)
    header = {RUN_KEY: run.digest, **calibration_of(read_metadata(run.path / MODEL_FILE)), "rows": row_format}
    with files.atomic_directory(out) as partial:
        run.copy_description(partial)
        write_tensors(partial / MODEL_FILE, packed, MODEL_FORMAT, header)
    errors = {}
    for name in (name for name in tables if tensors[name].ndim == 2):
        # One table at a time: all of them, unpacked, would be the model once more.
        unpacked = unpack_rows({key: packed[key] for key in (name, name + SCALE_SUFFIX) if key in packed})
        errors[name] = float(unpacked[name].sub_(tensors[name]).abs_().max())
    return {"rows": row_format, "model_bytes": (out / MODEL_FILE).stat().st_size, "max_row_error": errors}
