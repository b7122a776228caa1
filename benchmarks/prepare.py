"""How fast and in how much memory `bnce prepare` works, beside plain Python on the same text.

    python benchmarks/prepare.py TEXT                  # TEXT: a plain or packed text file, cut into words first
    python benchmarks/prepare.py --memory              # 4 GB of generated text, the memory of all processes

Every round runs the baseline and the ways of preparing one after the other, so that whatever else the machine
does falls on all of them; what is compared are medians. CPU seconds are those of all processes together.
"""

from __future__ import annotations

import argparse
import array
import collections
import html
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.compute

from bnce.text.normalise import Normaliser
from bnce.text.sources import read_documents

WHITESPACE = ("--tokens", "whitespace", "--sentences", "lines", "--cased")
VOCAB_SIZE = 80_000
NUM_TYPES = 800_000
WORDS_PER_LINE, LINES_PER_DOCUMENT = 25, 40
SAMPLES_PER_SECOND = 5


def plain_python(text: Path, out: Path) -> None:
    """Count words, take the most frequent, encode: what one writes without a toolkit."""
    counts: collections.Counter[str] = collections.Counter()
    with open(text, encoding="utf-8") as file:
        for line in file:
            counts.update(line.split())
    ids = {word: number for number, (word, _) in enumerate(counts.most_common(VOCAB_SIZE - 2), start=2)}
    encoded = array.array("i")
    with open(text, encoding="utf-8") as file:
        for line in file:
            if words := line.split():
                encoded.extend([ids.get(word, 1) for word in words])
                encoded.append(0)
    np.save(out, np.frombuffer(encoded, dtype=np.int32))


def normalise(text: Path, out: Path) -> None:
    """Write text with its words apart, a sentence a line and a blank line between documents."""
    normaliser = Normaliser(lowercase=False)
    with open(out, "w", encoding="utf-8") as file:
        for document in read_documents(str(text)):
            sentences = (line.split() for line in normaliser.spaced("\n".join(document)).split("\n"))
            file.writelines(" ".join(words) + "\n" for words in sentences if words)
            file.write("\n")


def write_dump(text: Path, out: Path) -> None:
    """Write text as a Wikipedia dump, an article a page, for the reader of LTCB."""
    with open(out, "w", encoding="utf-8") as file:
        file.write('<mediawiki xml:lang="en">\n')
        for number, document in enumerate(read_documents(str(text))):
            title, body = html.escape(document[0], quote=False), html.escape("\n\n".join(document), quote=False)
            file.write(
                f"  <page>\n    <title>{title}</title>\n    <id>{number}</id>\n    <revision>\n"
                f'      <text xml:space="preserve">{body}</text>\n    </revision>\n  </page>\n'
            )
        file.write("</mediawiki>\n")


def compare(text: Path, rounds: int) -> None:
    """Time the baseline and the ways of preparing in turn, and print medians and ratios."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        plain, spaced, dump, out = place / "plain.txt", place / "spaced.txt", place / "dump.xml", place / "out"
        with open(plain, "w", encoding="utf-8") as file:
            file.writelines("\n".join(document) + "\n\n" for document in read_documents(str(text)))
        normalise(plain, spaced)
        write_dump(plain, dump)
        print(f"{plain.stat().st_size:,} bytes as they are, {spaced.stat().st_size:,} cut into words")
        commands = {
            "plain Python, text already cut into words": [
                sys.executable,
                __file__,
                "--plain-python",
                str(spaced),
                str(out),
            ],
            "bnce prepare, text already cut into words": prepare_command(spaced, out, *WHITESPACE),
            "bnce prepare, full normalisation": prepare_command(plain, out, "--cased"),
            "bnce prepare ltcb, the text as a Wikipedia dump": prepare_command("ltcb", out, str(dump)),
        }
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for what, command in commands.items():
                seconds[what].append(timed(command))
                shutil.rmtree(out, ignore_errors=True)
                out.with_name("out.npy").unlink(missing_ok=True)
    print("| what | wall s (median, min–max) | CPU s (median) | wall ratio, median of rounds (min–max) | CPU ratio |")
    print("|---|---|---|---|---|")
    baseline = next(iter(seconds.values()))
    for what, measured in seconds.items():
        wall, cpu = zip(*measured, strict=True)
        ratios = [base[0] / own for base, own in zip(baseline, wall, strict=True)]
        cpu_ratio = statistics.median(base[1] for base in baseline) / statistics.median(cpu)
        range_seconds = f"{statistics.median(wall):.2f} ({min(wall):.2f}–{max(wall):.2f})"
        print(
            f"| {what} | {range_seconds} | {statistics.median(cpu):.2f} "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) | {cpu_ratio:.2f} |"
        )


def prepare_command(text: Path | str, out: Path, *options: str, vocab_size: int = VOCAB_SIZE) -> list[str]:
    """Say how to prepare a text from the command line."""
    command = [sys.executable, "-m", "bnce", "prepare", str(text), "--out", str(out), "--json"]
    return [*command, "--vocab-size", str(vocab_size), *options]


def timed(command: list[str]) -> tuple[float, float]:
    """Run a command; give wall seconds and the CPU seconds of it and its children."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def generate(path: Path, num_bytes: int, hapax_rate: float) -> None:
    """Write lines of words by Zipf's law over NUM_TYPES types, and a share of words that occur once."""
    generator = np.random.default_rng(1)
    spellings = pyarrow.array([np.base_repr(rank * 7 + 36, 36).lower() for rank in range(NUM_TYPES)])
    num_hapaxes = 0
    with open(path, "wb") as file:
        while file.tell() < num_bytes:
            num_lines = 400 * LINES_PER_DOCUMENT
            # The logarithm of the rank is uniform: that is Zipf's law.
            draw = generator.random(num_lines * WORDS_PER_LINE) * np.log(NUM_TYPES)
            words = spellings.take(pyarrow.array(np.exp(draw).astype(np.int64)))
            if hapax_rate:
                is_hapax = generator.random(len(words)) < hapax_rate
                names = [f"once{num_hapaxes + number}" for number in range(int(is_hapax.sum()))]
                num_hapaxes += len(names)
                words = pyarrow.compute.replace_with_mask(words, pyarrow.array(is_hapax), pyarrow.array(names))
            for size, mark in ((WORDS_PER_LINE, " "), (LINES_PER_DOCUMENT, "\n")):
                edges = pyarrow.array(np.arange(0, len(words) + 1, size), pyarrow.int32())
                words = pyarrow.compute.binary_join(pyarrow.ListArray.from_arrays(edges, words), mark)
            file.write("\n\n".join(words.to_pylist()).encode() + b"\n\n")


def measure_memory(num_bytes: int, hapax_rate: float, directory: Path | None) -> None:
    """Prepare generated text and print the largest sum of memory over all its processes."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        text, out = Path(name, "text.txt"), Path(name, "out")
        generate(text, num_bytes, hapax_rate)
        command = prepare_command(text, out, *WHITESPACE, vocab_size=NUM_TYPES)
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak_pss = peak_rss = peak_disk = 0
        while process.poll() is None:
            pss, rss = tree_memory(process.pid)
            peak_pss, peak_rss = max(peak_pss, pss), max(peak_rss, rss)
            peak_disk = max(peak_disk, sum(file.stat().st_size for file in Path(name).glob(".out*/**/*")))
            time.sleep(1 / SAMPLES_PER_SECOND)
        if process.returncode:
            raise SystemExit(f"failed: {' '.join(command)}")
        print(
            f"{text.stat().st_size:,} bytes, hapax rate {hapax_rate:g}: {time.perf_counter() - start:.0f} s, "
            f"peak of all processes {peak_pss / 2**20:.0f} MiB PSS, {peak_rss / 2**20:.0f} MiB RSS; "
            f"{peak_disk:,} bytes on disk beside the text"
        )


def tree_memory(pid: int) -> tuple[int, int]:
    """Add up PSS and RSS, in bytes, of a process and its descendants."""
    pss = rss = 0
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        try:
            rollup = Path(f"/proc/{current}/smaps_rollup").read_text()
            for task in Path(f"/proc/{current}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:
            continue
        sizes = {line.split()[0]: int(line.split()[1]) * 1024 for line in rollup.splitlines()[1:]}
        pss, rss = pss + sizes["Pss:"], rss + sizes["Rss:"]
    return pss, rss


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="?", help="a plain or packed text file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--gigabytes", type=float, default=4, help="of text for --memory")
    parser.add_argument("--hapaxes", type=float, default=0.0, help="share of words that occur once, for --memory")
    parser.add_argument("--directory", type=Path, help="where --memory puts its text")
    parser.add_argument("--plain-python", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain_python:
        plain_python(*options.plain_python)
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, ", end="")
    print(f"NumPy {np.__version__}, pyarrow {pyarrow.__version__}, load {os.getloadavg()[0]:.1f}")
    if options.memory:
        measure_memory(int(options.gigabytes * 1e9), options.hapaxes, options.directory)
    elif options.text:
        compare(options.text, options.rounds)
    else:
        parser.error("give a text file, or --memory")


if __name__ == "__main__":
    main()
