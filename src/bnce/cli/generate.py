"""`bnce generate`: a run in, new sentences out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnce.cli.console import JsonOption, print_json, stdout


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A directory that 'bnce train' made.")],
    prompt: Annotated[str, typer.Option(help="Words to go on from; read as the training text was.")] = "",
    num_texts: Annotated[int, typer.Option("--num", "-n", min=1, max=4096, help="How many texts.")] = 5,
    max_words: Annotated[int, typer.Option(min=1, help="End a text that finds no end itself.")] = 40,
    temperature: Annotated[float, typer.Option(help="Below 1 keeps to likely words; 0 takes the likeliest.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Choose among the k likeliest words; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Choose among the likeliest words that make up this probability.")] = 1.0,
    allow_unknown: Annotated[bool, typer.Option("--allow-unk", help="Let <unk> be chosen.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="The same seed gives the same texts.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Write sentences that a model makes up.

    [bold]Examples[/bold]

      bnce generate runs/relu-lstm

      bnce generate runs/relu-lstm --prompt "the function returns" -n 3 --temperature 0.7
    """
    from bnce.corpus.vocabulary import END
    from bnce.run_directory import RunDirectory, choose_device
    from bnce.use.generate import Sampling
    from bnce.use.generate import generate as continue_text

    sampling = Sampling(temperature, top_k, top_p, allow_unknown)
    opened = RunDirectory.open(run)
    words = [word for sentence in opened.normaliser(prompt) for word in sentence]
    model = opened.load_model(str(choose_device(device)))
    prompt_ids = [int(word) for word in opened.vocabulary.encode(words)]
    texts = continue_text(model, prompt_ids, num_texts, max_words, sampling, seed)
    sentences = []
    for ids in texts:
        ended = bool(ids) and ids[-1] == END
        made = opened.vocabulary.decode(ids[:-1] if ended else ids)
        sentences.append(" ".join([*words, *made]) + ("" if ended else " …"))
    if as_json:
        print_json({"run": str(run), "prompt": prompt, "seed": seed, "texts": sentences})
    else:
        for sentence in sentences:
            stdout.print(sentence, markup=False)
