"""Every exact operation on every type, on numbers where it is hard, against the interpreter."""

import itertools

import numpy as np
import pytest
from generate import same
from running import IDS, TARGETS, at, both, buffer, kernel, mapped, put

from straightline.codegen.llvm.emit import emit
from straightline.codegen.llvm.host import host
from straightline.ir.arithmetic import MEMORY
from straightline.ir.dtypes import BY_NAME, DType, b1, bf16, f16, f32, f64, u16, u64
from straightline.ir.index import Axis, index
from straightline.ir.nodes import Const, How, Loop, cast, op
from straightline.ir.ops import OPERATIONS, Operands, Result

COMPUTED = [dtype for dtype in BY_NAME.values() if dtype not in (bf16, f16)]
TAKES = {
    Operands.FLOAT: [f32, f64],
    Operands.INTEGER: [dtype for dtype in COMPUTED if dtype.is_integer],
    Operands.NUMBER: [dtype for dtype in COMPUTED if dtype is not b1],
    Operands.BITS: [dtype for dtype in COMPUTED if not dtype.is_float],
    Operands.ANY: COMPUTED,
}
OPERATIONS_OF = {
    dtype: [
        operation
        for operation in OPERATIONS.values()
        if operation.ulp == 0
        and operation.result is not Result.GIVEN
        and dtype in TAKES[operation.operands]
    ]
    for dtype in COMPUTED
}
WITH_CONSTANTS = ("quotient", "remainder", "floordiv", "mod", "shl", "shr", "min", "max")
FLOATS = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 1e-3, 7.25, 1e10, -1e10, 127.0, 128.0,
    255.0, 256.0, -128.0, -129.0, 32767.0, 32768.0, 65535.5, 2.0**31 - 1, 2.0**31, -(2.0**31),
    -(2.0**31) - 1, -(2.0**31) - 0.5, 2.0**32, 2.0**63, -(2.0**63), 2.0**63 + 2.0**40, 2.0**64,
    np.inf, -np.inf, np.nan, 1e-38, 1e-40, -1e-45, 3.4e38, -3.4e38, 65504.0, 65519.0, 65520.0,
    5.9e-8, 2.9e-8, 3e-8, 6.1e-5, 1.0 + 2.0**-8, 1.0 + 2.0**-7, 1.0 + 3 * 2.0**-8, 1.0 + 2.0**-11,
    1.0 + 3 * 2.0**-11, 0.1, -0.3, 1e300, 1e-300, 5e-324,
]  # fmt: skip


def specials(dtype: DType) -> np.ndarray:
    memory = MEMORY[dtype]
    if dtype is b1:
        return np.array([False, True])
    if dtype.is_integer:
        few = {0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 32, 63, 64, 100, dtype.highest, dtype.highest - 1}
        if dtype.is_signed:
            few |= {-n for n in few} | {dtype.lowest, dtype.lowest + 1}
        return np.array(sorted(few), memory)
    with np.errstate(over="ignore"):
        if dtype is bf16:
            return np.unique(np.array(FLOATS, "float32").view("uint32") >> 16).astype("uint16")
        return np.array(FLOATS).astype(memory)


def operands(dtype: DType, arity: int) -> list[np.ndarray]:
    values = specials(dtype)
    if arity == 3:
        rng = np.random.default_rng(0)
        return [rng.choice(values, 4001) for _ in range(3)]
    columns = zip(*itertools.product(values, repeat=arity), strict=True)
    return [np.array(column, MEMORY[dtype]) for column in columns]


def compare(dtype: DType, arity: int, values, target) -> None:
    """What expressions of operands come to, all stored by one kernel; `values` makes them."""
    given = operands(dtype, arity)
    count = len(given[0])
    axis = Axis("i", index(count))
    sources = [buffer(f"in{k}", dtype, count) for k in range(arity)]
    exprs = values([at(source, axis) for source in sources])
    outs = [buffer(f"out{k}", expr.dtype, count) for k, expr in enumerate(exprs)]
    arrays = {source.name: array for source, array in zip(sources, given, strict=True)}
    arrays |= {out.name: np.zeros(count, MEMORY[out.dtype]) for out in outs}
    stores = tuple(put(out, [axis], expr) for out, expr in zip(outs, exprs, strict=True))
    loop = Loop(axis, How.VECTOR, stores)
    expected, found = both(kernel("operations", [loop], sources, outs), arrays, {}, target)
    for out, expr in zip(outs, exprs, strict=True):
        left, right = expected[out.name], found[out.name]
        if not same(out.dtype, left, right):
            wrong = ~((left == right) | ((left != left) & (right != right)))
            where = [operand[wrong][:5] for operand in given]
            pytest.fail(f"{expr} at {where}: {right[wrong][:5]}, not {left[wrong][:5]}")


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
@pytest.mark.parametrize("arity", [1, 2, 3])
def test_operations(dtype, arity, target):
    operations = [each for each in OPERATIONS_OF[dtype] if each.arity == arity]
    if operations:
        compare(dtype, arity, lambda args: [op(each.name, *args) for each in operations], target)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_operations_with_a_constant(dtype, target):
    operations = [each for each in OPERATIONS_OF[dtype] if each.name in WITH_CONSTANTS]
    numbers = [n for n in specials(dtype).tolist() if n in (0, 1, -1, 3, 7, dtype.bits)]
    if operations:
        compare(
            dtype,
            1,
            lambda args: [
                op(each.name, args[0], Const(dtype, n)) for each in operations for n in numbers
            ],
            target,
        )


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("old", BY_NAME.values(), ids=BY_NAME)
def test_casts(old, target):
    compare(old, 1, lambda args: [cast(args[0], new) for new in BY_NAME.values()], target)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
def test_every_number_of_half_precision(dtype, target):
    given = np.arange(1 << 16, dtype="uint16").view(MEMORY[dtype])
    axis = Axis("i", index(len(given)))
    source, out = buffer("in", dtype, len(given)), buffer("out", f32, len(given))
    program = mapped("widen", cast(at(source, axis), f32), axis, [source], out)
    arrays = {"in": given, "out": np.zeros(len(given), "float32")}
    expected, found = both(program, arrays, {}, target)
    assert same(f32, expected["out"], found["out"])


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_select_and_bitcast(target):
    compare(f32, 2, lambda args: [op("select", op("lt", args[0], args[1]), *args)], target)
    compare(f64, 1, lambda args: [op("bitcast", args[0], dtype=u64)], target)
    compare(bf16, 1, lambda args: [op("bitcast", args[0], dtype=u16)], target)


def test_arithmetic_on_half_precision_is_an_error():
    axis, source, out = Axis("i", index(3)), buffer("in", bf16, 3), buffer("out", bf16, 3)
    wrong = mapped("wrong", op("neg", at(source, axis)), axis, [source], out)
    with pytest.raises(ValueError, match="neg of bf16"):
        emit([wrong], host())
