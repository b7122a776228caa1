"""`bnce doctor`: is everything well here?"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer
from rich.markup import escape

from bnce.cli.console import JsonOption, ThreadsOption, print_json, stdout


def doctor(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Check the losses on one batch against float64, the noise, and the machine; status 1 if something is wrong.

    [bold]Example[/bold]

      bnce doctor --json
    """
    from bnce.doctor import examine
    from bnce.run_directory import choose_device
    from bnce.threads import use_threads

    use_threads(threads)
    findings = examine(choose_device(device))
    well = all(finding.well for finding in findings)
    if as_json:
        print_json({"well": well, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            mark = "[green]well[/green] " if finding.well else "[red]wrong[/red]"
            stdout.print(f"{mark} {finding.name}: {escape(finding.detail)}")
    if not well:
        raise typer.Exit(1)
