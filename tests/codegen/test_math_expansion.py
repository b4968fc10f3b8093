"""What the expansions are made of, and that they mean the same to all who run them."""

from __future__ import annotations

import numpy as np
import pytest
import ulp
from elementwise import compiled

from straightline.codegen.math.expand import expand, expand_kernel, supported
from straightline.ir import arithmetic
from straightline.ir.dtypes import DType, f32, f64, i64
from straightline.ir.index import Axis, Given, Size, index
from straightline.ir.interpret import interpret
from straightline.ir.nodes import (
    Accumulate,
    Buffer,
    Check,
    Const,
    Declare,
    Expr,
    Fold,
    Folded,
    How,
    Kernel,
    Load,
    Loop,
    Op,
    Store,
    cast,
    expressions,
    op,
    statements,
    walk,
)
from straightline.ir.ops import OPERATIONS, SELECT
from straightline.ir.verify import verify

SUPPORTED = [(n, d) for d in (f32, f64) for n in ulp.FUNCTIONS if supported(n, d)]
IDS = [f"{name}-{dtype}" for name, dtype in SUPPORTED]
n = Size("n")
i = Axis("i", index(n))


def names(*roots: Expr) -> set[str]:
    return {node.name for node in walk(*roots) if isinstance(node, Op)}


def vector(name: str, dtype: DType) -> Buffer:
    return Buffer(name, dtype, (index(n),), (index(1),))


def kernel(name: str, dtype: DType) -> Kernel:
    """The function at every position."""
    inputs = tuple(vector(f"x{k}", dtype) for k in range(ulp.ARITY[name]))
    out = vector("out", dtype)
    value = op(name, *(Load(each, (index(i),)) for each in inputs))
    body = (Loop(i, How.VECTOR, (Store(out, (index(i),), value),)),)
    return Kernel("k", (*inputs, out), frozenset({"out"}), (n,), body)


def values(name: str, dtype: DType) -> tuple[np.ndarray, ...]:
    """Edges and a sample."""
    edges = ulp.special(name)
    if dtype is f64:
        sample = ulp.doubles(name, 2000)
    else:
        sample = tuple(each[::1009] for each in next(ulp.samples(name, 4001)))
    memory = arithmetic.MEMORY[dtype]
    return tuple(
        np.concatenate([edge.astype(memory), some])
        for edge, some in zip(edges, sample, strict=True)
    )


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    """But for the bits of NaN."""
    nan = np.isnan(left) & np.isnan(right)
    return bool(np.all(nan | ((left == right) & (np.signbit(left) == np.signbit(right)))))


@pytest.mark.parametrize(("name", "dtype"), SUPPORTED, ids=IDS)
def test_an_expansion_has_exact_operations_only(name, dtype):
    for has_scale in (False, True):
        used = names(ulp.expanded(name, dtype, has_scale))
        assert all(OPERATIONS[each].ulp == 0 for each in used - {SELECT})
        assert has_scale or "ldexp" not in used


@pytest.mark.parametrize(("name", "dtype"), SUPPORTED, ids=IDS)
def test_interpreter_and_machine_code_agree_with_and_without_an_instruction_that_scales(
    name, dtype
):
    args = values(name, dtype)
    results = [ulp.machine_code(name, dtype, has_scale)(*args) for has_scale in (False, True)]
    for has_scale in (False, True):
        expanded = expand_kernel(kernel(name, dtype), has_scale)
        verify(expanded)
        out = np.empty_like(args[0])
        memories = {f"x{k}": arg for k, arg in enumerate(args)} | {"out": out}
        assert interpret(expanded, memories, {"n": len(out)}) == 0
        results.append(out)
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("dtype", [f32, f64])
def test_ldexp_has_an_expansion_of_its_own(dtype):
    """Every number, by whole steps and others, rounded once: subnormal results too."""
    rng = np.random.default_rng(0)
    memory = arithmetic.MEMORY[dtype]
    bits = rng.integers(0, 1 << dtype.bits, 20000, f"uint{dtype.bits}").view(memory)
    least = 1000 if dtype is f32 else 5000
    steps = rng.integers(-least, least, 20000).astype(memory)
    steps[::3] = rng.integers(-30, 30, len(steps[::3])) + rng.random(len(steps[::3]))
    ends = np.array([0.0, -0.0, 1e-310, -1e-40, 1.0, np.inf, -np.inf, np.nan], memory)
    grid = np.meshgrid(ends, np.array([*ends, 3e38, -3e38, 0.5, -0.5], memory))
    x = np.concatenate([bits, grid[0].ravel()])
    by = np.concatenate([steps, grid[1].ravel()])
    loads = tuple(Load(Buffer(name, dtype, (), ()), ()) for name in ("x", "n"))
    expanded = expand(op("ldexp", *loads))
    assert "ldexp" not in names(expanded)
    with np.errstate(all="ignore"):
        expected = arithmetic.EXACT["ldexp"](dtype, x, by)
    assert same_bits(compiled(expanded, loads)(x, by), expected)
    assert expand(op("ldexp", *loads), has_scale=True) is op("ldexp", *loads)


def test_an_expression_is_expanded_once_wherever_it_is_used():
    x = Load(Buffer("x", f32, (), ()), ())
    e = op("exp", x)
    alone = ulp.operation_count(expand(e))
    assert ulp.operation_count(expand(op("add", op("mul", e, e), e))) == alone + 2
    assert expand(op("add", x, x)) is op("add", x, x)


def test_a_function_without_an_expansion_is_refused():
    missing = [name for name in ulp.FUNCTIONS if not supported(name, f64)]
    for name in missing:
        with pytest.raises(ValueError, match=f"no expansion of {name} for f64"):
            expand(op(name, *ulp.operands(name, f64)))
    assert not supported("add", f32)
    assert not supported("exp", i64)


def test_every_expression_of_a_kernel_is_expanded():
    x, out = vector("x", f32), vector("out", f32)
    here = (index(i),)
    value = Load(x, here)
    limit = op("lt", op("exp", value), Const(f32, 3.0))
    fold = Fold("s", "sum", (f32,))
    chosen = index(Given(cast(op("tanh", value), i64), 0, 0))
    body = (
        Loop(i, How.SERIAL, (Check(op("lt", op("log", value), Const(f32, 9.0)), 1),)),
        Declare(fold),
        Loop(i, How.VECTOR, (Accumulate(fold, (op("erf", value),), limit),)),
        Loop(i, How.SERIAL, (Store(out, (chosen,), op("sin", Folded(fold)), limit),)),
    )
    old = Kernel("k", (x, out), frozenset({"out"}), (n,), body)
    new = expand_kernel(old)
    left = {node for each in statements(new.body) for node in expressions(each)}
    assert not names(*left) & set(ulp.FUNCTIONS)
    assert [type(each) for each in statements(new.body)] == [
        type(each) for each in statements(old.body)
    ]


COSTS = """
exp f32 23 13
exp2 f32 22 12
expm1 f32 22 22
log f32 29 29
log2 f32 31 31
log10 f32 31 31
log1p f32 30 30
sin f32 59 59
cos f32 58 58
tan f32 69 69
asin f32 20 20
acos f32 23 23
atan f32 18 18
sinh f32 29 29
cosh f32 20 20
tanh f32 29 29
asinh f32 44 44
acosh f32 43 43
atanh f32 35 35
sigmoid f32 30 20
erf f32 31 31
erfc f32 39 39
erfinv f32 62 62
lgamma f32 121 121
digamma f32 99 99
pow f32 81 70
atan2 f32 29 29
hypot f32 12 12
exp f64 28 18
exp2 f64 28 18
expm1 f64 28 28
log f64 35 35
log2 f64 35 35
log10 f64 35 35
log1p f64 36 36
sin f64 124 124
cos f64 123 123
tan f64 134 134
asin f64 27 27
acos f64 30 30
atan f64 30 30
sinh f64 37 37
cosh f64 25 25
tanh f64 40 40
asinh f64 49 49
acosh f64 48 48
atanh f64 41 41
sigmoid f64 35 25
erf f64 52 52
pow f64 131 121
atan2 f64 41 41
hypot f64 20 20
"""


def test_what_each_function_costs():
    """Operations without and with an instruction that scales: more of them is a slower program."""
    lines = [
        f"{name} {dtype} {ulp.operation_count(ulp.expanded(name, dtype))}"
        f" {ulp.operation_count(ulp.expanded(name, dtype, has_scale=True))}"
        for name, dtype in SUPPORTED
    ]
    assert "\n".join(["", *lines, ""]) == COSTS
