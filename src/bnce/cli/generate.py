"""`bnce generate`: a run in, new sentences out, or the words that may come next."""

from __future__ import annotations

from typing import Annotated

from bnce.cli.console import JsonOption, open_model, print_json, stderr, stdout
from bnce.cli.options import DeviceOption, ModelArgument, option


def generate(
    run: ModelArgument,
    prompt: Annotated[str, option("TEXT", "Continue this text.", show_default="the start of a sentence")] = "",
    num_texts: Annotated[int, option("N", "Number of texts.", "--num", "-n", min=1, max=4096)] = 5,
    max_words: Annotated[int, option("N", "Stop after N words.", min=1)] = 40,
    temperature: Annotated[
        float, option("T", "Sampling temperature. Below 1 prefers likely words; 0 always takes the most likely word.")
    ] = 0.8,
    top_k: Annotated[int, option("K", "Sample from the K most likely words; 0 for all.")] = 0,
    top_p: Annotated[
        float, option("P", "Sample from the most likely words whose probabilities sum to P (above 0, at most 1).")
    ] = 1.0,
    num_next: Annotated[
        int,
        option("K", "Print the K most likely next words and their probabilities instead of texts.", "--next", min=0),
    ] = 0,
    seed: Annotated[int, option("N", "Random seed. The same seed gives the same texts.", min=0, max=2**64 - 1)] = 1,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Generate text, or list the most likely next words.

    \b
    Examples:
      bnce generate runs/relu-lstm
      bnce generate runs/relu-lstm --prompt "the function returns" -n 3 \\
          --temperature 0.7
      bnce generate runs/relu-lstm --prompt "the function" --next 10
    """
    from bnce.engine.sampling import Sampling

    sampling = Sampling(temperature, top_k, top_p)
    model = open_model(run, device)
    if num_next:
        words = model.next_words(prompt, num_next, mode="normalised")
        if as_json:
            record = {"run": str(run), "prompt": prompt, "mode": "normalised"}
            found = [{"word": one.word, "prob": one.prob, "log_prob": one.log_prob} for one in words]
            print_json({**record, "next": found})
        else:
            how = "of an n-gram model" if model.kind == "n-gram" else "with the exact softmax, not with the constant Z"
            stderr.print(f"Probabilities are {how}.")
            for word in words:
                stdout.print(f"{word.prob:.6f}  {word.word}")
        return
    texts = model.generate(prompt, num_texts, max_words, sampling, seed)
    if as_json:
        print_json({"run": str(run), "prompt": prompt, "seed": seed, "texts": texts})
    else:
        for text in texts:
            stdout.print(text)
