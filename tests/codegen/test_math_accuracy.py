"""Expanded functions are near the exact value, on a sample of all floats and at their edges.

`scripts/ulp.py` has the measures; without a stride it takes all of float32.
"""

from __future__ import annotations

import numpy as np
import pytest
import ulp

from straightline.codegen.math import supported
from straightline.ir.dtypes import f32, f64

SINGLE = [name for name in ulp.FUNCTIONS if supported(name, f32)]
DOUBLE = [name for name in ulp.FUNCTIONS if supported(name, f64)]


@pytest.mark.parametrize("name", SINGLE)
def test_a_sample_of_float32_is_near(name):
    result = ulp.measure(name, f32, ulp.samples(name, 1009 if ulp.ARITY[name] == 1 else 8191))
    assert result.ulp <= ulp.BAR, result
    assert result.wrong == 0, result


@pytest.mark.parametrize("name", SINGLE)
def test_edges_of_float32_are_right(name):
    """Zeros with their signs, infinities, NaN, subnormal operands and results."""
    args = ulp.special(name)
    result, truth = ulp.machine_code(name, f32)(*args), ulp.exact(name, *args)
    assert ulp.distance(result, truth).max() <= ulp.BAR
    assert not ulp.wrong_signs(result, truth).any()


@pytest.mark.parametrize("name", DOUBLE)
def test_random_doubles_are_near(name):
    edges = tuple(each.astype(np.float64) for each in ulp.special(name))
    result = ulp.measure(name, f64, iter([ulp.doubles(name, 800), edges]))
    assert result.ulp <= ulp.BAR, result
    assert result.wrong == 0, result


@pytest.mark.slow
@pytest.mark.parametrize("name", SINGLE)
def test_all_of_float32_is_near(name):
    result = ulp.measure(name, f32, ulp.samples(name, 1))
    assert result.within, result
