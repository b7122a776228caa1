"""English text as a recogniser writes it: lower case, no marks, apostrophes inside words, numbers and titles spelt out.

Sentences are found while marks and capitals still show where they end. Everything is done for many lines at once, and
no line changes another: one line by itself becomes what it becomes among others.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import NamedTuple

from bnce.text.spoken_numbers import cardinal, make_ordinal, read_roman, say_numbers

# Abbreviations with a full stop, by what must stand beside them to be sure. Titles never end a sentence.
_ALWAYS = {
    "mr": "mister",
    "mrs": "missus",
    "dr": "doctor",
    "messrs": "messrs",
    "mme": "madame",
    "mlle": "mademoiselle",
    "prof": "professor",
    "capt": "captain",
    "lieut": "lieutenant",
    "sergt": "sergeant",
    "sgt": "sergeant",
    "viz": "viz",
    "vs": "versus",
    "vol": "volume",
    "vols": "volumes",
    "chap": "chapter",
    "pp": "pages",
}
_BEFORE_NAME = {
    "St": "saint",
    "Mt": "mount",
    "Ft": "fort",
    "Gen": "general",
    "Col": "colonel",
    "Maj": "major",
    "Lt": "lieutenant",
    "Rev": "reverend",
    "Gov": "governor",
    "Sen": "senator",
    "Pres": "president",
    "Hon": "honorable",
}
_BEFORE_NUMBER = {
    "no": "number",
    "nos": "numbers",
    "fig": "figure",
    "figs": "figures",
    "p": "page",
    "ch": "chapter",
    "sec": "section",
    "art": "article",
    "jan": "january",
    "feb": "february",
    "mar": "march",
    "apr": "april",
    "aug": "august",
    "sept": "september",
    "oct": "october",
    "nov": "november",
    "dec": "december",
}
# These may stand at the end of a sentence: a capital after them begins the next one.
_MAY_END = {
    "jr": "junior",
    "sr": "senior",
    "esq": "esquire",
    "etc": "et cetera",
    "bros": "brothers",
    "ltd": "limited",
    "a.m": "a m",
    "p.m": "p m",
}
_AFTER_NUMBER = frozenset(("ft", "lb", "lbs", "oz"))
_WITHOUT_STOP = {"mr": "mister", "mrs": "missus", "dr": "doctor"}

# What a Roman numeral may follow: parts of a book are counted, kings are the first and the second.
_COUNTED = frozenset((
    "chapter", "chap", "book", "part", "volume", "vol", "act", "scene", "canto", "section", "article", "war",
    "type", "phase", "figure", "table", "psalm",
))  # fmt: skip
_KINGS = frozenset((
    "henry", "louis", "charles", "george", "edward", "james", "william", "richard", "philip", "napoleon",
    "alexander", "nicholas", "frederick", "francis", "leo", "pius", "gregory", "clement", "innocent", "benedict",
    "boniface", "urban", "paul", "john", "elizabeth", "catherine", "ferdinand", "leopold", "peter",
))  # fmt: skip

# Stops, closing marks, a blank, and the first sign of what follows.
_STOPS = re.compile(r"""([.!?]+)(?=(["')\]}]*)(\s?)[ \t\r"'(\[{]*(.?))""")
_DOTTED = re.compile(r"[A-Za-z](?:\.[A-Za-z])+")
# The patterns begin with the signs that they look for, and look back after that: so they are found five times as fast.
_NUMERAL = re.compile(r"[IVXLC](?<![\w.'&-].)[IVXLC]*(?![\w'&]|\.[A-Za-z])", re.DOTALL)
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_ACCENTS = re.compile("[\u0300-\u036f]+")
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("‘’ʼʹ`´′", "'"),
        **dict.fromkeys("“”„«»″", '"'),
        **dict.fromkeys("‐‑‒–—―−", "-"),
        "…": "...",
        "⁄": "/",
        "½": " 1/2",
        "¼": " 1/4",
        "¾": " 3/4",
        "æ": "ae",
        "Æ": "Ae",
        "œ": "oe",
        "Œ": "Oe",
        "ß": "ss",
        "ø": "o",
        "Ø": "O",
        "ł": "l",
        "Ł": "L",
        "­": "",
    }
)
_USED = "£€°"  # by numbers
# Apostrophes that are not between two letters.
_OUTER_APOSTROPHES = re.compile(r"'(?:'*(?![^\W_])|(?<![^\W_]')'*)")

# Bytes of UTF-8: letters in lower case, apostrophes, ends of lines and of documents, and blanks for all else.
_TO_BLANK = bytes(
    byte if byte >= 0x80 or chr(byte) in "'\n\0" else ord(chr(byte).lower()) if chr(byte).isalpha() else ord(" ")
    for byte in range(256)
)


class _Stop(NamedTuple):
    """What a full stop makes of the word before it, if that changes, and whether it can end a sentence."""

    word: str | None
    can_end: bool
    needs_capital: bool = False


def speak(text: str, *, end_sentences: bool) -> str:
    """Bring many lines into spoken form: blanks between words, a newline after a sentence, nothing else but words.

    There may be several blanks between two words, and newlines with no word between them.
    """
    if not text.isascii():
        text = _BEYOND_ASCII.sub(lambda run: _fold(run[0]), text)
    text = _NUMERAL.sub(_say_numeral, text)
    text = _read_stops(text, end_sentences)
    text = say_numbers(text)
    text = text.replace("&", " and ").replace("%", " percent ")
    if not text.isascii():
        text = text.replace("°", " ").lower()
    text = text.encode().translate(_TO_BLANK).decode()
    text = _OUTER_APOSTROPHES.sub(" ", text)
    for short, pattern in _SHORT.items():
        text = pattern.sub(_WITHOUT_STOP[short], text)
    return text


_SHORT = {short: re.compile(rf"{short}(?<![\w']{short})(?![\w'])") for short in _WITHOUT_STOP}


@functools.lru_cache(2**12)
def _fold(run: str) -> str:
    """Write letters without accents, typographic marks as those of a typewriter, and blanks for other marks."""
    plain = unicodedata.normalize("NFKD", run.translate(_SIGNS)).translate(_SIGNS)
    folded = unicodedata.normalize("NFC", _ACCENTS.sub("", plain))
    return "".join(sign if sign in _USED or sign.isascii() or _is_letter(sign) else " " for sign in folded)


def _is_letter(sign: str) -> bool:
    return sign.isalpha() or unicodedata.category(sign)[0] == "M"


def _read_stops(text: str, end_sentences: bool) -> str:
    """Spell out what full stops shorten, and end sentences at the other stops."""
    parts: list[str] = []
    done = 0
    for found in _STOPS.finditer(text):
        stops, closers, blank, first = found.groups()
        begin = found.start()
        end = begin + len(stops)
        stop = _CANNOT_TELL
        if blank == "\n":
            first = ""
        if stops == ".":
            if not blank and not closers and first.isalnum():
                # Inside a number, or inside one word: the last stop of "U.S." decides for all of it.
                continue
            word_at, word = _word_before(text, begin)
            if word in _AFTER_NUMBER and text[max(0, word_at - 2) : word_at].strip()[-1:].isdigit():
                continue
            stop = _judge(word, "" if closers else first)
            if stop.word is not None and word_at >= done:
                parts += text[done:word_at], stop.word, " "
                done = end
        if not end_sentences or not blank or not stop.can_end:
            continue
        # A question inside quotation marks may be part of a sentence that goes on, and so may an exclamation.
        if not first.islower() or (stops == "." and not closers and not stop.needs_capital):
            closed = end + len(closers)
            parts += text[done:closed], "\n"
            done = closed
    return "".join((*parts, text[done:])) if parts else text


_CANNOT_TELL = _Stop(None, True)
_TITLE = 12  # letters of the longest word that is looked up


def _word_before(text: str, end: int) -> tuple[int, str]:
    """Find the word, letters and stops, before a place; of a long one the end is enough."""
    least = max(0, end - _TITLE)
    begin = max(text.rfind(" ", least, end), text.rfind("\n", least, end)) + 1
    if begin > least and text[begin:end].isalpha():
        return begin, text[begin:end]
    begin = end
    while begin > 0 and end - begin <= _TITLE and (text[begin - 1].isalpha() or text[begin - 1] == "."):
        begin -= 1
    return begin, text[begin:end]


@functools.lru_cache(2**14)
def _judge(word: str, first: str) -> _Stop:
    """Tell what a full stop after a word means, given the first sign after it."""
    small = word.lower()
    if small in _ALWAYS:
        return _Stop(_ALWAYS[small], False)
    if word in _BEFORE_NAME and first.isupper():
        return _Stop(_BEFORE_NAME[word], False)
    if small in _BEFORE_NUMBER and first.isdigit():
        return _Stop(_BEFORE_NUMBER[small], False)
    if small in _MAY_END:
        return _Stop(_MAY_END[small], True, needs_capital=True)
    if _DOTTED.fullmatch(word):
        return _Stop(word.replace(".", " "), False)
    # "J. Smith" and "M. de Guise", but "It was I."
    return _Stop(None, False) if len(word) == 1 and word != "I" else _CANNOT_TELL


def _say_numeral(found: re.Match[str]) -> str:
    """Say a Roman numeral where the word before it leaves no doubt."""
    begin = found.start()
    at = begin - 1
    while at > 0 and found.string[at] in " .":
        at -= 1
    _, word = _word_before(found.string, at + 1)
    before = word.lower().rstrip(".")
    number = read_roman(found[0]) if before in _COUNTED or (before in _KINGS and word[0].isupper()) else None
    if number is None:
        return found[0]
    said = cardinal(number)
    return said if before in _COUNTED else f"the {make_ordinal(said)}"
