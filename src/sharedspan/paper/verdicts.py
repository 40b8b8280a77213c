"""Verdicts on the paper's claims: a rule is checked in every setting it applies to.

Three kinds of claims need three kinds of rules. An upper bound holds if what is measured grows no
faster than the bound, by its exponents and its constant; slower growth does not count against it.
An order of growth needs the exponent itself. Superiority needs a difference between methods on the
same rows, seed by seed, that is larger than chance and larger than two percent: the 95 percent
interval of the mean excludes equality, or all of at least five pairs agree.

Where neither method is better they are equal, or the comparison is undecided; neither is a pass.
If all checks pass, the claim holds; if some pass, it holds under the conditions that are listed; if
none passes, it is not reproduced. Checks outside the hypotheses of a theorem are shown but do not
count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sharedspan.paper.table import Exponent, ResultTable

HOLDS, CONDITIONAL, NOT = "holds", "holds under a condition", "not reproduced"
BOUND, ORDER, SUPERIORITY = "an upper bound", "an order of growth", "superiority"
EQUAL = 0.02  # a smaller difference does not count
EVEN, UNDECIDED = "equal", "undecided"
NEAR = 0.05  # methods are equal if the interval of their ratio is so near to 1
UNKNOWN = "an unknown multiple"  # of two counts that were both not reached
ENOUGH_PAIRS = 5  # that agree by chance in one case of 32


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, its kind, the experiment that tests it, and our rule for accepting it.

    ``hypotheses`` are what the paper assumes for it, and whether the experiment is within them.
    """

    letter: str
    says: str
    kind: str
    experiment: str
    hypotheses: str
    rule: str


@dataclass(frozen=True)
class Check:
    """The result of a rule in one setting, with the figures that it is based on."""

    where: str
    passed: bool
    figures: str
    within: str = ""  # a part of ``where``, which several checks may share
    outside: str = ""  # the hypothesis that is not met here
    otherwise: str = "no"  # the word if it did not pass; also EVEN or UNDECIDED

    @property
    def place(self) -> str:
        return f"{self.where}, {self.within}" if self.within else self.where

    @property
    def word(self) -> str:
        """Whether it passed, and whether that counts."""
        word = "yes" if self.passed else self.otherwise
        return word + (f" ({self.outside})" if self.outside else "")


OTHERWISE = {  # words of a check that did not pass, and what they say about its case
    EVEN: "the methods are equal",
    UNDECIDED: "the comparison is undecided",
    "no": "the claim does not hold",
}
Rule = Callable[[ResultTable], Iterable[Check | str]]  # checks, and sentences that explain them


@dataclass(frozen=True)
class Verdict:
    """A claim with its checks, and sentences that explain them."""

    claim: Claim
    checks: list[Check]
    reason: str

    @property
    def counted(self) -> list[Check]:
        """The checks within the hypotheses, or all if there are none."""
        return [check for check in self.checks if not check.outside] or self.checks

    @property
    def outcome(self) -> str:
        passed = [check.passed for check in self.counted]
        return HOLDS if all(passed) else CONDITIONAL if any(passed) else NOT

    @property
    def summary(self) -> str:
        """The outcome, with the number of checks that passed unless all did."""
        passed = sum(check.passed for check in self.counted)
        checks = f" ({passed} of {len(self.counted)} checks)"
        return self.outcome + ("" if self.outcome == HOLDS else checks)

    @property
    def otherwise(self) -> str:
        """What is the case where a check did not pass."""
        words = {check.otherwise for check in self.counted if not check.passed}
        *rest, last = [text for word, text in OTHERWISE.items() if word in words]
        comma = "," if len(rest) > 1 else ""
        return f"{', '.join(rest)}{comma} or {last}" if rest else last

    def places(self, passed: bool) -> str:
        """The settings in which the claim holds, or does not.

        Shared names appear once, and alone if all their checks have the same result.
        """
        groups: dict[str, list[Check]] = {}
        for check in self.counted:
            groups.setdefault(check.where, []).append(check)
        texts = []
        for where, checks in groups.items():
            within = [check.within for check in checks if check.passed == passed]
            if len(within) == len(checks):
                texts.append(where)
            elif within:
                texts.append(f"{where} ({', '.join(within)})")
        return "; ".join(texts)


def judge(rules: Mapping[Claim, Rule], tables: Mapping[str, ResultTable]) -> list[Verdict]:
    """Verdicts on the claims whose tables are given."""
    verdicts = []
    for claim, rule in rules.items():
        table = tables.get(claim.experiment)
        if table is None or not len(table):
            continue
        findings = list(rule(table))
        checks = [finding for finding in findings if isinstance(finding, Check)]
        reason = " ".join(finding for finding in findings if isinstance(finding, str))
        if checks:
            verdicts.append(Verdict(claim, checks, reason))
    return verdicts


def order_check(where: str, slope: Exponent, target: float, tolerance: float) -> Check:
    """Whether a fitted power is within ``tolerance`` of ``target``."""
    return Check(where, slope.near(target, tolerance), f"{slope}, expected {target:+.0f}")


def bound_check(
    where: str, slope: Exponent, bound: float, margin: float, within: str = ""
) -> Check:
    """Whether a fitted power is at most ``bound``, up to ``margin``."""
    text = f"{slope}, expected at most {bound:+.0f}"
    return Check(where, slope.value <= bound + margin, text, within)


@dataclass(frozen=True)
class PairedRatio:
    """The ratio of two methods on the same rows: geometric mean over seeds, 95 percent interval.

    ``unanimous`` is the sign of the difference if all of at least five pairs agree, else 0.
    ``capped`` says which counts were not reached within the budget, and so are larger: those of the
    first method ("own"), of the second ("other"), of "both", or "".
    """

    ratio: float
    low: float
    high: float
    unanimous: int = 0
    capped: str = ""

    @classmethod
    def of(cls, own: np.ndarray, other: np.ndarray) -> PairedRatio:
        """Of paired positive values; a single pair has an interval of no information."""
        from scipy.stats import t

        logs = np.log(own / other)
        mean, n = float(logs.mean()), len(logs)
        half = np.inf if n < 2 else float(t.ppf(0.975, n - 1) * logs.std(ddof=1) / np.sqrt(n))
        sign = int(np.sign(logs[0])) if n >= ENOUGH_PAIRS and len(set(np.sign(logs))) == 1 else 0
        ratio, low, high = (float(np.exp(x)) for x in (mean, mean - half, mean + half))
        return cls(ratio, low, high, sign)

    @property
    def less(self) -> bool:
        """Whether the first is smaller, by more than chance."""
        return (self.high < 1 or self.unanimous < 0) and self.ratio < 1 - EQUAL and not self._own

    @property
    def more(self) -> bool:
        """Whether the first is larger, by more than chance."""
        other = self.capped in ("other", "both")
        return (self.low > 1 or self.unanimous > 0) and self.ratio > 1 + EQUAL and not other

    @property
    def otherwise(self) -> str:
        """The word if the claimed difference is not there."""
        if self.less or self.more:
            return "no"
        near = self.low > 1 - NEAR and self.high < 1 + NEAR and not self.capped
        return EVEN if near else UNDECIDED

    @property
    def _own(self) -> bool:
        return self.capped in ("own", "both")

    @property
    def text(self) -> str:
        """The ratio, or the bound that counts which were not reached leave."""
        if self.capped == "both":
            return UNKNOWN
        return {"own": "at least ", "other": "at most "}.get(self.capped, "") + f"{self.ratio:.2f}"

    def __str__(self) -> str:
        return self.text if self.capped else f"{self.text} [{self.low:.2f}, {self.high:.2f}]"


def multiple(ratio: str) -> str:
    """The text of a ratio, to be followed by what it multiplies."""
    return f"{ratio} {'of' if ratio == UNKNOWN else 'times'}"


def paired_ratio(
    table: ResultTable, measure: str, own: str, others: Iterable[str], rival: str = ""
) -> PairedRatio:
    """A method against the best of others, pair by pair of cells (seed, N and T).

    ``rival`` is the measure of the others, if another one. A count that was not reached is at
    least the budget, and taken as that.
    """
    cells = [rows for _, rows in table.groups("seed", "N", "T")]
    best, capped = [], []
    for names, column in (((own,), measure), (tuple(others), rival or measure)):
        reached = [[row[column] for row in rows.where(method=names).rows if row[column] >= 0]
                   for rows in cells]  # fmt: skip
        best.append(np.array([min(values, default=rows.rows[0]["budget"])
                              for values, rows in zip(reached, cells, strict=True)]))  # fmt: skip
        capped.append(not all(reached))
    which = {(True, True): "both", (True, False): "own", (False, True): "other"}
    return replace(PairedRatio.of(*best), capped=which.get((capped[0], capped[1]), ""))
