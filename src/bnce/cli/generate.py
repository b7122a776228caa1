"""`bnce generate`: a run in, new sentences out, or the words that may come next."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from bnce.cli.console import JsonOption, ThreadsOption, print_json, stdout


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, a mixture (.toml), or an n-gram model (ARPA).")],
    prompt: Annotated[str, typer.Option(help="Words to go on from; read as the training text was.")] = "",
    num_texts: Annotated[int, typer.Option("--num", "-n", min=1, max=4096, help="How many texts.")] = 5,
    max_words: Annotated[int, typer.Option(min=1, help="End a text that finds no end itself.")] = 40,
    temperature: Annotated[float, typer.Option(help="Below 1 keeps to likely words; 0 takes the likeliest.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Choose among the k likeliest words; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Choose among the likeliest words that make up this probability.")] = 1.0,
    allow_unknown: Annotated[bool, typer.Option("--allow-unk", help="Let <unk> be chosen.")] = False,
    num_next: Annotated[
        int,
        typer.Option("--next", min=0, metavar="K", help="Print the K likeliest next words with their probabilities."),
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="The same seed gives the same texts.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Write sentences that a model makes up, or the likeliest next words.

    [bold]Examples[/bold]

      bnce generate runs/relu-lstm

      bnce generate runs/relu-lstm --prompt "the function returns" -n 3 --temperature 0.7

      bnce generate runs/relu-lstm --prompt "the function" --next 10
    """
    from bnce.threads import use_threads
    from bnce.use.generate import Sampling
    from bnce.use.loading import load

    sampling = Sampling(temperature, top_k, top_p, allow_unknown)
    use_threads(threads)
    model = load(run, device)
    if num_next:
        words = model.next_words(prompt, num_next)
        if as_json:
            record = {"run": str(run), "prompt": prompt, "next": [dataclasses.asdict(word) for word in words]}
            print_json(record)
        else:
            for word in words:
                stdout.print(f"{word.prob:.6f}  {word.word}", markup=False)
        return
    texts = model.generate(prompt, num_texts, max_words, sampling, seed)
    if as_json:
        print_json({"run": str(run), "prompt": prompt, "seed": seed, "texts": texts})
    else:
        for text in texts:
            stdout.print(text, markup=False)
