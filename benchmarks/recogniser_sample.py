"""Write a small sample of a recogniser's output, in the formats of ESPnet, NeMo and Kaldi, and a text to learn from.

    python benchmarks/recogniser_sample.py sample

The sentences are made of a few hundred words, some of which sound alike ("night" and "knight"). The recogniser that is
imitated hears these words well and confuses them freely. So a language model of the text can correct it, as one of
books corrects a recogniser of read books. The text is written as books are: capitals, marks, titles, numbers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Iterable
from pathlib import Path

SOUND_ALIKE = (
    ("night", "knight"), ("sea", "see"), ("sun", "son"), ("whole", "hole"), ("new", "knew"), ("red", "read"),
    ("wait", "weight"), ("right", "write"), ("wood", "would"), ("mail", "male"), ("hour", "our"), ("two", "too"),
)  # fmt: skip
PEOPLE = ("Mr. Brown", "Mrs. Hill", "Dr. Lee", "the captain", "the old king", "a young girl", "St. John", "the knight")
DOINGS = (
    "would wait at the red gate until {n} o'clock", "could see the sea from the whole house",
    "knew that the son was right", "read the mail for two days", "went out into the wood at night",
    "had to write a new book in {y}", "would carry the whole weight", "waited an hour in the sun",
    "dug a hole near our house", "rode with the knight by night", "paid {n} pounds for the red coat",
    "saw two ships on the sea", "was too late for the mail",
)  # fmt: skip
ENDS = ("", "", " in the morning", " with a son of the king", ", and our guests knew it", " for the whole winter")
SAID = {"Mr.": "mister", "Mrs.": "missus", "Dr.": "doctor", "St.": "saint"}
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NUM_BEST = 8


def make_sentence(chosen: random.Random) -> tuple[str, str]:
    """Make a sentence, as a book has it and as it is said."""
    number, tens = chosen.randrange(3, 9), chosen.choice((("40", "forty"), ("60", "sixty"), ("90", "ninety")))
    pattern = f"{chosen.choice(PEOPLE)} {chosen.choice(DOINGS)}{chosen.choice(ENDS)}"
    written = pattern.format(n=number, y=f"18{tens[0]}")
    said = pattern.format(n=NUMBERS[number - 1], y=f"eighteen {tens[1]}").replace(",", "")
    said = " ".join(SAID.get(word, word) for word in said.split()).lower()
    return written[0].upper() + written[1:] + ".", said


def recognise(said: str, chosen: random.Random) -> list[tuple[str, float]]:
    """Hear a sentence: the likeliest ways to confuse words that sound alike, with scores, the best first."""
    other = {one: two for pair in SOUND_ALIKE for one, two in (pair, pair[::-1])}
    words = said.split()
    places = [place for place, word in enumerate(words) if word in other][:5]
    costs = {place: chosen.gauss(0.6, 0.9) for place in places}
    base = -0.4 * len(words) - chosen.random()
    found = []
    for swapped in itertools.product((False, True), repeat=len(places)):
        heard = list(words)
        score = base
        for place, is_swapped in zip(places, swapped, strict=True):
            if is_swapped:
                heard[place] = other[words[place]]
                score -= costs[place]
        found.append((" ".join(heard), round(score, 4)))
    for lost in range(len(words)):
        found.append((" ".join(words[:lost] + words[lost + 1 :]), round(base - 2.5 - chosen.random(), 4)))
    return sorted(found, key=lambda one: -one[1])[:NUM_BEST]


def save(path: Path, lines: Iterable[str]) -> None:
    """Write lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_lists(place: Path, half: str, num: int, chosen: random.Random) -> None:
    """Write the lists of one half in all three formats, with references."""
    spoken = {f"{half}-{number:04}": make_sentence(chosen)[1] for number in range(1, num + 1)}
    lists = {name: recognise(said, chosen) for name, said in spoken.items()}
    save(place / "data" / half / "text", (f"{name} {said}" for name, said in spoken.items()))
    for rank in range(NUM_BEST):
        own = {name: found[rank] for name, found in lists.items() if rank < len(found)}
        directory = place / "espnet" / half / f"{rank + 1}best_recog"
        save(directory / "text", (f"{name} {text}" for name, (text, _) in own.items()))
        save(directory / "score", (f"{name} tensor({score})" for name, (_, score) in own.items()))
    save(place / "nemo" / f"{half}.tsv", (f"{text}\t{score}" for found in lists.values() for text, score in found))
    records = ({"audio_filepath": f"{name}.wav", "text": said} for name, said in spoken.items())
    save(place / "nemo" / f"{half}.json", map(json.dumps, records))
    rows = [(f"{name}-{rank}", *one) for name, found in lists.items() for rank, one in enumerate(found, 1)]
    save(place / "kaldi" / f"{half}.nbest", (f"{key} {text}" for key, text, _ in rows))
    save(place / "kaldi" / f"{half}.ac", (f"{key} {-score:.4f}" for key, _, score in rows))


def main() -> None:
    """Write the sample."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="directory to write to")
    parser.add_argument("--sentences", type=int, default=4000, help="sentences of the text (4000)")
    parser.add_argument("--utterances", type=int, default=150, help="utterances of dev and of test (150)")
    given = parser.parse_args()
    chosen = random.Random(1)
    paragraphs = [" ".join(make_sentence(chosen)[0] for _ in range(5)) for _ in range(given.sentences // 5)]
    save(given.out / "books.txt", (f"{paragraph}\n" for paragraph in paragraphs))
    for half in ("dev", "test"):
        write_lists(given.out, half, given.utterances, chosen)


if __name__ == "__main__":
    main()
