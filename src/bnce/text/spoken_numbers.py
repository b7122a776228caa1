"""Numbers as an English reader says them: `1848` is "eighteen forty eight", `$2.50` "two dollars and fifty cents".

Only what has one usual reading is read so. Other numbers are said as they stand: digit by digit where they are long or
begin with a zero, one after the other where marks stand between them.
"""

from __future__ import annotations

import functools
import re

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_LARGE = ("", "thousand", "million", "billion", "trillion")
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_MAX_DIGITS = 15  # what `_LARGE` has names for
_MAX_PLAIN_DIGITS = 6  # longer ones without commas are numbers of telephones and the like

_CURRENCIES = {"$": ("dollar", "cent"), "£": ("pound", ""), "€": ("euro", "cent")}
_UNITS = {
    "%": ("percent", "percent"),
    "°C": ("degree celsius", "degrees celsius"),
    "°F": ("degree fahrenheit", "degrees fahrenheit"),
    "°": ("degree", "degrees"),
    "km": ("kilometer", "kilometers"),
    "kg": ("kilogram", "kilograms"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "mph": ("mile per hour", "miles per hour"),
    "ft.": ("foot", "feet"),
    "lbs": ("pound", "pounds"),
    "lb": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
}
_FRACTIONS = {"1/2": "one half", "1/3": "one third", "2/3": "two thirds", "1/4": "one quarter", "3/4": "three quarters"}
_ROMAN_FORM = re.compile("C{0,3}(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}

# What follows a number decides how it is said, so that one pattern has it all. Blanks stay within a line.
_NUMBER = re.compile(
    r"""
    (?P<currency>[$£€])? (?<![0-9])
    (?: (?P<fraction>[123]/[234])(?![0-9/]|[.,][0-9])
      | (?P<hour>[0-9]{1,2}):(?P<minute>[0-5][0-9])(?![0-9:])
      | (?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]) | [0-9]+)
        (?: (?P<ordinal>st|nd|rd|th|d)\b
          | (?P<plural>'?s)\b
          | (?P<rest>\.[0-9]+)?(?:[ ](?P<scale>hundred|thousand|million|billion|trillion)\b)?
            (?:[ ]?(?P<unit>%|°[CF]?|(?:km|kg|cm|mm|mph|lbs?|oz|[kMG]Hz)\b|ft\.))?
        )
    )
    """,
    re.VERBOSE,
)


_BEGIN = re.compile(r"[0-9$£€]")


def say_numbers(text: str) -> str:
    """Say every number of a text, with blanks around it."""
    # Where one begins is found much faster than what it is.
    parts: list[str] = []
    done = 0
    while (begin := _BEGIN.search(text, done)) is not None:
        found = _NUMBER.match(text, begin.start())
        if found is None:  # a currency without a number
            parts += text[done : begin.start()], " "
            done = begin.end()
            continue
        parts += text[done : begin.start()], _say(found.groups())
        done = found.end()
    return "".join((*parts, text[done:])) if parts else text


@functools.lru_cache(2**16)
def _say(parts: tuple[str | None, ...]) -> str:
    currency, fraction, hour, minute, whole, ordinal, plural, rest, scale, unit = parts
    if fraction is not None:
        return f" {_FRACTIONS.get(fraction) or ' '.join(cardinal(int(part)) for part in fraction.split('/'))} "
    if hour is not None and minute is not None:
        return f" {cardinal(int(hour))} {_pair(minute) if minute != '00' else ''} "
    assert whole is not None
    digits = whole.replace(",", "")
    counts = currency is not None or unit is not None or scale is not None
    if _is_spelt(whole):
        said = _spell(digits)
    elif ordinal is not None:
        return f" {make_ordinal(cardinal(int(digits)))} "
    elif len(whole) == 4 and not counts and rest is None and _is_year(int(digits)):
        said = f"{cardinal(int(digits[:2]))} {_pair(digits[2:]) if digits[2:] != '00' else 'hundred'}"
    else:
        said = cardinal(int(digits))
    if plural is not None:
        return f" {make_plural(said)} "
    is_one = digits == "1" and rest is None and scale is None
    if currency is not None:
        return f" {_say_money(currency, said, is_one, rest, scale)} {_UNITS[unit][1] if unit else ''} "
    if rest is not None:
        said += f" point {_spell(rest[1:])}"
    return f" {_join(said, scale, _UNITS[unit][not is_one] if unit else None)} "


def _say_money(currency: str, said: str, is_one: bool, rest: str | None, scale: str | None) -> str:
    one, hundredth = _CURRENCIES[currency]
    name = one if is_one else f"{one}s"
    if rest is None:
        return _join(said, scale, name)
    if scale is not None or len(rest) != 3:
        return _join(f"{said} point {_spell(rest[1:])}", scale, f"{one}s")
    cents = int(rest[1:])
    name = one if said == "one" else f"{one}s"
    coins = "pence" if not hundredth else hundredth if cents == 1 else f"{hundredth}s"
    return f"{said} {name} and {cardinal(cents)} {coins}" if cents else f"{said} {name}"


def _is_spelt(whole: str) -> bool:
    if "," in whole:
        return len(whole.replace(",", "")) > _MAX_DIGITS
    return len(whole) > _MAX_PLAIN_DIGITS or (whole[0] == "0" and len(whole) > 1)


def _is_year(number: int) -> bool:
    return 1010 <= number <= 1999 or 2010 <= number <= 2099


def _spell(digits: str) -> str:
    return " ".join(_ONES[int(digit)] for digit in digits)


def _join(*parts: str | None) -> str:
    return " ".join(filter(None, parts))


def _pair(digits: str) -> str:
    number = int(digits)
    return f"oh {_ONES[number]}" if number < 10 else cardinal(number)


def cardinal(number: int) -> str:
    """Say a whole number below 10¹⁵."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + (f" {_ONES[number % 10]}" if number % 10 else "")
    if number < 1000:
        return f"{_ONES[number // 100]} hundred" + (f" {cardinal(number % 100)}" if number % 100 else "")
    parts = []
    for name in _LARGE:
        number, part = divmod(number, 1000)
        if part:
            parts.append(f"{cardinal(part)} {name}".rstrip())
    return " ".join(reversed(parts))


def make_ordinal(said: str) -> str:
    """Make "twenty first" of "twenty one"."""
    head, _, last = said.rpartition(" ")
    last = _ORDINALS.get(last) or (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")
    return f"{head} {last}".lstrip()


def make_plural(said: str) -> str:
    """Make "nineteen twenties" of "nineteen twenty"."""
    head, _, last = said.rpartition(" ")
    last = f"{last[:-1]}ies" if last.endswith("y") else f"{last}es" if last.endswith("x") else f"{last}s"
    return f"{head} {last}".lstrip()


def read_roman(letters: str) -> int | None:
    """Give the value of a Roman numeral below 400, or None for what is not one in its usual form."""
    if not _ROMAN_FORM.fullmatch(letters):
        return None
    values = [_ROMAN[letter] for letter in letters]
    pairs = zip(values, [*values[1:], 0], strict=True)
    return sum(-value if value < after else value for value, after in pairs)
