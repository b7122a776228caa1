"""`bnce calibrate`: a run and a text in, the run with its constant Z fitted to that text out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bnce.cli.console import JsonOption, print_json, shown_progress, stderr, stdout
from bnce.cli.options import DeviceOption, RunArgument, choice, flag, option

if TYPE_CHECKING:
    from bnce.editing.calibrate import Calibration, Quality


def calibrate(
    run: RunArgument,
    out: Annotated[Path, option("DIR", "Run directory to create.")],
    text: Annotated[
        list[str] | None,
        option(
            "FILE",
            "Calibrate on this text file. May be given several times.",
            show_default="the validation split of the corpus",
        ),
    ] = None,
    kind: Annotated[
        str,
        choice(
            "constant|head",
            "constant: one ln Z for all contexts. head: ln Z as a linear function of the last hidden layer.",
        ),
    ] = "constant",
    by_sentence: Annotated[
        bool,
        flag("--by-sentence", "Start every sentence without context, as score and rescore do."),
    ] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Fit the constant Z of a run to a text, after training.

    Unnormalised probabilities use a constant Z in place of the softmax sum. Z may be wrong for text of another kind.
    This command computes the exact ln Z at a sample of words and refits the constant. With --kind head it fits a head,
    a small layer that predicts ln Z from the context. Probabilities with the full softmax stay the same. The command
    prints PPLn (the perplexity with the constant Z) and PPLf (with the full softmax) before and after, on a quarter of
    the sample that the fit has not seen. A run that was trained with softmax can be scored unnormalised afterwards.

    \b
    Examples:
      bnce calibrate runs/relu-lstm --text books.txt --out runs/books
      bnce calibrate runs/relu-lstm --text books.txt --text mail.txt \\
          --kind head --out runs/head
      bnce calibrate runs/relu-lstm --text said.txt --by-sentence --out runs/asr
      bnce calibrate runs/relu-lstm --out runs/refitted --json
    """
    from bnce.editing.calibrate import calibrate as fit
    from bnce.machine.threads import use_threads

    use_threads()
    with shown_progress("computing ln Z") as progress:
        result = fit(
            run,
            text=text or None,
            kind=kind,
            out=out,
            by_sentence=by_sentence,
            device=device,
            progress=progress,
            notice=lambda sentence: stderr.print(f"Warning: {sentence}"),
        )
    if as_json:
        print_json({"run": str(run), "out": str(out), **result.to_dict()})
        return
    _print(result, out)


def _print(result: Calibration, out: Path) -> None:
    how = ", every sentence without context" if result.by_sentence else ""
    fitted = "a head and a constant" if result.kind == "head" else "the constant"
    stdout.print(f"{out}: {fitted}, fitted to {result.num_positions:,} words of {', '.join(result.texts)}{how}")
    before = "none" if result.log_z_before is None else f"{result.log_z_before:.3f}"
    left = ", the mean of ln Z(context) minus the prediction of the head" if result.kind == "head" else ""
    stdout.print(
        f"  ln Z = {result.log_z:.3f}{left} (before: {before}), standard error {result.log_z_error:.3f}: "
        f"PPLn on this text is known to about {100 * math.expm1(min(result.log_z_error, 700.0)):.1f}%"
    )
    stdout.print(f"  on {result.num_held_out:,} words that the fit did not use:")
    for name, quality in (("before", result.before), ("after", result.after)):
        stdout.print(f"    {name:7}{_describe(quality)}")
    factor = math.exp(min(result.after.difference_std, 700.0))
    stdout.print(
        f"  unnormalised probabilities are typically off by a factor of {factor:.2f}, exp of the last standard "
        "deviation"
    )


def _describe(quality: Quality) -> str:
    ppl_n = "none" if quality.ppl_n is None else f"{quality.ppl_n:.2f}"
    return (
        f"PPLf {quality.ppl_f:.2f}  PPLn {ppl_n}  ln Z(context) − its replacement: "
        f"{quality.difference_mean:+.3f} ± {quality.difference_std:.3f} (mean ± standard deviation)"
    )
