"""`bnce export`: a run in, a directory that other programs open out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bnce.cli.completion import complete
from bnce.cli.console import JsonOption, print_json, stdout
from bnce.cli.options import RunArgument, option
from bnce.errors import UserError, unknown_name

if TYPE_CHECKING:
    from bnce.runs.directory import Run

TARGETS = ("onnx", "transformers", "safetensors")


def export(
    run: RunArgument,
    to: Annotated[str, option("FORMAT", f"Target format: {', '.join(TARGETS)}.", autocompletion=complete(*TARGETS))],
    out: Annotated[Path, option("DIR", "Directory to create.")],
    rows: Annotated[
        str | None,
        option(
            "TYPE",
            "With --to safetensors: number format of the word tables, float32, float16, bf16 or int8.",
            show_default="float32",
            autocompletion=complete("float32", "float16", "bf16", "int8"),
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Export the best model of a run for other programs.

    Formats: onnx (graphs for ONNX Runtime, also in a browser), transformers (Hugging Face), safetensors (a smaller run
    directory). The results of onnx and transformers are compared with PyTorch's.

    \b
    Examples:
      bnce export runs/relu-lstm --to onnx --out exported/onnx
      bnce export runs/relu-lstm --to transformers --out exported/transformers
      bnce export runs/relu-lstm --to safetensors --rows int8 \\
          --out exported/int8
    """
    from bnce.machine.threads import use_threads
    from bnce.runs.directory import Run

    if to not in TARGETS:
        raise unknown_name("export format", to, TARGETS)
    if rows is not None and to != "safetensors":
        raise UserError(f"--rows is for --to safetensors: {to} has float32 rows; leave it out.")
    use_threads()
    result = _write(Run.open(run), to, out, rows or "float32")
    num_bytes = sum(file.stat().st_size for file in out.iterdir())
    record = {"run": str(run), "to": to, "out": str(out), "num_bytes": num_bytes, **result}
    if as_json:
        print_json(record)
        return
    stdout.print(f"{out}: {num_bytes / 1e6:,.1f} MB")
    if "max_row_error" in result:
        worst = max(result["max_row_error"].values())
        rounding = f"rounded by at most {worst:.3g}" if worst else "not rounded"
        stdout.print(f"  rows are {result['rows']}, {rounding}; the directory is itself a run")
    else:
        stdout.print(f"  largest difference of an output from PyTorch's: {result['max_difference']:.3g}")


def _write(run: Run, to: str, out: Path, rows: str) -> dict[str, Any]:
    if to == "onnx":
        from bnce.export.to_onnx import export_onnx

        return export_onnx(run, out)
    if to == "transformers":
        from bnce.export.to_transformers import export_transformers

        return export_transformers(run, out)
    from bnce.export.to_safetensors import export_rows

    return export_rows(run, out, rows)
