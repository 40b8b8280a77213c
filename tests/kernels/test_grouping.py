"""Rows in the order of their codes."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sharedspan.kernels import grouping, threads


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("n_codes", [1, 7, 400])
def test_the_order_is_stable_and_the_same_for_any_number_of_threads(
    monkeypatch, n_threads, n_codes
):
    monkeypatch.setattr(threads, "_chosen", n_threads)
    monkeypatch.setattr(threads, "SERIAL_WORK", 0)
    codes = np.random.default_rng(0).integers(0, n_codes, 5000)
    counts, order = grouping.order_by_code(codes, n_codes)
    assert_array_equal(counts, np.bincount(codes, minlength=n_codes))
    if n_codes == 1:
        assert order is None
    else:
        assert_array_equal(order, np.argsort(codes, kind="stable"))


@pytest.mark.parametrize("n_threads", [1, 3])
def test_codes_that_ascend_need_no_order(monkeypatch, n_threads):
    monkeypatch.setattr(threads, "_chosen", n_threads)
    codes = np.repeat(np.arange(50), 40)
    assert grouping.order_by_code(codes, 50)[1] is None
    codes[len(codes) // 3] = 49  # a single row out of order
    assert grouping.order_by_code(codes, 50)[1] is not None


def test_a_fall_between_two_parts_is_seen(monkeypatch):
    monkeypatch.setattr(threads, "_chosen", 2)
    codes = np.repeat([1, 0], 1000)  # each half by itself is in order
    assert_array_equal(grouping.order_by_code(codes, 2)[1], np.argsort(codes, kind="stable"))


@pytest.mark.parametrize("ahead", [1, 3, 100])
def test_work_ahead_is_yielded_in_order_and_not_begun_too_early(ahead):
    begun, yielded = [], []

    def work(i):
        assert i < len(yielded) + 1 + ahead
        begun.append(i)

    for i in threads.computed_ahead(work, 20, ahead, most=4):
        assert i in begun
        yielded.append(i)
    assert yielded == sorted(begun) == list(range(20))


def test_an_error_of_work_ahead_is_raised_where_it_belongs():
    def work(i):
        if i == 5:
            raise ValueError("row 5")

    results = threads.computed_ahead(work, 20, 3, most=2)
    assert [next(results) for _ in range(5)] == list(range(5))
    with pytest.raises(ValueError, match="row 5"):
        next(results)
