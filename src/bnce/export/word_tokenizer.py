"""A run's way from text to ids as a tokenizer of the `tokenizers` library, as near as that library comes to it.


The patterns have their classes of characters written out from Python's own, so that both cut words
alike in every script.
"""

from __future__ import annotations

from typing import Any

from bnce.corpus.vocabulary import END, Vocabulary
from bnce.text.normalise import END_WORD, NUMBER_WORD, UNKNOWN_WORD, Normaliser
from bnce.text.spacing import character_class, combining_marks

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CLASS = "PreTrainedTokenizerFast"
# What the transformers library reads beside it; texts of several lengths are filled up before their first word.
TOKENIZER_CONFIG = {
    "tokenizer_class": TOKENIZER_CLASS,
    "bos_token": END_WORD,
    "eos_token": END_WORD,
    "pad_token": END_WORD,
    "unk_token": UNKNOWN_WORD,
    "padding_side": "left",
    "clean_up_tokenization_spaces": False,
    "model_input_names": ["input_ids", "attention_mask"],
}


def build_tokenizer(vocabulary: Vocabulary, normaliser: Normaliser) -> Any:
    """Build a `tokenizers.Tokenizer`: `</s>`, the words, and `</s>` between sentences but not after the last."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    words = {word: number for number, word in enumerate(vocabulary.words)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=UNKNOWN_WORD))
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in (END_WORD, UNKNOWN_WORD)])
    steps: list[Any] = []
    if normaliser.lowercase:
        # The one capital whose small letter depends on its place, which the library's own lower case does not look at.
        letter = character_class(r"[^\W\d_]")
        steps = [normalizers.Replace(_regex(f"(?<=[{letter}])Σ(?![{letter}])"), "ς"), normalizers.Lowercase()]
    steps += [normalizers.Replace(_regex(pattern), content) for pattern, content in _replacements(normaliser)]
    tokenizer.normalizer = normalizers.Sequence(steps)
    if normaliser.tokens == "words":
        tokenizer.pre_tokenizer = pre_tokenizers.Split(_regex(_word(normaliser)), "removed", invert=True)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(_regex(f"[{_blanks()}]+"), "removed")

    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_WORD} $A", pair=f"{END_WORD} $A {END_WORD} $B", special_tokens=[(END_WORD, END)]
    )
    # A blank before every word, so that what is made up can be put behind its prompt as it is.
    tokenizer.decoder = decoders.Replace(_regex(r"\A"), " ")
    return tokenizer


def _regex(pattern: str) -> Any:
    from tokenizers import Regex

    return Regex(pattern)


def _digits() -> str:
    return character_class(r"\d")


def _blanks() -> str:
    return character_class(r"\s")


def _number() -> str:
    return f"[{_digits()}]+(?:[.,][{_digits()}]+)*"


def _replacements(normaliser: Normaliser) -> list[tuple[str, str]]:
    """List what is done to the text before it is cut: digits, numbers, then a `</s>` where a sentence ends."""
    blank = _blanks()
    found = []
    if normaliser.numbers == "zero":
        found.append((f"[{_digits()}]", "0"))
    elif normaliser.numbers == "word" and normaliser.tokens == "words":
        found.append((_number(), NUMBER_WORD))
    elif normaliser.numbers == "word":
        found.append((rf"(?<![^{blank}]){_number()}(?![^{blank}])", NUMBER_WORD))
    # Only between two words: the end of the last sentence is the model's to predict.
    ends = rf"(?<=[^{blank}])[{blank}]*\n[{blank}]*(?=[^{blank}])"
    # No pattern says numbers and titles as `text/spoken.py` does: such text comes spoken, a sentence a line.
    if normaliser.sentences == "split" and normaliser.tokens != "spoken":
        ends = rf"(?<=[.!?])[{blank}]+(?=[^{blank}])|{ends}"
    found.append((ends, f" {END_WORD} "))
    return found


def _word(normaliser: Normaliser) -> str:
    """Write the pattern of a word: that of `normalise`, and the special words that were put in before."""
    letter, mark = character_class(r"[^\W\d_]"), character_class(rf"[{combining_marks()}]")
    letters = f"[{letter}]+(?:[{mark}]+[{letter}]*)*"
    special = f"{END_WORD}|{NUMBER_WORD}" if normaliser.numbers == "word" else END_WORD
    return f"{special}|{letters}(?:['’]{letters})?|{_number()}|_+|[^{letter}{_digits()}_{_blanks()}]"
