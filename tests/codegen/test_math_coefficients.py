"""The polynomials of the expansions are as near to their functions as their comments say."""

from __future__ import annotations

import math

import minimax
import pytest

from straightline.codegen.math import (
    error,
    exponential,
    gamma,
    inverse,
    logarithm,
    power,
    trigonometric,
)
from straightline.ir.dtypes import f32, f64

# The problem, its coefficients, and the error as a power of two.
TABLES = {
    "exp_f32": (exponential.TABLES[f32].exp, -28.2),
    "exp_f64": (exponential.TABLES[f64].exp, -57.9),
    "expm1_f32": (exponential.TABLES[f32].expm1, -26.1),
    "expm1_f64": (exponential.TABLES[f64].expm1, -61.6),
    "exp2_f32": (exponential.TABLES[f32].exp2, -28.3),
    "exp2_f64": (exponential.TABLES[f64].exp2, -59.7),
    "tanh_f32": (exponential.TABLES[f32].tanh, -29.9),
    "tanh_f64": (exponential.TABLES[f64].tanh, -60.9),
    "sinh_f32": (exponential.TABLES[f32].sinh, -31.6),
    "sinh_f64": (exponential.TABLES[f64].sinh, -61.7),
    "log1p_narrow_f32": (logarithm.NARROW[f32].log1p, -27.5),
    "log1p_root_f32": (logarithm.ROOT[f32].log1p, -27.8),
    "log1p_narrow_f64": (logarithm.NARROW[f64].log1p, -62.6),
    "log1p_root_f64": (logarithm.ROOT[f64].log1p, -59.4),
    "pow_log2_f32": (power.LOG2, -35.8),
    "pow_atanh_f64": (power.ATANH, -75.9),
    "sin_f32": (trigonometric.TABLES[f32].sin, -27.9),
    "sin_f64": (trigonometric.TABLES[f64].sin, -63.2),
    "cos_f32": (trigonometric.TABLES[f32].cos, -33.1),
    "cos_f64": (trigonometric.TABLES[f64].cos, -64.1),
    "tan_f32": (trigonometric.TABLES[f32].tan, -29.5),
    "tan_f64": (trigonometric.TABLES[f64].tan, -59.9),
    "atan_f32": (inverse.TABLES[f32].atan, -25.8),
    "atan_f64": (inverse.TABLES[f64].atan, -57.5),
    "asin_f32": (inverse.TABLES[f32].asin, -27.6),
    "asin_f64": (inverse.TABLES[f64].asin, -55.8),
    "erf_f32": (error.TABLES[f32].p, -30.8),
    "erf_f64": (error.TABLES[f64].p, -57.4),
    "erfc": (error.ERFC, -30.6),
    "erfc_exp": (error.EXP, -34.3),
    "erfinv": (error.ERFINV, -28.7),
    "erfinv_near_one": (error.ERFINV_NEAR_ONE, -26.5),
    "lgamma": (gamma.LGAMMA, -31.4),
    "stirling": (gamma.STIRLING, -34.8),
    "digamma": (gamma.DIGAMMA, -47.9),
    "sin_pi": (gamma.SIN_PI, -43.8),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_polynomial_is_as_near_as_it_says(name):
    coefficients, bits = TABLES[name]
    assert math.log2(minimax.error(minimax.PROBLEMS[name], coefficients, points=60)) <= bits


def test_every_polynomial_is_measured():
    assert TABLES.keys() == minimax.PROBLEMS.keys()


def test_the_exchange_finds_what_is_known_to_be_best():
    """x by 1/8 + x**2 from 0 to 1, whose error is 1/8 at the ends and in the middle."""
    problem = minimax.Problem(lambda x: x, lambda x: 1, 0, 1, (0, 2), double=True)
    coefficients, off = minimax.solve(problem, points=400)
    assert coefficients == pytest.approx([0.125, 1.0], abs=1e-4)
    assert off == pytest.approx(0.125, abs=1e-4)
