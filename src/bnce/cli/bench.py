"""`bnce bench`: the speed of every loss and model on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce.cli.completion import complete_recipe
from bnce.cli.console import JsonOption, ThreadsOption, print_json, shown_progress, stdout
from bnce.cli.options import (
    DeviceOption,
    SettingsOption,
    names_option,
    option,
    split_names,
    split_numbers,
    warn_of_unused,
)
from bnce.errors import UserError, unknown_name
from bnce.kinds.bodies import BODIES
from bnce.kinds.losses import LOSSES

if TYPE_CHECKING:
    import torch

# At a larger vocabulary a step of softmax takes seconds on a CPU, and its logits gigabytes.
MAX_SOFTMAX_WORDS = 100_000
MAX_WORDS = 100_000_000


def bench(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="Recipe or TOML file with the model sizes.", autocompletion=complete_recipe
        ),
    ] = "demo",
    models: Annotated[str, names_option("Models, separated by commas, or all", BODIES.names)] = "relu-lstm",
    losses: Annotated[str, names_option("Losses, separated by commas, or all", LOSSES.names)] = "all",
    vocab_sizes: Annotated[str, option("N,...", "Vocabulary sizes in words, separated by commas.")] = "20000,800000",
    settings: SettingsOption = None,
    rounds: Annotated[int, option("N", "Number of measurements; their median is printed.", min=1, max=1000)] = 5,
    seconds: Annotated[float, option("S", "Seconds per measurement.", min=0.01, max=600)] = 0.5,
    suite: Annotated[
        str | None, option("paper", "Measure all rows of the paper's two tables instead. Needs a GPU.")
    ] = None,
    out: Annotated[
        Path | None, option("DIR", "With --suite: write paper.json and paper.md to DIR.", "--out", "-o")
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure training speed in words per second.

    By default every loss is measured with vocabularies of 20,000 and 800,000 words; softmax and self-normalised-softmax
    are left out above 100,000 words. The suite of the paper takes about two minutes and 25 GiB of GPU memory on one
    H200.

    \b
    Examples:
      bnce bench
      bnce bench --models all --losses softmax,bnce --vocab-sizes 20000
      bnce bench ltcb --losses bnce --vocab-sizes 80000 --json
      bnce bench --suite paper --out benchmarks/results/h200
    """
    from bnce.machine.devices import choose_device
    from bnce.machine.threads import use_threads
    from bnce.measure.bench import bench as measure
    from bnce.recipes.recipe import load_recipe

    use_threads(threads)
    if suite is not None:
        if settings:
            raise UserError("The paper suite measures the paper's own settings: leave out --set or --suite.")
        _paper_suite(suite, out, choose_device(device), rounds, seconds, as_json)
        return
    if out is not None:
        raise UserError("--out works only with --suite paper: leave it out, or use --json for the figures.")
    sizes = _sizes(vocab_sizes)
    wanted_models, wanted_losses = split_names(models, "model", BODIES.names), split_names(losses, "loss", LOSSES.names)
    configs = [
        (load_recipe(recipe, model=model, loss=loss, settings=settings or []), size)
        for model in wanted_models
        for size in sizes
        for loss in wanted_losses
        if not LOSSES.find(loss).scores_all_words or size <= MAX_SOFTMAX_WORDS
    ]
    if not configs:
        raise UserError(
            f"Nothing is left to measure: losses that score all words are measured only up to "
            f"{MAX_SOFTMAX_WORDS:,} words, and --vocab-sizes is "
            f"{vocab_sizes}. Give a smaller vocabulary or another loss."
        )
    warn_of_unused(settings, wanted_models)
    chosen = choose_device(device)
    with shown_progress("timing training steps") as progress:
        result = measure(configs, chosen, num_rounds=rounds, round_seconds=seconds, progress=progress)
    result = {"recipe": recipe, **result}
    if as_json:
        print_json(result)
    else:
        _print_table(result)


def _paper_suite(
    suite: str, out: Path | None, device: torch.device, rounds: int, seconds: float, as_json: bool
) -> None:
    from bnce import files
    from bnce.measure.paper import bench_paper, to_markdown

    if suite != "paper":
        raise unknown_name("suite", suite, ("paper",))
    if device.type != "cuda":
        raise UserError("The paper suite trains models of up to 1.6 billion parameters: it needs a CUDA GPU.")
    if out is not None:  # before the minutes that the figures take
        files.make_directory(out)
    with shown_progress("timing the paper's models") as progress:
        result = bench_paper(device, num_rounds=rounds, round_seconds=seconds, progress=progress)
    if out is not None:
        files.write_json(out / "paper.json", result, indent=1)
        files.write_text(out / "paper.md", to_markdown(result))
    if as_json:
        print_json(result)
    else:
        stdout.print(to_markdown(result))


def _sizes(text: str) -> list[int]:
    sizes = split_numbers(text, "--vocab-sizes")
    for size in sizes:
        if size < 3:
            raise UserError(f"--vocab-sizes received {size}: a vocabulary has at least 3 words.")
        if size > MAX_WORDS:
            raise UserError(f"--vocab-sizes received {size}: a vocabulary has at most {MAX_WORDS:,} words here.")
    return sizes


def _print_table(result: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = f"Training speed on {result['device']}, torch {result['torch']}, recipe {result['recipe']}"
    # So narrow that all columns fit into 80 characters: a name or number cut in half would mislead.
    table = Table(title=title, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    measured = result["measurements"]
    draws, ceiling = any(item["num_noise"] for item in measured), result["matmul_teraflops"]
    for name in ("model", "loss", *(["K"] if draws else []), "V", "B × T"):
        table.add_column(name, no_wrap=True)
    for name in ("words/s", "±", "ms/step", "×softmax", *([] if ceiling is None else ["matmul"])):
        table.add_column(name, justify="right", no_wrap=True)
    for item in measured:
        ratio = item["speedup_over_softmax"]
        table.add_row(
            item["model"],
            item["loss"] if item["softmax"] in (None, "fused") else f"{item['loss']}, {item['softmax']}",
            *([str(item["num_noise"])] if draws else []),
            f"{item['vocab_size']:,}",
            f"{item['batch_size']} × {item['num_steps']}",
            f"{item['words_per_second']:,.0f}",
            f"{100 * item['spread']:.0f}%",
            f"{1000 * item['step_seconds']:.1f}",
            "—" if ratio is None else f"{ratio:.1f}",
            *([] if ceiling is None else [f"{100 * item['matmul_share']:.0f}%"]),
        )
    stdout.print(table)
    stdout.print(
        f"Median of {result['num_rounds']} rounds of {result['round_seconds']:g} s, ± half their range; a step is "
        "body, loss, backward, clip and update; words are drawn from Zipf's law."
    )
    if ceiling is not None:
        stdout.print(
            f"matmul: the matrix products of a step, as a share of the {ceiling:.0f} TFLOP/s that one large bf16 "
            "product reaches here."
        )
