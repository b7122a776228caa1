"""`bnce doctor`: is the installation, or the directory of a corpus or a run, in order?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from bnce.cli.console import JsonOption, ThreadsOption, print_json, stdout
from bnce.cli.options import DeviceOption

if TYPE_CHECKING:
    from bnce.measure.finding import Finding


def doctor(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="CORPUS|RUN",
            help="Check the files of this corpus, run or exported run (ONNX).",
            show_default="check the installation",
        ),
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Check the installation, or the files of a corpus or run.

    Without an argument: compare the losses with their equations in float64, and check the noise and the machine. With
    a corpus, a run or an exported run: read every file and compare it with its hash or checksum. This finds files that
    were damaged on disk or while copying. The exit status is 1 if something is wrong.

    \b
    Examples:
      bnce doctor --json
      bnce doctor corpora/wiki
      bnce doctor runs/relu-lstm
      bnce doctor exported/onnx
    """
    if directory is None:
        from bnce.machine.devices import choose_device
        from bnce.machine.threads import use_threads
        from bnce.measure.doctor import examine

        use_threads(threads)
        findings, about, verdict = examine(choose_device(device)), {}, ""
    else:
        from bnce.measure.integrity import examine_directory

        kind, findings = examine_directory(directory)
        about, verdict = {"path": str(directory), "kind": kind}, _verdict(kind, directory, findings)
    well = all(finding.well for finding in findings)
    if as_json:
        print_json({**about, "well": well, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            mark = "[green]ok[/green]   " if finding.well else "[red]wrong[/red]"
            stdout.print(f"{mark} {escape(finding.name)}: {escape(finding.detail)}", markup=True)
        if verdict:
            stdout.print(verdict)
    if not well:
        raise typer.Exit(1)


def _verdict(kind: str, directory: Path, findings: list[Finding]) -> str:
    wrong = [finding.name for finding in findings if not finding.well]
    if not wrong:
        return f"The {kind} '{directory}' is complete and undamaged."
    again = {"corpus": "prepare the corpus", "run": "train the run", "exported run": "export the run"}[kind]
    return f"The {kind} '{directory}' is damaged: {', '.join(wrong)}. Restore the damaged files, or {again} again."
