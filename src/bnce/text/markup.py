"""Wikipedia's markup taken off: what a reader of the page would see stays, in linear time whatever is unbalanced.

Templates, tables, pictures, categories, references, formulas and comments go with all that is in them. Links,
headings, lists and emphasis leave their text. An opening that is never closed is dropped alone, and so is a
closing that was never opened: no missing brace takes the rest of a page with it.
"""

from __future__ import annotations

import bisect
import html
import re
from collections import defaultdict

# Elements whose contents are not prose.
_DROPPED = "ref|math|gallery|timeline|imagemap|score|hiero|chem|source|syntaxhighlight|references|includeonly|noinclude"
_BLOCKS = {"br", "p", "div", "li", "ul", "ol", "dl", "dt", "dd", "tr", "td", "th", "table", "tbody", "caption", "pre"}
_BLOCKS |= {"blockquote", "center", "hr", "h1", "h2", "h3", "h4", "h5", "h6"}

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_NOWIKI = re.compile(r"<nowiki\s*>([^<]*(?:<(?!/?nowiki)[^<]*)*)</nowiki\s*>", re.IGNORECASE)
_DROPPED_TAG = re.compile(rf"<(/?)({_DROPPED})\b([^<>]*)>", re.IGNORECASE)
_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9]*)\b[^<>]*>")
# Every pattern below begins with a sign that text has few of, or with a newline: that is what makes it fast.
# A table opens and closes at the beginning of a line; elsewhere its signs belong to templates.
_BRACKET = re.compile(r"\{\{|\}\}|\[\[|\]\]|\n(?:[ \t:*#]*\{\||[ \t]*\|\}(?!\}(?!\})))")
_CLOSES = {"}}": "{{", "]]": "[[", "|}": "{|"}
_BRACKETS = (*_CLOSES, *_CLOSES.values())
_PARAMETER = re.compile(r"\{\{\{[^{}]*\}\}\}")
# Most links are such, and need no look at what they stand in; a colon may mean a picture or a language.
_SIMPLE_LINK = re.compile(r"\[\[(?:[^\[\]{}|:\n]*\|)?([^\[\]{}|:\n]+)\]\]")
_DROPPED_LINK = re.compile(r"\s*(?:(?:image|file|media|category)\s*:|[a-z]{2,3}(?:-[a-z-]+)?:|simple:)")
_DROPPED_LINK_WITH_TEXT = re.compile(r"\s*(?:image|file|media|category)\s*:")
_EXTERNAL_LINK = re.compile(r"\[(?:https?|ftp|irc|news|mailto|gopher):[^\s\[\]]*(?:[ \t]([^\[\]\n]*))?\]")
_ADDRESS = re.compile(r"https?://[^\s\[\]{}<>|\"]+")
_FILE_ADDRESS = re.compile(r"ftp://[^\s\[\]{}<>|\"]+")
_EMPHASIS = re.compile(r"''+")
_HEADING = re.compile(r"\n=[^\n]*")
_SWITCH = re.compile(r"__[A-Z]{3,30}__")
# What is left of tables that were never closed, list signs, and rules.
_LINE_START = re.compile(r"\n(?:\|[-}+][^\n]*|[ \t]*[*#:;]+[ \t]*|-{4,}|[|!])")

_MOST_PIECES = 16

# Inside <nowiki> signs are only signs. Meanwhile they are characters that Unicode keeps out of all text.
_SIGNS = "[]{}<>'=*#|:;&!_-/"
_HIDE = {ord(sign): 0xFDD0 + number for number, sign in enumerate(_SIGNS)}
_SHOW = {hidden: sign for sign, hidden in _HIDE.items()}


def strip_markup(text: str) -> str:
    """Turn the source of a page into its text: paragraphs, headings and list items on lines of their own."""
    # Now every line begins after a newline.
    text = f"\n{text}"
    hidden = False
    if "<" in text:
        if "<!--" in text:
            text = _COMMENT.sub("", text)
        if "nowiki" in text:
            text, num_hidden = _NOWIKI.subn(lambda found: found.group(1).translate(_HIDE), text)
            hidden = num_hidden > 0
        text = _drop_elements(text)
        text = _TAG.sub(lambda tag: "\n" if tag.group(1).lower() in _BLOCKS else "", text)
    if "[[" in text:
        text = _SIMPLE_LINK.sub(r"\1", text)
    if "{{{" in text:
        text = _PARAMETER.sub("", text)
    if any(bracket in text for bracket in _BRACKETS):
        text = _drop_brackets(text)
    if "[" in text:
        text = _EXTERNAL_LINK.sub(lambda found: found.group(1) or "", text)
    if "://" in text:
        text = _FILE_ADDRESS.sub("", _ADDRESS.sub("", text))
    if "''" in text:
        text = _EMPHASIS.sub("", text)
    if "=" in text:
        text = _HEADING.sub(lambda found: "\n" + found.group().strip("= \t\n"), text)
    if "__" in text:
        text = _SWITCH.sub("", text)
    text = _LINE_START.sub("\n", text)
    if "&" in text:
        text = html.unescape(text)
    return text[1:].translate(_SHOW) if hidden else text[1:]


def _drop_elements(text: str) -> str:
    """Drop the elements that are not prose, from the opening tag to the next closing one of that name."""
    tags = list(_DROPPED_TAG.finditer(text))
    if not tags:
        return text
    ends: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for tag in tags:
        if tag.group(1):
            ends[tag.group(2).lower()].append(tag.span())
    kept = []
    position = 0
    for tag in tags:
        if tag.start() < position:
            continue
        kept.append(text[position : tag.start()])
        position = tag.end()
        if not tag.group(1) and not tag.group(3).endswith("/"):
            closing = ends[tag.group(2).lower()]
            following = bisect.bisect_left(closing, (position, position))
            if following < len(closing):
                position = closing[following][1]
    kept.append(text[position:])
    return "".join(kept)


def _drop_brackets(text: str) -> str:
    """Drop templates and tables, and put the text of links in their place, with one look at every bracket."""
    kept: list[str] = []
    # Of every open bracket its kind, and how many pieces were kept before it.
    opened: list[tuple[str, int]] = []
    num_open = {"{{": 0, "[[": 0, "{|": 0}
    position = 0
    for found in _BRACKET.finditer(text):
        kept.append(text[position : found.start()])
        position = found.end()
        bracket = found.group()
        if bracket[0] == "\n":
            kept.append("\n")
            bracket = bracket[-2:]
        if bracket in num_open:
            opened.append((bracket, len(kept)))
            num_open[bracket] += 1
            continue
        kind = _CLOSES[bracket]
        if not num_open[kind]:
            continue
        while True:
            innermost, begin = opened.pop()
            num_open[innermost] -= 1
            if innermost == kind:
                break
        if kind == "[[":
            # Links do not nest, but in the captions of pictures; a deeper heap is only looked at where it begins.
            if len(kept) - begin <= _MOST_PIECES:
                kept[begin:] = ["".join(kept[begin:])]
            if _is_dropped(kept[begin]):
                del kept[begin:]
            else:
                kept[begin] = _link_text(kept[begin])
        else:
            del kept[begin:]
    kept.append(text[position:])
    return "".join(kept)


def _is_dropped(link: str) -> bool:
    """Tell pictures, categories and the page's other languages from links in the text."""
    if ":" not in link:
        return False
    # The names of namespaces may be written anyhow, those of languages are in small letters.
    if _DROPPED_LINK_WITH_TEXT.match(link.lower()):
        return True
    return "|" not in link and _DROPPED_LINK.match(link) is not None


def _link_text(link: str) -> str:
    target, bar, shown = link.partition("|")
    if not bar:
        return target.lstrip(":")
    # [[Mercury (planet)|]] is short for its name without what distinguishes it.
    return shown.replace("|", " ") or re.sub(r" ?\([^()]*\)$|,.*$", "", target.rpartition(":")[2])
