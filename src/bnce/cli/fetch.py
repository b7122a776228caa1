"""`bnce fetch`: a published corpus brought to this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnce.cli.console import JsonOption, print_json, progress_bar, stderr, stdout
from bnce.cli.options import option


def fetch(
    name: Annotated[str, typer.Argument(metavar="ltcb|obwb|wikitext", help="Corpus to download.")],
    source: Annotated[
        str | None,
        option("URL|FILE", "Mirror to download from, or file to copy.", "--from", show_default="the publisher"),
    ] = None,
    cache: Annotated[Path | None, option("DIR", "Directory for downloads.", show_default="the user's cache")] = None,
    sha256: Annotated[
        str | None, option("SUM", "Expected SHA-256 of the file.", show_default="the published one")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Download a published corpus, check it, and print its path.

    An interrupted download continues where it stopped. A corpus that is already there is only checked.

    \b
    Examples:
      bnce fetch ltcb
      bnce fetch obwb --from https://mirror.example/lm-benchmark/ --cache /data
    """
    from bnce.text.fetch import fetch as fetch_corpus

    with progress_bar("size") as bar:
        task = bar.add_task(name, total=None, size="")

        def progress(done: int, total: int) -> None:
            size = f"{done / 1e6:,.0f}{f' of {total / 1e6:,.0f}' if total else ''} MB"
            bar.update(task, completed=done, total=total or None, size=size)

        fetched = fetch_corpus(name, source, cache, sha256, progress)
    if as_json:
        sizes = {"bytes": fetched.path.stat().st_size, "sha256": fetched.sha256, "checked": fetched.checked}
        print_json({"corpus": name, "path": str(fetched.path), **sizes})
        return
    stdout.print(str(fetched.path))
    if fetched.checked == "nothing":
        stderr.print(
            f"This file has no published checksum, so it was not checked. Its SHA-256 {fetched.sha256} was recorded."
        )
