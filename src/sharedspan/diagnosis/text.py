"""Labels and numbers as text for readers.

Names come from users' tables and may contain any characters. They are shortened and control
characters are made visible; downloads contain them unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

SHOWN = 44  # characters of a name that are shown
SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
# Control characters become visible, and those that change the direction of text are removed.
VISIBLE: dict[int, str] = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], "\ufffd")
VISIBLE |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "")
VISIBLE |= str.maketrans({"\t": "⇥"} | dict.fromkeys("\n\r\u2028\u2029", "↵"))


def whole(label: Any) -> str:
    """A label as text that can be written as UTF-8: half a surrogate pair is not a character."""
    return str(label).encode("utf-8", "replace").decode("utf-8")


def short(label: Any, limit: int = SHOWN) -> str:
    """A visible label on one line of at most ``limit`` characters, without its middle if longer."""
    text = whole(label)
    if len(text) > limit:
        tail = limit // 3
        text = f"{text[: limit - tail - 1]}…{text[len(text) - tail :]}"
    return text.replace("\r\n", "\n").translate(VISIBLE) or "(empty)"


def format_number(value: float, digits: int = 3) -> str:
    """A number with ``digits`` significant digits, a minus sign and separated thousands."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if -4 <= power < 6:
        return f"{value:,.{max(digits - 1 - power, 0)}f}".replace("-", "−")
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}×10{str(int(exponent)).translate(SUPERSCRIPTS)}".replace("-", "−", 1)


def percent(share: float) -> str:
    """A share in per cent, with a digit after the point if it is small."""
    size = 100 * share
    if 0 < size < 0.05:
        return "<0.1\u00a0%"
    if abs(size) >= 1000:
        return f"{format_number(size, 2)}\u00a0%"
    return f"{size:.{0 if abs(size) >= 10 or size == 0 else 1}f}\u00a0%".replace("-", "−")


def change(ratio: float) -> str:
    """A ratio as a change in per cent with its sign, or as a factor if it is 3 or more."""
    if ratio >= 3:
        return f"×{format_number(ratio, 2)}"
    size = 100 * (ratio - 1)
    digits = 0 if abs(size) >= 10 else 1
    if float(f"{size:.{digits}f}") == 0:
        return "±0\u00a0%"
    return f"{size:+.{digits}f}\u00a0%".replace("-", "−")


def setting(value: Any) -> str:
    """A parameter as a user would write it; for an array, its shape."""
    shape = getattr(value, "shape", ())
    if shape:
        return f"array of {' × '.join(f'{size:,}' for size in shape)} numbers"
    return short(repr(value), 80)


def count(n: int, noun: str) -> str:
    """A number with a noun in the singular or plural."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def listed(names: Iterable[str], most: int | None = None) -> str:
    """A list of names for a sentence: at most ``most``, then the number of the others."""
    names = list(names)
    if most is not None and len(names) > most:
        names = [*names[:most], f"{len(names) - most:,} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
