"""What ends a command before its time, as one sentence: bad input, a machine that cannot, or an error in bnce."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback

from bnce.cli.streams import STANDARD_OUTPUT, drop_stdout
from bnce.errors import DivergedError, UserError, full_memory

BAD_INPUT = 2  # also what the machine cannot do, such as writing to a full disk
UNEXPECTED = 1
DIVERGED = 1  # the input was good, and what came of it is not
DEBUG = "BNCE_DEBUG"

_ADVICE = {
    errno.ENOENT: "check the path",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EISDIR: "give the name of a file",
    errno.ENOTDIR: "check the path",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit (ulimit -f)",
    errno.EMFILE: "raise the limit (ulimit -n)",
    errno.EIO: "the disk or the device may be broken",
}
# What PyTorch and NumPy say, which have no exceptions of their own for it.
_TOO_LARGE = re.compile(
    r"overflow|is too big|too large to convert|cannot be converted to type|negative dimension|Maximum allowed "
    r"dimension|exceeds the limit",
    re.IGNORECASE,
)
_NO_THREADS = re.compile(r"can't start new thread|unable to start|Resource temporarily unavailable")
_MAX_WORD = 200  # letters of a word, such as a path, that are printed


def fail(error: Exception) -> int:
    """Print why a command ended, and return its status."""
    if isinstance(error, OSError) and error.filename == STANDARD_OUTPUT:
        drop_stdout()
    if isinstance(error, BrokenPipeError) and error.filename in (None, STANDARD_OUTPUT):
        return UNEXPECTED  # a reader that had enough, such as head, wants no sentence
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        traceback.print_exception(error, file=sys.stderr)
    sentence = explain(error)
    if sentence is not None:
        sys.stderr.write(f"bnce: {_one_line(sentence)}\n")
        return DIVERGED if isinstance(error, DivergedError) else BAD_INPUT
    text = _one_line(_first_line(str(error)))
    name = type(error).__name__ + (f" ({text})" if text else "")
    sys.stderr.write(
        f"bnce: Unexpected error, {name}: run the command again with {DEBUG}=1 to see where "
        "it comes from, and report it.\n"
    )
    return UNEXPECTED


def explain(error: Exception) -> str | None:
    """Say what happened and what to do, or nothing of an error that nobody foresaw."""
    if isinstance(error, UserError):
        return str(error)
    text = str(error)
    if (place := full_memory(error)) is not None:
        asked = re.search(r"tried to allocate (\d+) bytes", text)
        size = f" ({int(asked[1]) / 2**30:,.1f} GiB more were requested)" if asked else ""
        return f"The {place} is full{size}: give smaller sizes or less text, or close other programs."
    if isinstance(error, OSError):
        return _explain_system(error)
    if isinstance(error, RuntimeError) and _NO_THREADS.search(text):
        return "No more threads can be started: close other programs, or raise the limit (ulimit -u)."
    if isinstance(error, RecursionError):
        return "A file is nested too deeply: check the input files."
    if isinstance(error, OverflowError) or (
        isinstance(error, RuntimeError | ValueError | TypeError) and _TOO_LARGE.search(text)
    ):
        return f"A number or a size is too large ({_first_line(text)}): give a smaller one."
    return None


def _explain_system(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename == STANDARD_OUTPUT:
        if error.errno == errno.EBADF:
            return (
                "Standard output is closed, so what the command prints is lost; files that it writes are not. Redirect "
                "standard output to a file, or to /dev/null."
            )
        return f"Cannot write to standard output ({reason}): redirect it to another place."
    what = "a file" if error.filename is None else f"'{_as_text(error.filename)}'"
    return f"Cannot read or write {what} ({reason}): {_ADVICE.get(error.errno or 0, 'check the path and the disk')}."


def _as_text(name: object) -> str:
    return os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else str(name)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "").rstrip(".")


def _one_line(sentence: str) -> str:
    """Keep a sentence to a line that a terminal can show, whatever the paths and texts that it quotes hold."""
    shown = re.sub(
        r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", lambda found: found[0].encode("unicode_escape").decode(), sentence
    )
    return re.sub(rf"\S{{{_MAX_WORD},}}", lambda found: f"{found[0][:60]}…{found[0][-60:]}", shown)
