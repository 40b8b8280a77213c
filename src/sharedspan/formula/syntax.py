"""The text of a formula as two trees, those of the response and of the terms.

Operators bind as in R: `^`, then the sign of a number, then `:`, `*` and `/`, `+` and `-`, and last
`|` and `||`, which stand between parentheses or in rr(). What a tree means is not known here. Texts
that are long, or nested deeply, are refused, so that none takes long.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from sharedspan.formula.advice import (
    ALIKE,
    KNOWN,
    MOST_SHOWN,
    USAGE,
    FormulaError,
    excerpt,
    no_such_function,
    odd_character,
    refusal,
)
from sharedspan.inputs.expressions import (
    DEEPEST,
    PLAIN_NAME,
    Call,
    Constant,
    Expression,
    Operation,
    Variable,
)

MOST_CHARACTERS = 10_000
TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    rf"|(?P<name>{PLAIN_NAME.pattern})"
    r"|`(?P<quoted>[^`\0]+)`"
    r"|(?P<sign>\|\||\*\*|[-+*/:^|~(),])"
)
LEVELS = (("*", "/"), (":",))  # of operators from the left
ENDS = (")", ",", "")


class Token(NamedTuple):
    """A word of a formula and where it begins."""

    kind: str  # "number", "name", "quoted", "sign" or "end"
    text: str
    start: int


def read_sides(text: str) -> tuple[Expression, Expression]:
    """The response and the terms of a formula, as trees; raises a FormulaError."""
    if not isinstance(text, str):
        raise TypeError(f"The formula is {text!r}: give a string such as 'y ~ x + (1 | group)'.")
    if len(text) > MOST_CHARACTERS:
        raise FormulaError(
            f"The formula has {len(text):,} characters, but at most {MOST_CHARACTERS:,} are read: "
            "write a shorter one."
        )
    if "~" not in text and (equal := re.match(r"([^~(=<>!]*)=(?!=)", text)):
        advice = "a formula has ~ between response and terms"
        raise refusal(equal[0], f"{advice}, so write {excerpt(equal[1])} ~")
    tokens = tokens_of(text)
    tildes = [i for i, token in enumerate(tokens) if token.text == "~" and token.kind == "sign"]
    if len(tildes) != 1:
        number = "no ~ stands" if not tildes else "one ~ stands"
        raise refusal(text, f"{number} between response and terms, so write y ~ x + (1 | group)")
    at, end = tildes[0], tokens[-1]
    left, right = tokens[:at], tokens[at + 1 : -1]
    if not left or not right:
        side = "before" if not left else "after"
        raise refusal(text, f"nothing is {side} ~, so write y ~ x + (1 | group)")
    return tuple(SideReader(text, [*part, end]).read() for part in (left, right))  # type: ignore[return-value]


def tokens_of(text: str) -> list[Token]:
    """The words of a formula, and an end."""
    tokens, at = list[Token](), 0
    while at < len(text):
        matched = TOKEN.match(text, at)
        if matched is None:
            raise odd_character(text[at : at + MOST_SHOWN])
        kind = str(matched.lastgroup)
        word = matched.group(kind)
        if kind != "space":
            tokens.append(Token(kind, "^" if word == "**" else word, at))
        at = matched.end()
    return [*tokens, Token("end", "", len(text))]


class SideReader:
    """Reads one side of a formula by precedence climbing."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text, self.tokens, self.at, self.level = text, tokens, 0, 0

    def read(self) -> Expression:
        """The tree of all words."""
        tree = self._bar()
        if self._sign() == ")":
            raise self._refused_before("the last parenthesis was not opened")
        if self._sign() == ",":
            raise self._refused_before("commas are only allowed between arguments, so write +")
        return tree

    # ---- operators, from those that bind loosely to those that bind tightly ----

    def _bar(self) -> Expression:
        start = self._token()
        tree = self._sum()
        bar = self._sign()
        if bar in ("|", "||"):
            if not self.level:
                raise self._refused(
                    "a random-effects term needs parentheses, as in (1 + x | group)", start
                )
            self.at += 1
            tree = self._made(start, bar, tree, self._sum())
            if self._sign() in ("|", "||"):
                raise self._refused(
                    "each random-effects term needs parentheses of its own, as in "
                    "(1 | a) + (1 | b)",
                    start,
                )
        return tree

    def _sum(self) -> Expression:
        start, operands = self._token(), list[Expression]()
        while not operands or self._sign() in ("+", "-"):
            sign = self._sign() if self._sign() in ("+", "-") else ""
            self.at += bool(sign)
            operand = self._product(0)
            operands.append(self._made(start, "-", operand) if sign == "-" else operand)
        return operands[0] if len(operands) == 1 else self._made(start, "+", *operands)

    def _product(self, level: int) -> Expression:
        if level == len(LEVELS):
            return self._power()
        start, tree = self._token(), self._product(level + 1)
        while (operator := self._sign()) in LEVELS[level]:
            self.at += 1
            tree = self._made(start, operator, tree, self._product(level + 1))
        return tree

    def _power(self) -> Expression:
        start = self._token()
        if self._sign() in ("+", "-"):
            sign = self._sign()
            self._enter(start)
            self.at += 1
            operand = self._power()
            self.level -= 1
            return self._made(start, "-", operand) if sign == "-" else operand
        tree = self._operand()
        if self._sign() == "^":
            self._enter(start)
            self.at += 1
            tree = self._made(start, "^", tree, self._power())
            self.level -= 1
        return tree

    def _operand(self) -> Expression:
        token = self._token()
        self.at += 1
        if token.kind == "number":
            value = float(token.text)
            if not math.isfinite(value):
                raise self._refused("the number is too large", token)
            tree: Expression = Constant(value)
        elif token.kind == "quoted":
            tree = Variable(token.text)
        elif token.kind == "name" and self._sign() == "(":
            tree = self._call(token)
        elif token.kind == "name":
            tree = self._variable(token)
        elif token.text == "(":
            self._enter(token)
            tree = self._bar()
            self.level -= 1
            self._close(token)
        else:
            self.at -= 1
            raise self._nothing(token)
        following = self._token()
        if following.kind not in ("sign", "end") or following.text == "(":
            missing = "write + or : there"
            after = self.tokens[self.at + 1]
            if self.level and following.kind != "sign" and after.text == ")":
                missing += f", or | if `{excerpt(following.text)}` is the column of groups"
            raise self._refused(
                f"an operator is missing before `{excerpt(following.text)}`, so {missing}", token
            )
        return tree

    def _variable(self, token: Token) -> Expression:
        if token.text == ".":
            raise self._refused(
                "`.` for all other columns, as in R, is not supported, so write names", token
            )
        if odd := [sign for sign in token.text if sign in ALIKE]:
            raise odd_character(token.text[token.text.index(odd[0]) :])
        if re.search(r"(^|\.)__", token.text):
            raise self._refused(
                "names do not begin with two underscores, so write the name of a column, in "
                "backquotes if it is this one",
                token,
            )
        return Variable(token.text)

    def _call(self, token: Token) -> Expression:
        if token.text not in KNOWN:
            raise no_such_function(token.text, self._place(token))
        self._enter(token)
        self.at += 1
        arguments = [self._bar()] if self._sign() != ")" else []
        while self._sign() == ",":
            self.at += 1
            arguments.append(self._bar())
        self._close(token)
        self.level -= 1
        fewest, most = KNOWN[token.text]
        if not fewest <= len(arguments) <= most:
            raise self._refused(f"write {USAGE[token.text]}", token)
        return self._made(token, token.text, *arguments)

    # ---- words and places ----

    def _token(self) -> Token:
        return self.tokens[self.at]

    def _sign(self) -> str:
        """The next word if it is a sign, otherwise nothing."""
        token = self.tokens[self.at]
        return token.text if token.kind == "sign" else ""

    def _enter(self, token: Token) -> None:
        self.level += 1
        if self.level > DEEPEST:
            raise self._too_deep(token)

    def _close(self, opened: Token) -> None:
        if self._sign() != ")":
            raise self._refused("its parenthesis is not closed, so write )", opened)
        self.at += 1

    def _made(self, start: Token, kind: str, *parts: Expression) -> Expression:
        """A function or an operator of parts."""
        if max(part.depth for part in parts) >= DEEPEST:
            raise self._too_deep(start)
        return Call(kind, parts) if kind in KNOWN else Operation(kind, parts)

    def _refused_before(self, problem: str) -> FormulaError:
        """The error for a word, quoted with the text before it."""
        end = self._token().start + 1
        return refusal(self.text[max(end - MOST_SHOWN // 2, 0) : end], problem)

    def _too_deep(self, token: Token) -> FormulaError:
        return self._refused(
            f"it is nested more than {DEEPEST} levels deep, so write a simpler one", token
        )

    def _nothing(self, token: Token) -> FormulaError:
        """The error for a place where a name or a number is expected."""
        before = self.tokens[self.at - 1] if self.at else None
        place = self.text[before.start if before else token.start : token.start + len(token.text)]
        where = "at the end" if token.kind == "end" else f"before `{token.text}`"
        return refusal(place, f"a name or a number is missing {where}")

    def _place(self, token: Token) -> str:
        """The text of the formula from a word on, up to the parenthesis that closes its first."""
        level = 0
        for at in range(token.start, min(token.start + MOST_SHOWN, len(self.text))):
            level += {"(": 1, ")": -1}.get(self.text[at], 0)
            if level <= 0 and self.text[at] == ")":
                return self.text[token.start : at + 1 + level]
        return self.text[token.start :]

    def _refused(self, problem: str, token: Token | None = None) -> FormulaError:
        return refusal(self._place(token or self._token()), problem)
