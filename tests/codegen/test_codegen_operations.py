"""Every exact operation on every type, on numbers where it is hard, against the interpreter."""

import itertools

import numpy as np
import pytest
from generate import same
from running import IDS, TARGETS, at, both, buffer, mapped, numbers_of

from straightline.codegen.llvm.emit import emit
from straightline.codegen.llvm.host import host
from straightline.ir.arithmetic import MEMORY
from straightline.ir.dtypes import BY_NAME, DType, b1, bf16, f16, f32, f64
from straightline.ir.index import Axis, index
from straightline.ir.nodes import Const, op
from straightline.ir.ops import OPERATIONS, Operands, Result

COMPUTED = [dtype for dtype in BY_NAME.values() if dtype not in (bf16, f16)]
TAKES = {
    Operands.FLOAT: [f32, f64],
    Operands.INTEGER: [dtype for dtype in COMPUTED if dtype.is_integer],
    Operands.NUMBER: [dtype for dtype in COMPUTED if dtype is not b1],
    Operands.BITS: [dtype for dtype in COMPUTED if not dtype.is_float],
    Operands.ANY: COMPUTED,
}
CASES = [
    (name, dtype)
    for name, operation in OPERATIONS.items()
    if operation.ulp == 0 and operation.result is not Result.GIVEN
    for dtype in TAKES[operation.operands]
]
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
        values = [rng.choice(values, 4001) for _ in range(3)]
        return [np.ascontiguousarray(v) for v in values]
    columns = zip(*itertools.product(values, repeat=arity), strict=True)
    return [np.array(column, MEMORY[dtype]) for column in columns]


def compare(dtype: DType, result: DType, arity: int, build, target) -> None:
    given = operands(dtype, arity)
    count = len(given[0])
    axis = Axis("i", index(count))
    sources = [buffer(f"in{k}", dtype, count) for k in range(arity)]
    out = buffer("out", result, count)
    value = build([at(source, axis) for source in sources])
    arrays = {source.name: array for source, array in zip(sources, given, strict=True)}
    arrays["out"] = np.zeros(count, MEMORY[result])
    expected, found = both(mapped("operation", value, axis, sources, out), arrays, {}, target)
    left, right = (numbers_of(each["out"], result) for each in (expected, found))
    if not same(left, right):
        wrong = ~((left == right) | ((left != left) & (right != right)))
        pytest.fail(f"{[g[wrong][:5] for g in given]}: {right[wrong][:5]}, not {left[wrong][:5]}")


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=[f"{n}-{d}" for n, d in CASES])
def test_operation(name, dtype, target):
    operation = OPERATIONS[name]
    result = b1 if operation.result is Result.BOOL else dtype
    compare(dtype, result, operation.arity, lambda args: op(name, *args), target)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [case for case in CASES if case[0] in ("quotient", "mod", "shl", "shr", "floordiv", "min")],
)
def test_operation_with_a_constant(name, dtype, target):
    for number in specials(dtype).tolist():
        second = Const(dtype, number)
        compare(dtype, dtype, 1, lambda args: op(name, args[0], second), target)  # noqa: B023


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("old", BY_NAME.values(), ids=BY_NAME)
@pytest.mark.parametrize("new", BY_NAME.values(), ids=BY_NAME)
def test_cast(old, new, target):
    compare(old, new, 1, lambda args: op("cast", args[0], dtype=new), target)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_all_of_half_precision(target):
    for dtype in (bf16, f16):
        given = np.arange(1 << 16, dtype="uint16").view(MEMORY[dtype])
        axis = Axis("i", index(len(given)))
        source, out = buffer("in", dtype, len(given)), buffer("out", f32, len(given))
        program = mapped("widen", op("cast", at(source, axis), dtype=f32), axis, [source], out)
        arrays = {"in": given, "out": np.zeros(len(given), "float32")}
        expected, found = both(program, arrays, {}, target)
        assert same(expected["out"], found["out"])


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_select_and_bitcast(target):
    compare(
        f32, f32, 2, lambda args: op("select", op("lt", args[0], args[1]), *args), target
    )  # fmt: skip
    compare(f64, BY_NAME["u64"], 1, lambda a: op("bitcast", a[0], dtype=BY_NAME["u64"]), target)
    compare(bf16, BY_NAME["u16"], 1, lambda a: op("bitcast", a[0], dtype=BY_NAME["u16"]), target)


def test_a_function_that_was_not_expanded_is_named():
    axis, source, out = Axis("i", index(3)), buffer("in", f32, 3), buffer("out", f32, 3)
    unexpanded = mapped("unexpanded", op("tanh", at(source, axis)), axis, [source], out)
    with pytest.raises(ValueError, match="tanh of f32"):
        emit([unexpanded], host())


def test_arithmetic_on_half_precision_is_an_error():
    axis, source, out = Axis("i", index(3)), buffer("in", bf16, 3), buffer("out", bf16, 3)
    wrong = mapped("wrong", op("neg", at(source, axis)), axis, [source], out)
    with pytest.raises(ValueError, match="neg of bf16"):
        emit([wrong], host())
