"""A small set of vector plots. Colours are classes, so that the page's style decides them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from sharedspan.diagnosis.text import number, short

WIDTH = 420  # in units of the drawing, about pixels on a phone
FONT = 13  # size of the text, as in the style
WIDE = {".": 0.34, "−": 0.86, "×": 0.86, "∞": 0.86}  # of the font size; others are like digits
CHUNK = 1500  # points drawn together: where chunks overlap it gets darker
COLOURS = ("blue", "green", "purple", "amber", "sky")


class Scale:
    """Values lo..hi to places start..end, linear or logarithmic, with ticks at round numbers."""

    def __init__(
        self, values: np.ndarray, start: float, end: float, *, log: bool = False, pad: float = 0.05
    ) -> None:
        values = np.asarray(values, dtype=float)
        values = values[np.isfinite(values)]
        self.log = log and values.size > 0 and bool(values.min() > 0)
        lo, hi = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
        if self.log:
            lo, hi = math.log10(lo), math.log10(hi)
        if hi - lo <= 1e-9 * max(abs(lo), abs(hi)):
            lo, hi = (lo - 0.1, hi + 0.1) if self.log or lo == 0 else (lo - 0.5, hi + 0.5)
        room = pad * (hi - lo)
        self.lo, self.hi, self.start, self.end = lo - room, hi + room, start, end

    def __call__(self, values: np.ndarray | float) -> np.ndarray:
        places = np.asarray(values, dtype=float)
        if self.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                places = np.log10(places)
        share = (places - self.lo) / (self.hi - self.lo)
        return np.asarray(self.start + share * (self.end - self.start))

    def ticks(self, most: int = 6) -> list[float]:
        """At most about so many round values within the scale."""
        if self.log and self.hi - self.lo > 0.9:
            return self._decades(most)
        lo, hi = (10**self.lo, 10**self.hi) if self.log else (self.lo, self.hi)
        step = 10.0 ** math.floor(math.log10((hi - lo) / most))
        step *= next(f for f in (1, 2, 2.5, 5, 10) if (hi - lo) / (f * step) <= most)
        first = math.ceil(lo / step - 1e-9)
        found = [step * i for i in range(first, math.floor(hi / step + 1e-9) + 1)]
        return [round(v, 12) if abs(v) < 1e3 else v for v in found] if step > 1e-9 else found

    def _decades(self, most: int) -> list[float]:
        powers = range(math.floor(self.lo), math.ceil(self.hi) + 1)
        for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            found = [m * 10.0**p for p in powers for m in steps]
            found = [v for v in found if self.lo <= math.log10(v) <= self.hi]
            if len(found) <= most + 1:
                return found
        return found[:: math.ceil(len(found) / most)]


class Plot:
    """Axes to draw on. Text is escaped here, and nothing else comes from the user."""

    def __init__(
        self, height: float, *, left: float = 58, right: float = 14, top: float = 14,
        bottom: float = 46, width: float = WIDTH,
    ) -> None:  # fmt: skip
        self.width, self.height = width, height
        self.left, self.right = left, width - right
        self.top, self.bottom = top, height - bottom
        self.parts: list[str] = []

    def x_scale(self, values: np.ndarray, *, log: bool = False, pad: float = 0.05) -> Scale:
        """A scale along the horizontal axis."""
        return Scale(values, self.left, self.right, log=log, pad=pad)

    def y_scale(self, values: np.ndarray, *, log: bool = False, pad: float = 0.05) -> Scale:
        """A scale along the vertical axis."""
        return Scale(values, self.bottom, self.top, log=log, pad=pad)

    def x_axis(self, scale: Scale, name: str, ticks: Sequence[float] | None = None) -> None:
        """Ticks, a grid and the name of the axis, below."""
        for value in scale.ticks() if ticks is None else ticks:
            x = float(scale(value))
            self.segment(x, self.top, x, self.bottom, "grid")
            self.text(x, self.bottom + 20, number_on_axis(value), "tick", anchor="middle")
        self.text((self.left + self.right) / 2, self.height - 6, name, "axis", anchor="middle")

    def y_axis(self, scale: Scale, name: str, ticks: Sequence[float] | None = None) -> None:
        """The same at the left; the name stands upright, along the axis.

        Comes before the horizontal scale is made: the left edge moves to where labels have room.
        """
        ticks = scale.ticks() if ticks is None else ticks
        labels = [number_on_axis(value) for value in ticks]
        self.left = 30 + max(map(_width, labels), default=0.0)
        for value, label in zip(ticks, labels, strict=True):
            y = float(scale(value))
            self.segment(self.left, y, self.right, y, "grid")
            self.text(self.left - 7, y + 4, label, "tick", anchor="end")
        middle = (self.top + self.bottom) / 2
        self.parts.append(
            f'<text class="axis" text-anchor="middle" transform="translate(13 {middle:.0f}) '
            f'rotate(-90)">{escape(short(name))}</text>'
        )

    def points(self, x: np.ndarray, y: np.ndarray, style: str = "blue") -> None:
        """Round points, as few elements: zero-length strokes with round ends."""
        for lo in range(0, len(x), CHUNK):
            steps = zip(x[lo : lo + CHUNK], y[lo : lo + CHUNK], strict=True)
            drawn = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in steps)
            size = "tiny" if len(x) > 5000 else "small" if len(x) > 500 else "large"
            self.parts.append(f'<path class="points {style} {size}" d="{drawn}"/>')

    def line(self, x: np.ndarray, y: np.ndarray, style: str = "blue") -> None:
        """A line through the points."""
        drawn = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))
        self.parts.append(f'<path class="line {style}" d="M{drawn}"/>')

    def segment(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        """A straight line."""
        self.parts.append(f'<path class="{style}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>')

    def circle(self, x: float, y: float, radius: float, style: str) -> None:
        """A circle."""
        self.parts.append(f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>')

    def bar(self, x: float, y: float, width: float, height: float, style: str) -> None:
        """A filled rectangle."""
        self.parts.append(
            f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" '
            f'height="{max(height, 0):.1f}"/>'
        )

    def text(
        self, x: float, y: float, text: str, style: str, *, anchor: str = "start", limit: int = 44
    ) -> None:
        """Text on one line."""
        self.parts.append(
            f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{escape(short(text, limit))}</text>"
        )

    def render(self, alternative: str) -> str:
        """The drawing, with what it shows in words."""
        return (
            f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'aria-label="{escape(alternative)}">{"".join(self.parts)}</svg>'
        )


def _width(text: str) -> float:
    """At most about so wide is a number on an axis, whatever the font."""
    return FONT * sum(WIDE.get(character, 0.64) for character in text)


def number_on_axis(value: float) -> str:
    """A round number without needless zeros."""
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e5:
        return f"{value:.6g}".replace("-", "−")
    text = number(value, 2)
    return text.replace(".0×", "×").removeprefix("1×")
