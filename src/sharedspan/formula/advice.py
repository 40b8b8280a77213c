"""What to write instead of what formulas do not have: habits from R and from Python."""

from __future__ import annotations

from sharedspan.inputs.files import nearest, shortened

MOST_SHOWN = 40  # characters of a formula in a message
# The functions of a formula, with their numbers of arguments.
KNOWN = {"I": (1, 1), "log": (1, 1), "exp": (1, 1), "sqrt": (1, 1), "factor": (1, 1),
         "offset": (1, 1), "cbind": (2, 2), "s": (1, 2), "rr": (1, 2)}  # fmt: skip
USAGE = {
    "I": "I(x^2)", "log": "log(x), or I(log(x) / log(2)) for another base", "exp": "exp(x)",
    "sqrt": "sqrt(x)",
    "factor": "factor(x), and give the order of levels or the reference level by ss.Columns",
    "offset": "offset(log(x))", "cbind": "cbind(successes, failures)",
    "s": "s(x), or s(x, 8) for eight knots",
    "rr": "rr(1 + x | group), or rr(1 + x | group, 2) for rank 2",
}  # fmt: skip
_AS_SPLINE = "write s(x) for a smooth curve of x"
_BY_HAND = "make a column of it in the table, and write its name"
_NO_STRUCTURE = (
    "covariances are unrestricted, (1 + x | group), independent, (1 + x || group), or of low rank, "
    "rr(1 + x | group, 2)"
)
FOREIGN = {
    "poly": "write x + I(x^2), or s(x) for a smooth curve",
    "scale": "write x, as coefficients are in the units of the columns and scaling is done inside",
    "center": "write I(x - 5), and replace 5 by the centre",
    "as.factor": "write factor(x)", "C": "write factor(x)", "as.character": "write factor(x)",
    "as.numeric": "write x, as numeric columns are used as they are",
    "ordered": "write x, and give the order of its levels by ss.Columns(ordinal={'x': [...]})",
    "relevel": "write x, and give its reference level by ss.Columns(reference={'x': 'level'})",
    "log10": "write I(log(x) / log(10))", "log2": "write I(log(x) / log(2))",
    "log1p": "write log(x + 1)", "expm1": "write I(exp(x) - 1)", "pow": "write I(x^2)",
    "square": "write I(x^2)", "Q": "write the name of the column in backquotes: `name`",
    **dict.fromkeys(("ns", "bs", "lo", "smooth"), _AS_SPLINE),
    **dict.fromkeys(("te", "ti", "t2"), "write s(x) + s(z), a smooth curve for each column"),
    **dict.fromkeys(("abs", "sin", "cos", "cut", "ifelse", "round", "lag"), _BY_HAND),
    "diag": "write (1 + x || group)",
    "us": "write (1 + x | group)",
    **dict.fromkeys(("cs", "ar1", "ou", "toep", "mat", "gau"), _NO_STRUCTURE),
}  # fmt: skip
_NO_QUOTES = "names are written without quotes, or in backquotes if they have spaces, as in `name`"
_COMPARED = "comparisons are made in the table, so make a column of 0 and 1, and write its name"
_NAME_ALONE = "a name refers to a whole column of the table, so write only the name"
SIGNS = {
    **dict.fromkeys(("'", '"'), _NO_QUOTES),
    **dict.fromkeys(("==", "<", ">", "!", "&"), _COMPARED),
    **dict.fromkeys(("[", "$", "@"), _NAME_ALONE),
    "=": "arguments have no names, so write s(x, 8) or rr(1 + x | group, 2)",
    "%": "write a:b for `b %in% a`, and make columns of other results in the table",
    "`": "a name in backquotes ends with one too, so write `name`",
}
# Signs that look like those of a formula, as word processors and web pages write them.
ALIKE = {
    "∼": "~", "˜": "~", "～": "~", "−": "-", "–": "-", "—": "-", "‐": "-", "×": "*", "∗": "*",
    "·": ":", "：": ":", "＋": "+", "｜": "|", "∣": "|", "‖": "||", "∥": "||", "（": "(", "）": ")",
    "‘": "`", "’": "`", "“": "`", "”": "`", "，": ",", "÷": "/", "⁄": "/", "²": "^2", "³": "^3",
}  # fmt: skip


class FormulaError(ValueError):
    """A formula that cannot be used, in a sentence that says what to write."""


def refusal(place: str, advice: str) -> FormulaError:
    """The error for a place in a formula, and what to do about it."""
    return FormulaError(f"The formula has `{excerpt(place)}`: {advice}.")


def excerpt(text: str) -> str:
    """A part of a formula in a message: in one line, not too long, and printable."""
    text = shortened(" ".join(text.split()), MOST_SHOWN)
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def no_such_function(name: str, place: str) -> FormulaError:
    """The error for a function that formulas do not have; the place is its call."""
    if name in FOREIGN:
        return refusal(place, FOREIGN[name])
    package, point, last = name.rpartition(".")
    if point and last in KNOWN:
        return refusal(place, f"functions are written without {package!r}, so write {last}(x)")
    known = ", ".join(KNOWN)
    error = refusal(
        place, f"the functions of formulas are {known}: compute others as columns of the table"
    )
    return FormulaError(f"{error}{nearest(name[:MOST_SHOWN], KNOWN)}")


def odd_character(place: str) -> FormulaError:
    """The error for a place that begins with a character that formulas do not have."""
    sign = place[0]
    if sign in ALIKE:
        return refusal(
            place, f"{sign!r} only looks like a sign of formulas, so write {ALIKE[sign]}"
        )
    if advice := SIGNS.get(place[:2], SIGNS.get(sign)):
        return refusal(place, advice)
    return refusal(
        place,
        f"{sign!a} has no meaning in formulas, so write names, numbers, parentheses and "
        "+ - * / : ^ | ||",
    )
