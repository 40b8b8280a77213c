"""How the columns of a table become features: what users say about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CODINGS = ("reference", "sum")
MISSING = ("error", "drop", "indicator")
UNSEEN = ("mean", "error")
PERIODS = ("year", "week", "day")
NO_LEVEL = "(missing)"
OTHER = "(other)"


@dataclass(frozen=True)
class Columns:
    """How the columns of a table become features; what is learned is stored with the model.

    Numbers and booleans are taken as they are. Text and categorical columns become factors: zeros
    and ones, one column for each level but one. Dates become days since 1970. Text that reads as
    numbers, or as dates in ISO form, counts as such.

    Parameters
    ----------
    categorical : list of str, optional
        Numeric columns, such as codes, that are categories.
    ordinal : dict of {str: list of str}, optional
        Levels of a column in their order; it becomes one feature, 0 for the first level, 1 for the
        second and so on.
    coding : {"reference", "sum"}, default="reference"
        Coefficients of levels are differences from the reference level, or, with "sum", from the
        mean over levels (the last level is then minus the sum of the others).
    reference : dict of {str: str}, optional
        The reference level of factors; by default the first, in alphabetical order, or in numerical
        order for numbers.
    rare : int, default=5
        Levels with fewer rows are pooled into one, "(other)", if there are at least two such levels
        and a level that is not. 0 pools none.
    unseen : {"mean", "error"}, default="mean"
        Prediction for a level that was not fitted: by "(other)" if there is such a level, otherwise
        by the mean over the fitted rows, with a warning; or an error.
    dates : dict of {str: str}, optional
        Formats of dates that are not in ISO form, such as ``{"sold": "%d.%m.%Y"}``.
    season : list of str, or dict of {str: str or list of str}, optional
        Dates with a periodic effect besides their trend: a period of a "year" (the default), a
        "week" or a "day", in sines and cosines.
    spline : list of str, or "all", optional
        Numeric and date columns with a nonlinear effect, as natural cubic splines; "all" for those
        with at least four distinct values.
    knots : int, default=10
        Knots of each spline, at quantiles of the distinct values.
    interactions : list of (str, str), optional
        Pairs of columns whose products are features, too.
    missing : {"error", "drop", "indicator"}, default="error"
        Rows that lack a value: an error, left out, or filled in. "indicator" fills in the mean of
        numbers and dates and adds a feature that is 1 where the value is missing; for factors
        "(missing)" is a level. Rows without task or target are left out by "indicator", too.
    na_values : list of str, optional
        Strings that mean a missing value, such as "unknown" or "-999".
    decimal : {".", ","}, default="."
        The decimal mark of numbers that are text.
    thousands : str, default=""
        The mark between thousands of numbers that are text, such as "," or ".".

    Examples
    --------
    >>> import sharedspan as ss
    >>> columns = ss.Columns(reference={"gender": "mixed"}, missing="indicator")
    >>> model = ss.AdaptiveSpanRegressor(columns=columns)
    """

    categorical: Any = ()
    ordinal: Any = field(default_factory=dict)
    coding: str = "reference"
    reference: Any = field(default_factory=dict)
    rare: int = 5
    unseen: str = "mean"
    dates: Any = field(default_factory=dict)
    season: Any = ()
    spline: Any = ()
    knots: int = 10
    interactions: Any = ()
    missing: str = "error"
    na_values: Any = ()
    decimal: str = "."
    thousands: str = ""

    def __post_init__(self) -> None:
        choices = {"coding": CODINGS, "missing": MISSING, "unseen": UNSEEN, "decimal": (".", ",")}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                listed = ", ".join(map(repr, known))
                raise ValueError(
                    f"Columns({name}={getattr(self, name)!r}) is unknown: use {listed}."
                )
        for name in ("categorical", "na_values"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        for name in ("ordinal", "reference", "dates"):
            if not isinstance(getattr(self, name), Mapping):
                raise TypeError(
                    f"Columns({name}={getattr(self, name)!r}) must be a dict by names of columns."
                )
            object.__setattr__(self, name, dict(getattr(self, name)))
        as_text = {
            "ordinal": {name: list(map(level_text, v)) for name, v in self.ordinal.items()},
            "reference": {name: level_text(level) for name, level in self.reference.items()},
            "na_values": tuple(map(level_text, self.na_values)),
        }
        for name, value in as_text.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "season", _periods(self.season))
        if self.spline != "all":
            given = (self.spline,) if isinstance(self.spline, str) else tuple(self.spline)
            object.__setattr__(self, "spline", given)
        object.__setattr__(self, "interactions", tuple(map(tuple, self.interactions)))
        if any(len(pair) != 2 or pair[0] == pair[1] for pair in self.interactions):
            raise ValueError(
                f"Columns(interactions={self.interactions!r}) must be pairs of different columns."
            )
        for name, smallest in (("rare", 0), ("knots", 3)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
                raise ValueError(
                    f"Columns({name}={value!r}) must be an integer of at least {smallest}."
                )
        if self.thousands == self.decimal or self.thousands.isalnum() or len(self.thousands) > 1:
            raise ValueError(
                f"Columns(thousands={self.thousands!r}) must be one character that is neither a "
                "digit nor the decimal mark."
            )

    def named(self) -> list[tuple[str, str]]:
        """The columns that are named, each with the parameter that names it."""
        by_name: dict[str, Iterable[Any]] = {
            "categorical": self.categorical, "ordinal": self.ordinal, "reference": self.reference,
            "dates": self.dates, "season": self.season,
            "spline": () if self.spline == "all" else self.spline,
            "interactions": (name for pair in self.interactions for name in pair),
        }  # fmt: skip
        return [(name, part) for part, names in by_name.items() for name in names]


def level_text(level: Any) -> str:
    """The text of a level or a number, as DuckDB has it."""
    if isinstance(level, (bool, np.bool_)):
        return str(bool(level)).lower()
    if isinstance(level, (float, np.floating)) and float(level).is_integer():
        return str(int(level))
    return str(level)


def _periods(season: Any) -> dict[str, tuple[str, ...]]:
    """The periods of each column with a season."""
    if isinstance(season, str):
        season = [season]
    if not isinstance(season, Mapping):
        season = dict.fromkeys(season, "year")
    periods = {
        name: (given,) if isinstance(given, str) else tuple(given)
        for name, given in season.items()
    }  # fmt: skip
    for name, given in periods.items():
        if not given or not set(given) <= set(PERIODS):
            raise ValueError(
                f"Columns(season={{{name!r}: {given!r}}}) is unknown: use "
                f"{', '.join(map(repr, PERIODS))}."
            )
    return periods
