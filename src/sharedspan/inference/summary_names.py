"""Names from users' tables as any text may safely hold them.

Characters that are not printed, among them line breaks, escape sequences of terminals and marks
that turn the direction of text, are shown as Python writes them; long names lose their middle.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence

NOT_PRINTED = ("Cc", "Cf", "Cs", "Cn", "Zl", "Zp")  # Unicode categories
JOINERS = "\u200c\u200d"  # part of words in Persian and Indic scripts


def visible(text: str) -> str:
    """Text without characters that are not printed; they are written as escape sequences."""
    return "".join(
        char.encode("unicode_escape").decode()
        if unicodedata.category(char) in NOT_PRINTED and char not in JOINERS
        else char
        for char in str(text)
    )


def text_width(text: str) -> int:
    """Columns that text takes on a terminal, where some letters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def shorten_middle(text: str, width: int) -> str:
    """Text of at most ``width`` columns and characters, with dots in the place of its middle."""
    if max(text_width(text), len(text)) <= width:
        return text
    tail = (width - 3) // 2
    start, end = (
        fitting_start(text[:width], width - 3 - tail),
        fitting_start(text[: -width - 1 : -1], tail),
    )
    return f"{start}...{end[::-1]}"


def fitting_start(text: str, width: int) -> str:
    """The longest start of a text that has a width."""
    while text_width(text) > width or len(text) > width:
        text = text[:-1]
    return text


def distinct_names(names: Sequence[str], width: int) -> list[str]:
    """Visible names of at most ``width`` columns, numbered if only shortening made them equal."""
    texts = [visible(name) for name in names]
    short = [shorten_middle(text, width) for text in texts]
    originals = Counter(of for of, _ in set(zip(short, texts, strict=True)))
    for i, text in enumerate(short):
        if originals[text] > 1:
            number = f" #{i + 1}"
            short[i] = shorten_middle(texts[i], width - len(number)) + number
    return short
