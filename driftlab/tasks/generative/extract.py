"""Read the answer that stands in a generated text: one strict rule a format, and None when it is not met.

Lenient parsers take the article "A" for an option or the first digit of a sentence for a choice, and so turn a loss of
format into a change of accuracy. Here a text that does not answer in the form that was asked for counts as unparsed.
All rules take time linear in the text and never raise.
"""

from __future__ import annotations

import re
from fractions import Fraction

_OPENING = " \t\r\n*([{\"'`"
_CLOSING = " \t\r\n*)]}\"'`.,:;!"
_PREFIX = "answer:"
# ASCII: with Unicode rules, ignoring case lets a long s stand for an s.
_LETTER = re.compile(r"(?<!\w)(?i:the answer is) (?:\(([A-Z])\)|([A-Z]))\.?\Z", re.ASCII)
_LABEL = re.compile(r"answer:[ \t]*(true|false|unknown)\.?", re.ASCII | re.IGNORECASE)
# Bounded, because Python refuses to convert more than 4300 digits.
_NUMBER = re.compile(r"(-?)\$?([0-9]{1,3}(?:,[0-9]{3}){1,7}|[0-9]{1,24})(\.[0-9]{1,12})?", re.ASCII)


def digit(output: str, allowed: str) -> str | None:
    """The digit, when the whole output is one of ``allowed`` and nothing else.

    Around it only white space, brackets, quotation marks, asterisks, closing punctuation and a prefix "Answer:" (any
    case). A digit in a sentence, in a longer number, or beside a second one does not count.
    """
    text = output.lstrip(_OPENING)
    if text[: len(_PREFIX)].lower() == _PREFIX:
        text = text[len(_PREFIX) :]
    text = text.lstrip(_OPENING).rstrip(_CLOSING)
    return text if len(text) == 1 and text in allowed else None


def letter(output: str, options: int) -> str | None:
    """The letter of the last line that ends with "the answer is (X)", where X is one of the first ``options`` letters.

    The phrase in any case, the letter a capital; brackets, bold marks and a final full stop are optional; text may
    stand before it in its line, not after it. A last letter outside the options is no answer, and no earlier line is
    taken instead.
    """
    for line in reversed(output.splitlines()):
        found = _LETTER.search(line.replace("**", "").rstrip())
        if found:
            name = found[1] or found[2]
            return name if ord(name) - ord("A") < options else None
    return None


def label(output: str) -> str | None:
    """The label True, False or Unknown from the last line that is "Answer: X" and nothing else.

    Any case; bold marks and a final full stop are optional.
    """
    for line in reversed(output.splitlines()):
        found = _LABEL.fullmatch(line.replace("**", "").strip())
        if found:
            return found[1].capitalize()
    return None


def number(output: str) -> str | None:
    """The number of the last line that is "#### number" and nothing else, in lowest terms: "29", "-3", "29/2".

    A dollar sign, commas between thousands, decimals, bold marks and a final full stop are optional; units, words and
    calculations are not a number. At most 24 digits and 12 decimals.
    """
    for line in reversed(output.splitlines()):
        text = line.strip(" \t*")
        if text.startswith("####"):
            found = _NUMBER.fullmatch(text[4:].lstrip(" \t*").rstrip(" \t*").removesuffix("."))
            if found:
                sign, whole, decimals = found.groups()
                return str(Fraction(f"{sign}{whole.replace(',', '')}{decimals or ''}"))
    return None


def last_line(output: str) -> str:
    """The last line that is not blank, stripped; empty when there is none."""
    lines = output.strip().splitlines()
    return lines[-1].strip() if lines else ""
