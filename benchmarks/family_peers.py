"""What else a user would fit to yes/no answers or counts of many tasks, and how all are scored.

A fit in `PEERS["binary"]` or `PEERS["count"]` takes the arrays X of shape (n, d), y (n,), task (n,)
with codes 0, ..., T - 1, and the mask `train` (n,), and returns a `Fitted`. `predictions` runs one
within a limit of processor time.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, xlogy

from grouped_peers import limited, standardised, task_means

ALPHAS = np.logspace(0.5, -6, 14)  # penalties per row, the strongest first
FOLDS = 4
SMALLEST = 1e-6  # of probabilities, their complements and means
LARGEST = 10.0  # times the largest training count: no mean is taken to be larger


class Fitted(NamedTuple):
    """A function of a mask of rows that gives their probabilities or means, and a dispersion."""

    predict: Callable
    dispersion: float = np.nan  # of a negative binomial model


# Scores, the same for all methods


def held_out_loss(kind, predicted, y, train):
    """Log loss of held-out answers, or mean negative log-likelihood of held-out counts.

    Counts get the better of the Poisson and the negative binomial likelihood. The dispersion of the
    latter has maximum likelihood for the training rows at their fitted means.
    """
    if kind == "binary":
        p = np.clip(predicted[~train], SMALLEST, 1 - SMALLEST)
        return -np.mean(np.log(np.where(y[~train] == 1, p, 1 - p)))
    mean = clipped_means(predicted, y, train)

    def loss(log_theta, rows):
        return -np.mean(negative_binomial(y[rows], mean[rows], np.exp(log_theta)))

    best = minimize_scalar(loss, bounds=np.log([1e-3, 1e6]), args=(train,), method="bounded")
    return min(-np.mean(poisson(y[~train], mean[~train])), loss(best.x, ~train))


def own_loss(predicted, dispersion, y, train):
    """That of counts with the dispersion of the model itself.

    Fitted means of training rows are too close to the counts where tasks have few rows, so that the
    dispersion of `held_out_loss` comes out too large for a flexible model.
    """
    mean = clipped_means(predicted, y, train)
    return -np.mean(negative_binomial(y[~train], mean[~train], dispersion))


def clipped_means(predicted, y, train):
    return np.clip(predicted, SMALLEST, LARGEST * max(1.0, y[train].max()))


def poisson(y, mean):
    """Logarithm of the probability of each count."""
    return xlogy(y, mean) - mean - gammaln(y + 1)


def negative_binomial(y, mean, theta):
    """Logarithm of the probability of each count, of variance mean + mean^2 / theta."""
    constant = gammaln(y + theta) - gammaln(theta) - gammaln(y + 1)
    return constant - theta * np.log1p(mean / theta) + xlogy(y, mean / (mean + theta))


# Generalised linear models with a ridge penalty, by scikit-learn


def glm(design, kind, X, y, task, train):
    """One GLM with the columns of `design`, the strength of its penalty by cross-validation."""
    columns = design(standardised(X, train), task)
    model = penalised(kind, columns[train], y[train])
    return Fitted(lambda rows: means(kind, model, columns[rows]))


def pooled(Z, task):
    return Z


def one_hot(Z, task):
    return sparse.csr_array(sparse.hstack([indicators(task), Z]))


def one_hot_times_features(Z, task):
    return sparse.csr_array(sparse.hstack([per_task(Z, task), Z]))


def per_task(Z, task):
    """An intercept and slopes for each task: separate models with one strength of the penalty."""
    products = [indicators(task, column) for column in Z.T]
    return sparse.csr_array(sparse.hstack([indicators(task), *products]))


def indicators(task, values=None):
    """A column for each task, of ones or of the values of its rows."""
    values = np.ones(len(task)) if values is None else values
    return sparse.csr_array((values, (np.arange(len(task)), task)))


def glm_per_task(kind, X, y, task, train):
    """A GLM for each task; one whose answers are all the same gets a smoothed constant."""
    predict = glm(per_task, kind, X, y, task, train).predict
    counts, average = np.bincount(task[train]), task_means(y, task, train)
    constant = (counts * average + y[train].mean()) / (counts + 1)
    same = task_means((y - average[task]) ** 2, task, train) == 0
    return Fitted(lambda rows: np.where(same[task[rows]], constant[task[rows]], predict(rows)))


def penalised(kind, C, y):
    """The GLM at the best penalty by cross-validation, from strong to weak until two are worse."""
    fold = np.random.default_rng(0).permutation(len(y)) % FOLDS
    models = [estimator(kind) for _ in range(FOLDS)]
    losses = []
    for alpha in ALPHAS:
        losses.append(0.0)
        for k, model in enumerate(models):
            own, other = fold != k, fold == k
            fit_at(alpha, kind, model, C[own], y[own])
            losses[-1] += glm_loss(kind, y[other], means(kind, model, C[other]))
        if len(losses) > np.argmin(losses) + 2:
            break
    return fit_at(ALPHAS[np.argmin(losses)], kind, estimator(kind), C, y)


def estimator(kind):
    from sklearn.linear_model import LogisticRegression, PoissonRegressor

    make = LogisticRegression if kind == "binary" else PoissonRegressor
    return make(max_iter=500, tol=1e-5, warm_start=True)


def fit_at(alpha, kind, model, C, y):
    if kind == "binary":
        return model.set_params(C=1 / (alpha * len(y))).fit(C, y)
    return model.set_params(alpha=alpha).fit(C, y)


def means(kind, model, C):
    return model.predict_proba(C)[:, 1] if kind == "binary" else model.predict(C)


def glm_loss(kind, y, mean):
    if kind == "binary":
        p = np.clip(mean, SMALLEST, 1 - SMALLEST)
        return -np.sum(np.log(np.where(y == 1, p, 1 - p)))
    return -np.sum(poisson(y, np.maximum(mean, SMALLEST)))


# Other packages


def gpboost_slopes(likelihood, X, y, task, train):
    """Fixed effects of all features; independent random ones of those that vary within tasks."""
    import gpboost  # here, so that `ours` and `summary` do without

    Z = standardised(X, train)
    within = (Z - task_means(Z, task, train)[task])[train].std(axis=0) > 1e-6
    design, slopes, groups = np.column_stack([np.ones(len(Z)), Z]), Z[:, within], task.astype(str)
    model = gpboost.GPModel(
        likelihood=likelihood,
        group_data=groups[train],
        group_rand_coef_data=slopes[train],
        ind_effect_group_rand_coef=[1] * slopes.shape[1],
        num_parallel_threads=1,
    )
    model.fit(y=y[train], X=design[train], params={"trace": False})

    def predict(rows):
        return model.predict(
            group_data_pred=groups[rows],
            X_pred=design[rows],
            group_rand_coef_data_pred=slopes[rows],
            predict_response=True,
        )["mu"]

    if likelihood == "negative_binomial":
        return Fitted(predict, float(np.ravel(model.get_aux_pars())[0]))
    return Fitted(predict)


def boosted_trees(objective, X, y, task, train):
    """LightGBM with the task as a category, as many trees as suit a fifth of the training rows."""
    import lightgbm

    columns, category = np.column_stack([X, task]), [X.shape[1]]
    stopping = train & (np.random.default_rng(0).random(len(y)) < 0.2)
    settings = {"objective": objective, "learning_rate": 0.05, "num_threads": 1, "verbose": -1}

    def data(rows):
        return lightgbm.Dataset(columns[rows], y[rows], categorical_feature=category,
                                params={"verbose": -1})  # fmt: skip

    first = lightgbm.train(
        settings, data(train & ~stopping), 2000, valid_sets=[data(stopping)],
        callbacks=[lightgbm.early_stopping(50, verbose=False)])  # fmt: skip
    model = lightgbm.train(settings, data(train), max(1, first.best_iteration))
    return Fitted(lambda rows: model.predict(columns[rows]))


def glms(kind):
    return {
        "pooled": partial(glm, pooled, kind),
        "one-hot": partial(glm, one_hot, kind),
        "per task": partial(glm_per_task, kind),
        "one-hot x features": partial(glm, one_hot_times_features, kind),
    }


PEERS = {
    "binary": {
        **glms("binary"),
        "LightGBM": partial(boosted_trees, "binary"),
        "GPBoost slopes": partial(gpboost_slopes, "bernoulli_logit"),
    },
    "count": {
        **glms("count"),
        "LightGBM": partial(boosted_trees, "poisson"),
        "GPBoost slopes": partial(gpboost_slopes, "negative_binomial"),
        "GPBoost Poisson": partial(gpboost_slopes, "poisson"),
    },
}


def fit_and_predict(kind, fit, X, y, task, train):
    """Predictions where the score needs them (counts: all rows), dispersion, seconds of the fit."""
    began = time.process_time()
    fitted = fit(X, y, task, train)
    seconds = time.process_time() - began
    rows = ~train if kind == "binary" else np.ones_like(train)
    predicted = np.full(len(y), np.nan)
    predicted[rows] = fitted.predict(rows)
    if not np.isfinite(predicted[rows]).all():
        raise ValueError("predictions are not finite")
    return predicted, fitted.dispersion, seconds


def predictions(kind, method, limit, *rows):
    """Those of `fit_and_predict` for a peer, in a process that is ended at the limit in seconds.

    Raises `TimeoutError` at the limit and `RuntimeError` where the fit failed.
    """
    return limited(partial(fit_and_predict, kind, PEERS[kind][method]), limit, *rows)[0]
