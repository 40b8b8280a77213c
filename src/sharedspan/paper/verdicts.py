"""Verdicts on the paper's claims: a rule is checked in every setting it applies to.

If all checks pass, the claim holds; if some pass, it holds under the conditions that are listed; if
none passes, it is not reproduced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sharedspan.paper.table import ResultTable

HOLDS, CONDITIONAL, NOT = "holds", "holds under a condition", "not reproduced"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the experiment that tests it, and our rule for accepting it."""

    letter: str
    says: str
    experiment: str
    rule: str


@dataclass(frozen=True)
class Check:
    """The result of a rule in one setting, with the figures that it is based on."""

    where: str
    passed: bool
    figures: str
    within: str = ""  # a part of ``where``, which several checks may share

    @property
    def place(self) -> str:
        return f"{self.where}, {self.within}" if self.within else self.where


Rule = Callable[[ResultTable], Iterable[Check | str]]  # checks, and texts on why they may fail


@dataclass(frozen=True)
class Verdict:
    """A claim with its checks, and the reason if one of them fails."""

    claim: Claim
    checks: list[Check]
    reason: str

    @property
    def outcome(self) -> str:
        passed = [check.passed for check in self.checks]
        return HOLDS if all(passed) else CONDITIONAL if any(passed) else NOT

    @property
    def summary(self) -> str:
        """The outcome, with the number of checks that passed unless all did."""
        passed = sum(check.passed for check in self.checks)
        checks = f" ({passed} of {len(self.checks)} checks)"
        return self.outcome + ("" if self.outcome == HOLDS else checks)

    def places(self, passed: bool) -> str:
        """The settings in which the claim holds, or does not; shared names appear once."""
        groups: dict[str, list[str]] = {}
        for check in self.checks:
            if check.passed == passed:
                groups.setdefault(check.where, []).append(check.within)
        return "; ".join(
            where + (f" ({' or '.join(within)})" if any(within) else "")
            for where, within in groups.items()
        )


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
            holds = all(check.passed for check in checks)
            verdicts.append(Verdict(claim, checks, "" if holds else reason))
    return verdicts


def power_check(where: str, table: ResultTable, by: str, target: float, tolerance: float) -> Check:
    """Whether the error's fitted power of a size is within ``tolerance`` of ``target``."""
    slope = table.exponent(by)
    return Check(where, slope.near(target, tolerance), f"{slope} for {target:+.0f}")


def median_ratios(
    table: ResultTable, measure: str, one: str, others: Iterable[str], by: str
) -> list[float]:
    """Ratios of one method's median over seeds to the other methods', for each value of ``by``."""
    return [
        rows.median(measure, method=one) / rows.median(measure, method=other)
        for _, rows in table.groups(by) for other in others
    ]  # fmt: skip
