"""The two definitions of the exact operations, on arrays and on single numbers, agree bit for bit;
functions are near mpmath's.
"""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from straightline.ir import arithmetic, functions, scalar
from straightline.ir.dtypes import BY_NAME, DType, b1, bf16, f16, f32, f64, i8, i64, u8, u64
from straightline.ir.ops import OPERATIONS, Operands, Result

NUMBERS = [d for d in BY_NAME.values() if d not in (b1, bf16, f16)]
FLOATS = {f32: ("uint32", 32), f64: ("uint64", 64)}


def samples(dtype: DType, count: int, seed: int) -> np.ndarray:
    """Values of every size: special ones, near ones, and random bits."""
    rng = np.random.default_rng(seed)
    memory = arithmetic.MEMORY[dtype]
    if dtype is b1:
        return rng.integers(0, 2, count).astype(bool)
    bits = rng.integers(0, 256, count * dtype.bytes, dtype=np.uint8).view(memory)
    if dtype.is_integer:
        special = [0, 1, 2, 7, 8, 31, 32, 63, 64, dtype.lowest, dtype.highest]
        special += [-1, -2] if dtype.is_signed else []
        special = [value for value in special if dtype.lowest <= value <= dtype.highest]
        chosen = np.array(special, memory)[rng.integers(0, len(special), count)]
        small = rng.integers(-9 if dtype.is_signed else 0, 10, count).astype(memory)
        return np.where(
            rng.random(count) < 0.4, chosen, np.where(rng.random(count) < 0.5, small, bits)
        )
    few = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, math.inf, -math.inf, math.nan]
    few += [1e-45, 2**31, -(2.0**31), 2.0**63, -(2.0**63), 2.0**64, 255.5, 65504.0, 65520.0]
    special_floats = np.array(few, "float32").astype("float64")
    near = rng.normal(size=count) * 2.0 ** rng.integers(-30, 30, count)
    kind = rng.random(count)
    made = np.where(kind < 0.3, special_floats[rng.integers(0, len(few), count)], near)
    if dtype is bf16:
        return np.where(kind < 0.6, arithmetic.cast(made, f64, bf16), bits)
    with np.errstate(all="ignore"):
        return np.where(kind < 0.6, made.astype(memory), bits)


def number(dtype: DType, value):
    """An element of an array as Python has it."""
    if dtype is bf16:
        return struct.unpack("f", struct.pack("I", int(value) << 16))[0]
    return value.item()


def same(dtype: DType, left, right) -> bool:
    if dtype.is_float:
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return type(left) is type(right) and left == right


TYPES = {
    Operands.FLOAT: [f32, f64],
    Operands.INTEGER: [d for d in NUMBERS if d.is_integer],
    Operands.NUMBER: NUMBERS,
    Operands.BITS: [b1, *(d for d in NUMBERS if d.is_integer)],
    Operands.ANY: [b1, *NUMBERS],
}
EXACT = [(name, dtype) for name in arithmetic.EXACT for dtype in TYPES[OPERATIONS[name].operands]]


@pytest.mark.parametrize(("name", "dtype"), EXACT, ids=lambda v: str(v))
def test_arrays_and_single_numbers_agree(name, dtype):
    operation = OPERATIONS[name]
    args = [samples(dtype, 400, seed) for seed in range(operation.arity)]
    if operation.arity == 3:
        # Where the product and the third cancel, and where rounding twice would show.
        with np.errstate(all="ignore"):
            args[2][:150] = (-args[0] * args[1])[:150]
            args[2][150:200] *= args[2].dtype.type(2**-20)
    with np.errstate(all="ignore"):
        result = arithmetic.EXACT[name](dtype, *args)
    new = b1 if operation.result is Result.BOOL else dtype
    assert result.dtype == arithmetic.MEMORY[new]
    for *values, got in zip(*args, result, strict=True):
        single = [number(dtype, value) for value in values]
        assert same(new, number(new, got), scalar.apply(name, dtype, new, *single)), single


@pytest.mark.parametrize("old", BY_NAME.values(), ids=str)
@pytest.mark.parametrize("new", BY_NAME.values(), ids=str)
def test_casts_agree(old, new):
    values = samples(old, 400, 5)
    with np.errstate(all="ignore"):
        result = arithmetic.cast(values, old, new)
    assert result.dtype == arithmetic.MEMORY[new]
    for value, got in zip(values, result, strict=True):
        expected = scalar.cast(number(old, value), new)
        assert same(new, number(new, got), expected), value


@pytest.mark.parametrize(
    ("old", "new"), [(f32, BY_NAME["i32"]), (BY_NAME["u64"], f64), (bf16, BY_NAME["u16"]), (u8, i8)]
)
def test_bits_are_kept(old, new):
    values = samples(old, 100, 3)
    result = arithmetic.bitcast(values, new)
    assert result.tobytes() == values.tobytes()
    for value, got in zip(values, result, strict=True):
        single = number(old, value)
        if single == single:
            assert same(new, number(new, got), scalar.apply("bitcast", old, new, single))


def test_values_that_the_definition_names():
    """Spelled out, since both definitions could err alike."""
    lowest = i8.lowest
    assert scalar.apply("quotient", i8, i8, lowest, -1) == lowest
    assert scalar.apply("mod", i8, i8, lowest, -1) == 0
    assert scalar.apply("floordiv", i8, i8, -7, 2) == -4
    assert scalar.apply("quotient", i8, i8, -7, 2) == -3
    assert scalar.apply("remainder", i8, i8, -7, 2) == -1
    assert scalar.apply("mod", i8, i8, -7, 2) == 1
    assert scalar.apply("mod", i8, i8, 7, 0) == 0
    assert scalar.apply("shr", i8, i8, -7, 99) == -1
    assert scalar.apply("shr", u8, u8, 200, 8) == 0
    assert scalar.apply("shl", i8, i8, 1, -1) == 0
    assert scalar.apply("mulhi", i64, i64, -1, 1) == -1
    assert scalar.cast(300.7, u8) == 44
    assert scalar.cast(1e10, u8) == 0
    assert scalar.cast(math.nan, i64) == i64.lowest
    assert scalar.cast(-1.0, u64) == u64.highest
    assert scalar.cast(2.0**63, u64) == 1 << 63
    assert scalar.cast(3e9, BY_NAME["i32"]) == BY_NAME["i32"].lowest
    assert scalar.cast(3e9, BY_NAME["u32"]) == 3_000_000_000
    assert scalar.cast(math.nan, b1) is True
    assert scalar.cast(1 + 2**-8 + 2**-30, bf16) == 1.0  # rounded to f32 first
    assert math.isnan(scalar.apply("min", f32, f32, math.nan, 1.0))
    assert math.isnan(scalar.apply("max", f32, f32, 1.0, math.nan))
    assert scalar.apply("ne", f32, b1, math.nan, math.nan) is True
    assert math.copysign(1, scalar.apply("min", f32, f32, 0.0, -0.0)) == -1
    assert math.copysign(1, scalar.apply("round", f32, f32, -0.5)) == -1
    assert scalar.apply("round", f64, f64, 2.5) == 2.0


def test_a_fused_product_is_rounded_once():
    """Where a double of 53 bits between would decide wrongly."""
    a, b = 1 + 2.0**-12, 1 + 2.0**-12
    c = 2.0**-60
    exact = (1 + 2.0**-12) ** 2  # 1 + 2^-11 + 2^-24: a tie of 24 bits, which c breaks upwards
    assert scalar.rounded(f32, exact) == 1 + 2.0**-11
    assert scalar.fma(f32, a, b, c) == 1 + 2.0**-11 + 2.0**-23
    arrays = [np.array([value], "float32") for value in (a, b, c)]
    assert arithmetic.EXACT["fma"](f32, *arrays)[0] == np.float32(1 + 2.0**-11 + 2.0**-23)


def test_a_quiet_nan_stays_one_in_bf16():
    payload = np.array([0x7F800001, 0xFFC12345], "uint32").view("float32")
    assert arithmetic.cast(payload, f32, bf16).tolist() == [0x7FC0, 0xFFC1]


REFERENCES = {
    "exp": "exp", "exp2": "2**x", "expm1": "expm1", "log": "log", "log2": "log(x,2)",
    "log10": "log10", "log1p": "log1p", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin",
    "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "sigmoid": "1/(1+exp(-x))",
    "erf": "erf", "erfc": "erfc", "erfinv": "erfinv", "lgamma": "loggamma", "digamma": "digamma",
}  # fmt: skip


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", REFERENCES)
def test_functions_are_near_the_exact_value(name, dtype):
    mpmath = pytest.importorskip("mpmath")
    rng = np.random.default_rng(1)
    x = rng.normal(size=60) * np.repeat([0.01, 1, 10], 20)
    if name in ("asin", "acos", "atanh", "erfinv"):
        x = np.clip(x, -0.999, 0.999)
    elif name == "acosh":
        x = 1 + np.abs(x)
    elif name.startswith("log") and name != "log1p":
        x = np.abs(x)
    elif name == "log1p":
        x = np.maximum(x, -0.99)
    x = x.astype(arithmetic.MEMORY[dtype])
    got = functions.apply(name, dtype, x)
    expression = REFERENCES[name]
    allowed = 0.51 if dtype is f32 else 4 if name in ("lgamma", "erfinv") else 1.1
    with mpmath.workdps(60):
        for value, result in zip(x.tolist(), got.tolist(), strict=True):
            at = mpmath.mpf(value)
            exact = (
                eval(expression, {"x": at, "log": mpmath.log, "exp": mpmath.exp})
                if not expression.isidentifier()
                else mpmath.re(getattr(mpmath, expression)(at))
            )
            if name == "lgamma":
                exact = mpmath.log(abs(mpmath.gamma(at)))
            unit = np.spacing(arithmetic.MEMORY[dtype].type(abs(result)))
            assert abs(exact - result) <= allowed * unit, (value, result, exact)


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("lgamma", [-2.0], math.inf),
        ("lgamma", [-math.inf], math.inf),
        ("digamma", [-0.0], math.inf),
        ("digamma", [0.0], -math.inf),
        ("digamma", [-3.0], math.nan),
        ("digamma", [-math.inf], math.nan),
        ("digamma", [math.inf], math.inf),
        ("erfinv", [1.0], math.inf),
        ("erfinv", [-1.0], -math.inf),
        ("erfinv", [1.5], math.nan),
        ("erfinv", [-0.0], -0.0),
        ("sigmoid", [-1000.0], 0.0),
        ("pow", [0.0, 0.0], 1.0),
        ("pow", [-2.0, 3.0], -8.0),
        ("atan2", [0.0, -1.0], math.pi),
        ("hypot", [math.inf, math.nan], math.inf),
    ],
)
def test_functions_at_the_edges(name, args, expected):
    with np.errstate(all="ignore"):
        (got,) = functions.apply(name, f64, *(np.array([arg]) for arg in args))
    assert same(f64, float(got), expected)


def test_every_operation_has_a_definition():
    assert {*arithmetic.EXACT, *functions.FUNCTIONS, "cast", "bitcast"} == {*OPERATIONS}
    assert all(scalar.known(name) for name in arithmetic.EXACT)
