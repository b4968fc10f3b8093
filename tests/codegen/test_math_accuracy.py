"""Expanded functions are near the exact value, on a sample of all floats and at their edges.

`scripts/ulp.py` has the measures; without a stride it takes all of float32.
"""

from __future__ import annotations

import numpy as np
import pytest
import ulp

from straightline.codegen.math.expand import supported
from straightline.ir.dtypes import f32, f64

# Near zeros of theirs other than 0 and 1, eager is further off than two units, and so are these.
LIKE_EAGER = ("lgamma", "digamma")
SINGLE = [name for name in ulp.FUNCTIONS if supported(name, f32)]
DOUBLE = [name for name in ulp.FUNCTIONS if supported(name, f64)]


@pytest.mark.parametrize("name", SINGLE)
def test_a_sample_of_float32_is_near(name):
    result = ulp.measure(name, f32, ulp.samples(name, 1009 if ulp.ARITY[name] == 1 else 8191))
    assert result.ulp <= (result.eager_ulp if name in LIKE_EAGER else ulp.BAR), result
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


# Known to be nearest to multiples of a quarter turn, of their types.
@pytest.mark.parametrize(
    ("dtype", "value"), [(f32, 16367173 * 2.0**72), (f64, 6381956970095103 * 2.0**797)]
)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_what_is_left_of_huge_angles(name, dtype, value):
    near = np.array([value, -value, np.nextafter(value, 0), 2.0**30, 1e300], "f8")
    if dtype is f32:
        near = near[[0, 1, 3]].astype("f4")
    result = ulp.machine_code(name, dtype)(near)
    truth = ulp.mpmath_exact(name, near.astype("f8")).astype("f8" if dtype is f32 else "g")
    assert ulp.distance(result, truth).max() <= ulp.BAR


@pytest.mark.slow
@pytest.mark.parametrize("name", SINGLE)
def test_all_of_float32_is_near(name):
    result = ulp.measure(name, f32, ulp.samples(name, 1))
    assert result.within, result
