"""What text in a table is: numbers, dates or categories, or something that the user must say.

Numbers and dates in another notation are recognised but not converted, because "1,234" is one
number in Zurich and another in London. What is recognised in all columns becomes one sentence that
says what to add.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from sharedspan.inputs.files import joined, shortened
from sharedspan.inputs.text_format import MINUS, SIGNS, TextFormat, is_number

NOTATIONS = (  # decimal and thousands marks, simple ones first
    (".", ""), (",", ""), (".", ","), (",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"),
)  # fmt: skip
DAYS = (
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d",
    "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
    "%d-%b-%Y", "%d-%b-%y",
)  # fmt: skip
TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
MONTHS = ("%Y-%m", "%Y/%m", "%m/%Y", "%m.%Y", "%b %Y", "%B %Y")
DATE_FORMS = (*(day + time for time in TIMES for day in DAYS), *MONTHS)
YEARS = (1800, 2200)  # of dates that are recognised
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?")
SIGNED = re.compile(rf"\s*(?P<before>{'|'.join(map(re.escape, SIGNS))})?.*?"
                    rf"(?P<after>{'|'.join(map(re.escape, SIGNS))})?\s*")  # fmt: skip
NUMERALS, UNIT = rf"\s*[-+{MINUS}]?\d[\d.,' \u00a0\u202f]*", r"(?P<unit>[^\W\d_][^\s\d]{0,9})\s*"
WITH_UNIT = re.compile(  # one letter at once only after decimals, because "12A" is a code
    rf"{NUMERALS}(?:\s|(?=[^\W\d_]{{2}})|(?<=[.,]\d)|(?<=[.,]\d\d)|(?<=[.,]\d\d\d)){UNIT}"
)
GROUPED = re.compile(rf"[-+{MINUS}]?[1-9]\d{{0,2}}(\.\d{{3}})+")  # whole numbers such as 1.234
POINT, COMMA = re.compile(r"-?\d{1,3}\.\d{3}"), re.compile(r"-?\d{1,3},\d{3}")
NEGATIVE = re.compile(r"\(\d[\d.,]*\)|\d[\d.,]*-")  # as accountants write them
LOOKS = (  # of levels that are hardly categories, and what to write instead
    ("times", re.compile(r"\d{1,2}:\d\d(:\d\d)?(?P<unit>)"), "as numbers, as in 14.5 for 14:30"),
    ("dates", re.compile(r"\d{1,4}([./ -]+(\d{1,2}|[^\W\d_]{3,9})\.?[./ -]+|[^\W\d_]{3})"
                         r"\d{2,4}(?P<unit>)"), "in ISO form, as in 2024-12-31"),
    ("numbers", re.compile(rf"[<>~≈±#]?\s?[-+{MINUS}]?\d+([.,]\d+)?\s?(?P<unit>[^\d\s]{{0,9}})"),
     "without anything else, as in 12.5"),
)  # fmt: skip
MOST_UNITS = 5  # among numbers that are taken for levels
SAMPLE = 1000  # different texts by which a notation is recognised
FEWEST_VALUES = 10  # different numbers or dates of a column that are not levels
MOST_WORDS = 5  # among numbers or dates that may mean a missing value


@dataclass
class Findings:
    """What the user should say about the columns of a table."""

    notation: dict[str, dict[str, str]] = field(default_factory=dict)  # examples by kind and column
    words: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)  # rows by column
    marks: dict[str, str] = field(default_factory=dict)  # decimal and thousands
    dates: dict[str, str] = field(default_factory=dict)  # forms by column
    na_values: list[str] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)  # columns that no option can read
    instead: list[str] = field(default_factory=list)  # what else may be meant
    drops_rows: bool = False  # whether rows without a value must be left out

    def __bool__(self) -> bool:
        return bool(self.notation or self.words)

    def add_notation(self, kind: str, name: str, example: str, where: str = "") -> None:
        """Add a column of numbers or dates in another notation, in all rows or ``where``."""
        self.notation.setdefault(kind, {})[name] = f"{example!r}{where}"

    def add_words(self, kind: str, name: str, words: Sequence[str], n_rows: int) -> None:
        """Add a column of numbers or dates with a few words among them."""
        listed = " or ".join(repr(shortened(word)) for word in words[:MOST_WORDS])
        if len(words) > MOST_WORDS:
            listed = f"text such as {words[0]!r}"
        self.words.setdefault((kind, listed), {})[name] = n_rows

    def about(self) -> str:
        """The columns and what they hold."""
        parts = []
        for kind, columns in self.notation.items():
            listed = joined([f"{name!r} ({example})" for name, example in columns.items()])
            holds = "holds" if len(columns) == 1 else "hold"
            parts.append(f"{listed} {holds} {kind}s in another notation")
        for (kind, words), rows in self.words.items():
            holds, where = "hold", "some rows"
            if len(rows) == 1:
                (n_rows,) = rows.values()
                holds, where = "holds", "1 row" if n_rows == 1 else f"{n_rows} rows"
            parts.append(f"{joined(list(map(repr, rows)))} {holds} {kind}s, but {words} in {where}")
        return ", and ".join(parts)

    def sentence(self, where: str) -> str:
        """One sentence that says what to add."""
        typed = [f"--{name} {shell(mark)}" for name, mark in self.marks.items()]
        typed += [f"--date {shell(f'{name}={form}')}" for name, form in self.dates.items()]
        typed += [f"--na-values {shell(word)}" for word in self.na_values]
        if self.drops_rows and self.na_values:
            typed += ["--missing drop"]
        typed += [f"--drop {shell(name)}" for name in self.drop]
        advice = "correct these, or add" if self.drop else "add"
        return (
            f"{where}: {self.about()}: {advice} {' '.join(typed)}, in Python {self.in_python()}"
            f"{''.join(self.instead)}."
        )

    def in_python(self) -> str:
        """The arguments to add in Python."""
        options = [f"{name}={mark!r}" for name, mark in self.marks.items()]
        for name in ("dates", "na_values"):
            options += [f"{name}={getattr(self, name)}"] if getattr(self, name) else []
        if self.drops_rows and self.na_values:
            options += ["missing='drop'"]
        parts = [f"columns=ss.Columns({', '.join(options)})"] if options else []
        return ", ".join([*parts, *([f"drop={self.drop}"] if self.drop else [])])


def shell(text: str) -> str:
    """Text as it is typed in a shell; marks in quotes, unlike those of the sentence."""
    return shlex.quote(text) if any(map(str.isalnum, text)) or text == "-" else _in_quotes(text)


def _in_quotes(text: str) -> str:
    return f'"{text}"' if "'" in text else f"'{text}'"


def recognise(
    columns: Mapping[str, Mapping[str, int]],
    text: TextFormat,
    *,
    target: str | None = None,
    drops_rows: bool = True,
) -> tuple[dict[str, str], TextFormat, Findings]:
    """Recognise what the columns of text contain.

    Parameters
    ----------
    columns : dict of {str: dict of {str: int}}
        The different texts of each column, or a sample of them, with their numbers of rows.
    text : TextFormat
        How numbers and missing values are written, as far as the user has said.
    target : str, optional
        The column to predict, which can neither be dropped nor hold categories.
    drops_rows : bool
        Whether the user must still say that rows without a value are left out.

    Returns
    -------
    kinds : dict of {str: str}
        "number", "date" or "text" for each column.
    text : TextFormat
        The same with the signs of units, such as "%", that all numbers of a column have.
    findings : Findings
        What the user must say, if anything.
    """
    findings, kinds = Findings(drops_rows=drops_rows), dict[str, str]()
    samples = {name: dict(islice(counts.items(), SAMPLE)) for name, counts in columns.items()}
    points = tuple(name for name, counts in columns.items() if has_decimal_points(counts, text))
    text = replace(text, points=points if text.decimal == "," else ())
    formats = {n: replace(text.of(n), signs=_sign(counts)) for n, counts in samples.items()}
    others = {name: counts for name, counts in samples.items() if name not in points}
    notation = _notation(others, formats, text)
    for name, counts in columns.items():
        given = formats[name]
        kind, words, form = _best(counts, given, None if name in points else notation)
        if kind == "text" and given.has_marks and _number_words(counts, TextFormat()) == []:
            raise ValueError(
                f"The column {name!r} holds numbers such as {next(iter(counts), '')!r}, which have "
                f"marks other than decimal={given.decimal!r} and thousands={given.thousands!r}: "
                f"write them alike, or leave the column out (--drop {shell(name)}, or drop= in "
                "Python)."
            )
        if mixture := _mixture(samples[name], kind, form):
            raise ValueError(
                f"The column {name!r} holds {mixture}: write them alike, or leave the column out "
                f"(--drop {shell(name)}, or drop= in Python)."
            )
        kinds[name] = kind
        if len(words) > MOST_WORDS and name == target:  # no option can help
            continue
        values = [value for value in samples[name] if value not in words]
        if len(words) <= MOST_WORDS and any(map(_is_value, words)):
            n_rows = sum(counts[word] for word in words)
            listed = " or ".join(repr(shortened(word)) for word in words)
            raise ValueError(
                f"The column {name!r} holds {kind}s such as {values[0]!r}, but {listed} in "
                f"{'1 row' if n_rows == 1 else f'{n_rows} rows'}: write them alike, and leave "
                f"missing ones empty{_or_leave_out(name, kind, target)}."
            )
        if words:
            findings.add_words(kind, name, words, sum(counts[word] for word in words))
        if words and name != target and kind == "number" and not findings.instead:
            findings.instead.append(
                f"; if {name!r} holds categories, add --categorical {shell(name)} instead"
            )
        if len(words) > MOST_WORDS:
            findings.drop.append(name)
            continue
        findings.na_values += [word for word in words if word not in findings.na_values]
        if form is not None and kind == "number":
            findings.marks |= {k: v for k, v in form.items() if v != getattr(given, k)}
            odd = [value for value in values if not given.reads(value)] or values
            where, n_rows = "", sum(counts[value] for value in odd)
            if len(odd) < len(values) and 2 * n_rows < sum(counts.values()):
                plain = next(value for value in values if value not in odd)
                rows = "1 row" if n_rows == 1 else f"{n_rows:,} rows"
                where = f" in {rows}, besides {plain!r}"
            findings.add_notation(kind, name, max(odd, key=lambda t: (len(t), t)), where)
        elif form is not None:
            _add_date(findings, name, values, form["form"])
    if findings.marks == {"thousands": ","} and all(
        replace(formats[name], decimal=",").reads(value)
        for name in findings.notation["number"]
        for value in samples[name]
    ):
        findings.instead.append("; if these are decimal commas, add --decimal ',' instead")
    if findings.marks.get("thousands") == ".":
        for name in findings.notation["number"]:
            if all(value.count(".") < 2 and "," not in value for value in samples[name]):
                findings.instead.append(f"; if {name!r} has decimal points, write commas instead")
    used = {
        sign for name, kind in kinds.items() if kind == "number" for sign in formats[name].signs
    }
    return kinds, replace(text, signs=tuple(sorted(used))), findings


def has_decimal_points(counts: Mapping[str, int], text: TextFormat) -> bool:
    """Whether texts are numbers with decimal points, as one of them cannot be grouped thousands.

    A group has three digits, and no number begins with 0.
    """
    plain = TextFormat(na_values=text.na_values, signs=_sign(counts))
    words = _number_words(counts, plain)
    if words is None or any(
        replace(plain, decimal=decimal, thousands=thousands).reads(word)
        for word in words
        for decimal, thousands in NOTATIONS
    ):
        return False
    bare = (plain.without_signs(value).strip() for value in counts if value not in words)
    return any("." in value and not GROUPED.fullmatch(value) for value in bare)


def look_of(levels: Sequence[str] | Mapping[str, int]) -> str | None:
    """What most levels look like, and how to write it, in words; None for names and codes."""
    for kind, form, advice in LOOKS:
        alike = [m for level in sorted(levels) if (m := form.fullmatch(level.strip()))]
        if 2 * len(alike) > len(levels) and len({m["unit"] for m in alike}) <= MOST_UNITS:
            return f"look like {kind}, such as {shortened(alike[0][0])!r}: write them {advice}"
    return None


def _is_value(word: str) -> bool:
    """Whether a text is a number, maybe with a unit, and thus does not mean a missing value."""
    return is_number(TextFormat(signs=_sign({word: 1})).without_signs(word))


def _or_leave_out(name: str, kind: str, target: str | None) -> str:
    """What else can be done about a column, as the end of a sentence."""
    if name == target:
        return ""
    other = f", add --categorical {shell(name)} if it holds categories" if kind == "number" else ""
    return f"{other}, or leave the column out (--drop {shell(name)}, or drop= in Python)"


def _mixture(sample: Mapping[str, int], kind: str, form: dict[str, Any] | None) -> str | None:
    """Values in two notations at once, in words, if a column holds them."""
    texts = [text.strip() for text in sample]
    if form is not None and form.get("thousands") == ",":
        points, commas = ([t for t in texts if p.fullmatch(t)] for p in (POINT, COMMA))
        if points and commas and len(points) + len(commas) == len(texts):
            return f"numbers with points and with commas, such as {points[0]!r} and {commas[0]!r}"
    if kind != "text" or not any(map(str.isdigit, "".join(texts[:20]))):
        return None
    plain = TextFormat()
    negative = [t for t in texts if NEGATIVE.fullmatch(t)]
    if negative and all(t in negative or plain.reads(t) for t in texts):
        return f"negative numbers such as {negative[0]!r}"
    iso = {t for t in texts if is_iso_date(t)}
    for other in DATE_FORMS if iso else ():
        if iso < set(texts) and all(t in iso or follows(t, other) for t in texts):
            example = next(t for t in texts if t not in iso)
            return f"dates in two forms, such as {min(iso)!r} and {example!r}"
    return None


def _sign(counts: Mapping[str, int]) -> tuple[str, ...]:
    """The sign of a unit, or its name after a space, that most texts have, if any."""
    found = [match["before"] or match["after"] for v in counts if (match := SIGNED.fullmatch(v))]
    found += [match["unit"] for v in counts if (match := WITH_UNIT.fullmatch(v))]
    signs = [sign for sign in found if sign]
    most = max(signs, key=signs.count, default="")
    return (most,) if 2 * signs.count(most) > len(counts) else ()


def _words(counts: Mapping[str, int], is_value: Callable[[str], bool]) -> list[str] | None:
    """The strings that are not values; None if they are too many for that.

    They are in less than half of the rows, or, in a column that may hold codes because there are
    few different values or more words, in less than a twentieth.
    """
    words = sorted(text for text in counts if not is_value(text))
    share = 2 if len(counts) - len(words) >= max(FEWEST_VALUES, len(words)) else 20
    n_rows = sum(counts[word] for word in words)
    return words if not words or share * n_rows < sum(counts.values()) else None


def _number_words(counts: Mapping[str, int], read: TextFormat) -> list[str] | None:
    if not read.signs:
        return _words(counts, read.reads)
    (sign,) = read.signs
    return _words(counts, lambda text: sign in text and read.reads(text))


def _notation(
    samples: Mapping[str, Mapping[str, int]], formats: Mapping[str, TextFormat], text: TextFormat
) -> dict[str, Any] | None:
    """The marks that read most columns as numbers; None if the given ones do."""

    def cost(marks: tuple[str, str]) -> int:
        total = 0
        for name, counts in samples.items():
            if _words(counts, is_iso_date) != []:
                read = replace(formats[name], decimal=marks[0], thousands=marks[1])
                words = _number_words(counts, read)
                total += SAMPLE if words is None else len(words)
        return total

    allowed = [
        (decimal, thousands)
        for decimal, thousands in NOTATIONS
        if text.decimal in (".", decimal) and text.thousands in ("", thousands)
    ]
    costs = {marks: cost(marks) for marks in ((text.decimal, text.thousands), *allowed)}
    best = min(costs, key=lambda marks: costs[marks])
    if best == (",", "") and costs.get((".", ",")) == costs[best]:
        best = (".", ",")  # all commas are before groups of three digits
    given = (text.decimal, text.thousands)
    if costs[best] == costs[given]:
        return None
    return {"decimal": best[0], "thousands": best[1]}


def _best(
    counts: Mapping[str, int], given: TextFormat, notation: dict[str, Any] | None
) -> tuple[str, list[str], dict[str, Any] | None]:
    """The kind of a column, the words among its values, and what must be said of its notation."""
    found: list[tuple[str, list[str] | None, dict[str, Any] | None]] = [
        ("number", _number_words(counts, given), None),
        ("date", _words(counts, is_iso_date), None),
    ]
    if notation is not None:
        found.append(("number", _number_words(counts, replace(given, **notation)), notation))
    known = [(kind, words, form) for kind, words, form in found if words is not None]
    sample = dict(islice(counts.items(), SAMPLE))
    has_digits = 2 * sum(any(map(str.isdigit, value)) for value in sample) > len(sample)
    if has_digits and all(words for _, words, _ in known):
        for form in DATE_FORMS:
            if _words(sample, partial(follows, form=form)) is not None:
                words = _words(counts, partial(follows, form=form))
                if words is not None:
                    known.append(("date", words, {"form": form}))
    return min(known, key=lambda one: len(one[1]), default=("text", [], None))


def _add_date(findings: Findings, name: str, values: Sequence[str], form: str) -> None:
    findings.dates[name] = form
    findings.add_notation("date", name, max(values))
    other = form.translate(str.maketrans("dm", "md"))
    if other in DATE_FORMS and all(follows(value, other) for value in values):
        first = "month" if form.index("%d") < form.index("%m") else "day"
        findings.instead.append(
            f"; if the {first} comes first, --date {shell(f'{name}={other}')} instead"
        )


def is_iso_date(text: str) -> bool:
    """Whether a text is a date in ISO form."""
    if not ISO_DATE.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def follows(text: str, form: str) -> bool:
    """Whether a text is a date of this form."""
    try:
        year = datetime.strptime(text.strip(), form).year
    except ValueError:
        return False
    return YEARS[0] <= year <= YEARS[1]
