"""The summary of a fitted model as plain data, and what it can be turned into.

A ``Summary`` holds numbers and text only. What a model does not have is None, or empty, and is left
out of everything that is printed. ``summary_sections`` has the order of the parts, which
``summary_text`` prints in 80 columns, and ``summary_markup`` writes as HTML, Markdown and LaTeX;
``summary_words`` makes a paragraph of them, and ``summary_frames`` makes frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A number with the bounds of its interval, which are None if there is no interval."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, eq=False)
class FixedTable:
    """Estimates of the f fixed effects, with their tests.

    Attributes
    ----------
    names : tuple of str
    estimate : ndarray of shape (f,)
    std_error, low, high : ndarray of shape (f,) or None
        Standard errors, and intervals of the level of the summary.
    degrees : ndarray of shape (f,) or None
        Degrees of freedom of t statistics; None if the statistics are z.
    statistic, p_value : ndarray of shape (f,) or None
    correlation : ndarray of shape (f, f) or None
        Of the estimates.
    """

    names: tuple[str, ...]
    estimate: np.ndarray
    std_error: np.ndarray | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    degrees: np.ndarray | None = None
    statistic: np.ndarray | None = None
    p_value: np.ndarray | None = None
    correlation: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class VarianceEntry:
    """Standard deviations and correlations of m effects that vary together between groups.

    Attributes
    ----------
    group : str
        What they vary between, such as the name of the task column.
    names : tuple of str
    std : ndarray of shape (m,)
    correlation : ndarray of shape (m, m) or None
        None for effects that are independent of each other.
    std_low, std_high : ndarray of shape (m,) or None
    correlation_low, correlation_high : ndarray of shape (m, m) or None
    note : str
        Anything else about their covariance, such as "rank 2".
    """

    group: str
    names: tuple[str, ...]
    std: np.ndarray
    correlation: np.ndarray | None = None
    std_low: np.ndarray | None = None
    std_high: np.ndarray | None = None
    correlation_low: np.ndarray | None = None
    correlation_high: np.ndarray | None = None
    note: str = ""

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Numbers of the effects of each correlation, row by row of the lower triangle."""
        if self.correlation is not None:
            yield from ((i, j) for i in range(1, len(self.names)) for j in range(i))

    def std_estimate(self, i: int) -> Estimate:
        """The standard deviation of an effect, with its interval."""
        return Estimate(float(self.std[i]), _at(self.std_low, i), _at(self.std_high, i))

    def correlation_estimate(self, i: int, j: int) -> Estimate:
        """The correlation of two effects, with its interval."""
        value = _at(self.correlation, (i, j))
        low, high = _at(self.correlation_low, (i, j)), _at(self.correlation_high, (i, j))
        return Estimate(np.nan if value is None else value, low, high)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Summary:
    """What a fitted model is, how well it fits and what it estimates; print it.

    Attributes
    ----------
    title : str
        What kind of model it is, such as "Linear mixed model".
    n_rows : int or None
    groups : tuple of (str, int)
        Name and number of the tasks, and of the groups of further levels.
    method : str
        "REML", "maximum likelihood", "maximum likelihood (Laplace approximation)", or empty.
    formula, call : str
        Either of them may be empty.
    family, link : str
    response : str
        Name of the response, for ``in_words``.
    facts : tuple of (str, str)
        Further lines of the head, such as ("Rank", "3, chosen by cross-validation").
    log_likelihood, aic, bic : float or None
    criterion : float or None
        -2 log L; for REML, the REML criterion at convergence.
    residual_degrees : int or None
    residual_quantiles : ndarray of shape (5,) or None
        Smallest, quartiles and largest of the scaled residuals.
    icc, r2_marginal, r2_conditional : float or None
    level : float
        Of all intervals.
    fixed : FixedTable or None
    fixed_title : str
        What the table of coefficients shows.
    variances : tuple of VarianceEntry
        Without the noise.
    sigma : Estimate or None
        Standard deviation of the noise.
    family_parameters : tuple of (str, Estimate)
        Such as the dispersion of a negative binomial family.
    span : tuple of str
        What the tasks share, in sentences.
    notes : tuple of str
        Sentences about convergence, singular fits and approximations.
    """

    title: str
    n_rows: int | None
    groups: tuple[tuple[str, int], ...] = ()
    method: str = ""
    formula: str = ""
    call: str = ""
    family: str = ""
    link: str = ""
    response: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    log_likelihood: float | None = None
    criterion: float | None = None
    aic: float | None = None
    bic: float | None = None
    residual_degrees: int | None = None
    residual_quantiles: np.ndarray | None = None
    icc: float | None = None
    r2_marginal: float | None = None
    r2_conditional: float | None = None
    level: float = 0.95
    fixed: FixedTable | None = None
    fixed_title: str = "Fixed effects"
    variances: tuple[VarianceEntry, ...] = ()
    sigma: Estimate | None = None
    family_parameters: tuple[tuple[str, Estimate], ...] = ()
    span: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        from sharedspan.inference.summary_text import summary_text

        return summary_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from sharedspan.inference.summary_markup import summary_html

        return summary_html(self)

    def to_markdown(self) -> str:
        """The summary as Markdown, with tables that GitHub and pandoc read."""
        from sharedspan.inference.summary_markup import summary_markdown

        return summary_markdown(self)

    def to_latex(self) -> str:
        r"""The summary as LaTeX that needs \\usepackage{booktabs}: paragraphs and tabulars."""
        from sharedspan.inference.summary_markup import summary_latex

        return summary_latex(self)

    def to_dict(self) -> dict[str, dict[str, float]]:
        """The fixed effects by name, as plain numbers."""
        from sharedspan.inference.summary_frames import FIXED_COLUMNS

        table = self.fixed
        if table is None:
            return {}
        columns = {
            name: vars(table)[name] for name in FIXED_COLUMNS if vars(table)[name] is not None
        }
        return {
            name: {column: float(values[i]) for column, values in columns.items()}
            for i, name in enumerate(table.names)
        }

    def in_words(self) -> str:
        """One paragraph that reports the model, to paste into a manuscript."""
        from sharedspan.inference.summary_words import summary_words

        return summary_words(self)

    def to_frame(self, part: str = "fixed") -> Any:
        """A part of the summary as a pandas frame, with all digits and all rows.

        Parameters
        ----------
        part : {"fixed", "variances", "fit"}
            The fixed effects, by name; standard deviations and correlations of the random effects,
            the noise and the family's parameters, one per row; or one row of what measures the fit.
        """
        from sharedspan.inference.summary_frames import summary_frame

        return summary_frame(self, part)


def _at(values: np.ndarray | None, index: Any) -> float | None:
    return None if values is None else float(values[index])
