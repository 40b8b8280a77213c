"""Residuals that are uniform between 0 and 1 if the model is right, for responses of any family.

The residual of a row is the probability of a response below the observed one. For a discrete
response it is a random number within the step of its probability (Dunn and Smyth, 1996). The
probability is that of the model at one draw of all its coefficients and its noise variance from
their posterior distribution (``mixed_model/draws.py``). A residual at estimates is too close to
1/2, since the estimates were made to fit the same responses; but a draw from the posterior, seen
together with the responses, is distributed as the true numbers are. So the residuals of a right
model are independent and uniform, without a correction for the number of estimates (Johnson, 2004;
for realised residuals at draws see Gelman and others, 2000), and any test of uniform numbers is
valid. It is also why residuals are compared with the prediction of the draw, of which they are
independent: fitted effects are shrunk, and residuals are correlated with them.

Covariances of effects, and the dispersion of negative binomial counts, are as fitted.

References
----------
P. K. Dunn and G. K. Smyth (1996). Randomized quantile residuals. Journal of Computational and
Graphical Statistics 5, 236-244.
V. E. Johnson (2004). A Bayesian chi-squared test for goodness-of-fit. Annals of Statistics 32,
2361-2384.
A. Gelman, Y. Goegebeur, F. Tuerlinckx and I. Van Mechelen (2000). Diagnostic checks for discrete
data regression models using posterior predictive simulations. Applied Statistics 49, 247-268.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sharedspan.estimators.parameters import as_generator
from sharedspan.estimators.simulation_rows import checked_weight, fit_with_rows
from sharedspan.families import Binomial, Counts, Family
from sharedspan.mixed_model.design_rows import (
    fitted_rows,
    in_given_order,
    noise_unit,
    predictor_to_user,
)
from sharedspan.mixed_model.draws import draw_coefficients

WHOLE_SHARE = 1e-6  # of the trials of a row, that rounding may add to its successes


class ResidualsAtDraw(NamedTuple):
    """Residuals of rows and predicted means, both at one draw from the posterior distribution."""

    residuals: np.ndarray  # (rows,) between 0 and 1
    predicted: np.ndarray  # (rows,)


def simulated_residuals(model: Any, random_state: Any = 0) -> np.ndarray:
    """Residuals of the rows of a fit, uniform between 0 and 1 if the model is right.

    Parameters
    ----------
    model : fitted model with a formula
    random_state : int, numpy.random.Generator or None, default=0
        Seed for drawing the coefficients, the noise variance and, for discrete responses, the
        position within a jump of the distribution function. Other seeds give other residuals with
        the same distribution.

    Returns
    -------
    ndarray of shape (rows,)
        In the order of the rows of the fit; not a number for rows of weight zero.
    """
    return residuals_at_draw(model, random_state).residuals


def residuals_at_draw(model: Any, random_state: Any = 0) -> ResidualsAtDraw:
    """Residuals as ``simulated_residuals`` has them, and what is predicted by the same draw."""
    retained, family = fit_with_rows(model), model.response_family()
    rng = as_generator(random_state)
    coefficients, noise = draw_coefficients(retained, rng)
    noise = noise * noise_unit(retained) ** 2
    n_rows = retained.rows.n_rows
    residuals, predicted, place = np.empty(n_rows), np.empty(n_rows), rng.random(n_rows)
    for block, y in fitted_rows(retained):
        rows, weight = block.positions, checked_weight(model, block.weight)
        eta = np.einsum("ij,ij->i", block.Z, coefficients[block.owner])
        eta = predictor_to_user(retained, eta) + block.offset
        if family.reweighted:
            predicted[rows] = family.mean(eta)
            low, high = probability_step(family, y, predicted[rows], weight)
            residuals[rows] = low + place[rows] * (high - low)
        else:
            predicted[rows] = eta
            residuals[rows] = normal_probability(y - eta, noise[block.owner] / weight)
    return ResidualsAtDraw(*(in_given_order(retained, each) for each in (residuals, predicted)))


def normal_probability(error: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """The probability of a normal error below the given ones."""
    from scipy.special import ndtr

    return np.asarray(ndtr(error / np.sqrt(variance)))


def probability_step(
    family: Family, y: np.ndarray, mean: np.ndarray, trials: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of less than y, and of at most y, of discrete responses of given means."""
    if isinstance(family, Counts):
        return _at_most(family, y - 1, mean), _at_most(family, y, mean)
    assert isinstance(family, Binomial)
    successes = y * trials
    if (np.abs(successes - np.rint(successes)) > WHOLE_SHARE * trials).any():
        raise ValueError(
            "A proportion of successes times its number of trials, the sample_weight of the row, "
            "is not an integer: give the numbers of trials that the proportions were computed from."
        )
    successes = np.rint(successes)
    return (
        binomial_probability(successes - 1, trials, mean),
        binomial_probability(successes, trials, mean),
    )


def _at_most(family: Counts, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """The probability of a count of at most y, which may be -1."""
    return np.where(y < 0, 0.0, family.cdf(np.maximum(y, 0), mean))


def binomial_probability(successes: np.ndarray, trials: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The probability of at most so many successes, which may be -1."""
    from scipy.special import betainc

    inside = np.clip(successes, 0, trials - 1)
    value = betainc(trials - inside, inside + 1, 1 - p)
    return np.where(successes < 0, 0.0, np.where(successes >= trials, 1.0, value))
