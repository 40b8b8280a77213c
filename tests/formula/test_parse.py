"""Formulas are read as R reads them, and a text that is none can only be refused."""

import random
import string
from contextlib import suppress

import pytest

from sharedspan.formula.advice import FormulaError
from sharedspan.formula.parse import parse_formula
from sharedspan.formula.terms import Bar, Term
from sharedspan.inputs.expressions import Call, Constant, Operation, Variable

VALID = [
    "y ~ x",
    "y ~ 1 + (1 | g)",
    "math ~ ses * sex + s(age) + offset(log(size)) + (1 + ses | school)",
    "cbind(incidence, size - incidence) ~ factor(period) + (1 | herd)",
    "log(y) ~ I(x^2) + I(-x * 2 + y/3 - (a + b)^2 * 4) + exp(-t/10) + (x || g)",
    "y ~ (a + b + c)^2 - a:b + rr(0 + a + b | g, 2) + rr(1 + a + b | h)",
    "`blood pressure` ~ `x y` * .hidden + z.1 + (1 | a/b) + (1 | `my group`:h)",
    "y ~ 0 + s(x, 8) + sqrt(z) + b/x + (0 + x + factor(k) | a:b)",
    "y ~ x - 1 + offset(t) + offset(log(size + 1.5e-3))",
]


def terms(text):
    return [str(term) for term in parse_formula(f"y ~ {text}").terms]


@pytest.mark.parametrize("text", VALID)
def test_the_canonical_text_of_a_formula_means_the_same(text):
    formula = parse_formula(text)
    assert parse_formula(str(formula)) == formula
    assert str(parse_formula(str(formula))) == str(formula)
    assert formula.text == text


# The terms are those of attr(terms(formula), "term.labels") in R.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a * b", ["a", "b", "a:b"]),
        ("a * b * x - a:b:x", ["a", "b", "x", "a:b", "a:x", "b:x"]),
        ("(a + b + c)^2", ["a", "b", "c", "a:b", "a:c", "b:c"]),
        ("(a + b + c)^99", ["a", "b", "c", "a:b", "a:c", "b:c", "a:b:c"]),
        ("(a + b)**2", ["a", "b", "a:b"]),
        ("a / b", ["a", "a:b"]),
        ("(a + b) / x", ["a", "b", "a:b:x"]),
        ("b:a + a + x:b", ["a", "b:a", "b:x"]),
        ("a:b + b:a + a:a", ["a", "a:b"]),
        ("a + b - a", ["b"]),
        ("a:b + a", ["a", "a:b"]),
        ("I(x^2) + log(x + 1):a", ["I(x^2)", "log(x + 1):a"]),
    ],
)  # fmt: skip
def test_products_of_terms_are_expanded_as_in_r(text, expected):
    assert terms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("x", True), ("0 + x", False), ("x - 1", False), ("x + 0", False), ("0 + x + 1", True),
     ("-1 + x", False), ("1", True), ("0", False), ("x - 0", True)],
)  # fmt: skip
def test_zero_and_one_are_the_intercept(text, expected):
    assert parse_formula(f"y ~ {text}").intercept is expected


def test_bars_are_effects_of_groups():
    x, z = Term((Variable("x"),)), Term((Variable("z"),))
    expected = {
        "(1 + x | g)": [Bar(("g",), True, (x,))],
        "(x | g)": [Bar(("g",), True, (x,))],
        "(0 + x | g)": [Bar(("g",), False, (x,))],
        "(x - 1 | g)": [Bar(("g",), False, (x,))],
        "(1 + x || g)": [Bar(("g",), True, (x,), "diagonal")],
        "(1 | a/b)": [Bar(("a",), True, ()), Bar(("a", "b"), True, ())],
        "(1 | a/b/c)": [Bar(("a",), True, ()), Bar(("a", "b"), True, ()),
                        Bar(("a", "b", "c"), True, ())],
        "(1 | a:b)": [Bar(("a", "b"), True, ())],
        "(1 | factor(g))": [Bar(("g",), True, ())],
        "rr(1 + x | g, 2)": [Bar(("g",), True, (x,), "low_rank", 2)],
        "rr(0 + x + z | g)": [Bar(("g",), False, (x, z), "low_rank")],
    }  # fmt: skip
    for text, bars in expected.items():
        formula = parse_formula(f"y ~ z + {text}")
        assert list(formula.bars) == bars, text
        assert formula.terms == (z,)


def test_terms_are_equal_in_any_order_of_their_factors():
    x, z = Variable("x"), Variable("z")
    assert Term((x, z)) == Term((z, x))
    assert len({Term((x, z)), Term((z, x)), Term((x,))}) == 2


def test_operators_bind_as_in_r():
    (term,) = parse_formula("y ~ I(-a^2 * b + c/d/2^3^2)").terms
    a, b, c, d = map(Variable, "abcd")
    power = Operation("^", (Constant(2.0), Operation("^", (Constant(3.0), Constant(2.0)))))
    square = Operation("^", (a, Constant(2.0)))
    negative = Operation("-", (Operation("*", (square, b)),))
    quotient = Operation("/", (Operation("/", (c, d)), power))
    assert term.factors == (Call("I", (Operation("+", (negative, quotient)),)),)


# What is quoted, and what to write.
REFUSED = {
    "y ~ .": ("`.`", "write names"),
    "y ~ np.log(x)": (r"`np.log\(x\)`", r"write log\(x\)"),
    "y ~ poly(x, 2) + z": (r"`poly\(x, 2\)`", r"I\(x\^2\), or s\(x\)"),
    "y ~ scale(x)": (r"`scale\(x\)`", "write x"),
    "y ~ as.factor(x)": (r"`as.factor\(x\)`", r"write factor\(x\)"),
    "y ~ C(x)": (r"`C\(x\)`", r"write factor\(x\)"),
    "y ~ ns(x, 3)": (r"`ns\(x, 3\)`", r"write s\(x\)"),
    "y ~ log10(x)": (r"`log10\(x\)`", r"I\(log\(x\) / log\(10\)\)"),
    "y ~ x %in% z": ("`%in% z`", "write a:b"),
    "y ~ x^2": (r"`x\^2`", r"write I\(x\^2\)"),
    "y ~ 2 * x": ("`2`", r"other numbers belong in I\(\)"),
    "y ~ x + 1 | g": (r"`x \+ 1 \| g`", "parentheses"),
    "y ~ lgo(x)": (r"`lgo\(x\)`", "Did you mean 'log'"),
    "y ~ s(x, k = 8)": ("`= 8", r"write s\(x, 8\)"),
    "y ~ s(log(x))": (r"`s\(log\(x\)\)`", r"s\(x\)"),
    "y ~ s(x):z": (r"`s\(x\):z`", "cannot be part of a product"),
    "y ~ s(x, 2)": (r"`s\(x, 2\)`", "at least 3"),
    "y ~ (s(x) | g)": (r"`\(s\(x\) \| g\)`", "splines"),
    "y ~ x > 1": ("`> 1`", "make a column"),
    "y ~ x == 1": ("`== 1`", "make a column"),
    "y ~ 'x'": ("`'x'`", "backquotes"),
    "y ~ data$x": (r"`\$x`", "write only the name"),
    "y ~ x z": ("`x z`", "an operator is missing before `z`"),
    "y ~ a:(1 | g)": (r"`a:\(1 \| g\)`|`a:1 \| g`", r"can only be added by \+"),
    "y ~ (1 | a + b)": (r"`\(1 \| a \+ b\)`", "further ones need terms of their own"),
    "y ~ (1 | a | b)": (r"`1 \| a \| b`", r"\(1 \| a\) \+ \(1 \| b\)"),
    "y ~ (0 | g)": (r"`\(0 \| g\)`", "leave it out"),
    "y ~ rr(1 + x || g)": ("rr", r"rr\(1 \+ x \| group"),
    "y ~ diag(1 + x | g)": (r"`diag\(1 \+ x \| g\)`", r"\(1 \+ x \|\| group\)"),
    "y ~ log(factor(x))": (r"`log\(factor\(x\)\)`", "takes columns"),
    "y ~ I(2)": (r"`I\(2\)`", "no column"),
    "y ~ cbind(a, b)": (r"`cbind\(a, b\)`", "before ~"),
    "cbind(a) ~ x": (r"`cbind\(a\)`", "successes, failures"),
    "y ~ x +": (r"`\+`", "missing at the end"),
    "y ~ (a + b": (r"`\(a \+ b`", "not closed"),
    "y ~ a) + b": (r"a\)`", "the last parenthesis was not opened"),
    "y ~ a, b": ("a,`", r"write \+"),
    "y ~": ("`y ~`", "nothing is after ~"),
    "~ x": ("`~ x`", "nothing is before ~"),
    "y": ("`y`", "no ~"),
    "y ~ x ~ z": ("`y ~ x ~ z`", "one ~"),
    "y ∼ x": ("`∼ x`", "write ~"),
    "y ~ a − b": ("`− b`", "write -"),
    "y ~ x²": ("`²`", r"write \^2"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_refusal_quotes_the_place_and_says_what_to_write(text):
    place, advice = REFUSED[text]
    with pytest.raises(FormulaError, match=place) as refused:
        parse_formula(text)
    assert refused.match(advice)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 250


HOSTILE = [
    "y ~ __import__('os').system('ls')",
    "y ~ x.__class__.__bases__",
    "y ~ ().__class__",
    "y ~ eval(x)",
    "y ~ open(`/etc/passwd`)",
    "y ~ log.__call__(x)",
    "y ~ getattr(x, y)",
    "y ~ I(lambda: 0)",
    "y ~ x; DROP TABLE frame",
    "y ~ x # comment",
    "y ~ x\0",
    "y ~ `a\0b`",
    "y ~ x\\",
    "y ~ {x}",
    "y ~ x[0]",
    "y ~ x @ z",
    "y ~ $(ls)",
    "y ~ ｌｏｇ(x)",
    "y ~ x\u202e",
    "y ~ 1e999",
    "y ~ " + "9" * 5000 + "*x",
    "y ~ " + "(" * 4000 + "x" + ")" * 4000,
    "y ~ " + "(" * 10**6,
    "y ~ " + "-" * 9000 + "x",
    "y ~ a" + "^a" * 4000,
    "y ~ a" + ":a" * 4000,
    "y ~ I(x" + " * x" * 2000 + ")",
    "y ~ " + "log(" * 2000 + "x" + ")" * 2000,
    "y ~ (" + " + ".join(f"a{i}" for i in range(900)) + ")^99",
    "y ~ (" + " + ".join("abcdefghi") + ")^9 * (" + " + ".join("abcdefghi") + ")^9",
    "y ~ " + " * ".join(f"a{i}" for i in range(50)),
    "y ~ " + " + ".join(f"a{i}" for i in range(2000)),
    "x" * 10**7,
    "",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_text_is_refused_in_one_line(text):
    with pytest.raises(FormulaError) as refused:
        parse_formula(text)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 250
    assert str(refused.value).isprintable()


def test_what_is_no_text_is_refused():
    with pytest.raises(TypeError, match=r"give a string such as 'y ~ x"):
        parse_formula(["y ~ x"])


def mutated(text, rng):
    """A text with a few random changes."""
    signs = string.printable + "∼×²|‖`~()+-*/:^.,01\0é"
    for _ in range(rng.randint(1, 6)):
        at, end = sorted(rng.randint(0, len(text)) for _ in range(2))
        change = rng.randrange(4)
        if change == 0:
            text = text[:at] + text[end:]
        elif change == 1:
            text = text[:at] + rng.choice(signs) + text[at:]
        elif change == 2:
            text = text[:end] + text[at:end] + text[end:]
        else:
            other = rng.choice(VALID)
            text = text[:at] + other[rng.randint(0, len(other)) :]
    return text


def test_any_change_of_a_formula_gives_a_formula_or_a_refusal():
    rng, n_read = random.Random(0), 0
    for _ in range(2000):
        text = mutated(rng.choice(VALID), rng)
        with suppress(FormulaError):
            formula = parse_formula(text)
            n_read += 1
            assert parse_formula(str(formula)) == formula, text
    assert 50 < n_read < 1950
