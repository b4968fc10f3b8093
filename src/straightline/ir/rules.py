"""Rules of simplification, a table by operation. Each is exact: to the bit for every operand, but
for those of a NaN. `x + 0.0` is not `x` where that is -0.0, and nothing is reassociated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from straightline.ir import scalar
from straightline.ir.dtypes import DType, b1, bf16, f16, f32, f64, i32, i64
from straightline.ir.index import Index, add, bounds, index, known_less, mul, sub
from straightline.ir.nodes import Const, Expr, Load, Op, Position, op
from straightline.ir.ops import SELECT

# What an operation is the same as, None where the rule says nothing. Operands are simplified.
Rule: TypeAlias = Callable[[Op], Expr | None]

TRUE, FALSE = Const(b1, True), Const(b1, False)


def reduced(expr: Expr) -> Expr:
    """The expression, whose operands are simplified, as the rules leave it."""
    match expr:
        case Op(name, _, args):
            for rule in (_constant, *RULES.get(name, ())):
                other = rule(expr)
                if other is not None:
                    return reduced(other)
            if name in _POSITIONS and all(isinstance(arg, Position | Const) for arg in args):
                return _of_positions(expr) or expr
        case Load(buffer, _, Const(_, False)):
            return zero(buffer.dtype)
        case Load(buffer, coords, Const(_, True)):
            return Load(buffer, coords)
        case Position(Index(terms=(), constant=number)):
            return Const(i64, number)
        case _:
            pass
    return expr


def zero(dtype: DType) -> Const:
    return Const(dtype, 0.0 if dtype.is_float else 0 if dtype.is_integer else False)


def make(name: str, *args: Expr) -> Expr:
    return reduced(op(name, *args))


def _constant(expr: Op) -> Expr | None:
    """Exact operations on constants. A product with no other operands is one."""
    if not all(isinstance(arg, Const) for arg in expr.args) or not scalar.known(expr.name):
        return None
    numbers = [arg.value for arg in expr.args if isinstance(arg, Const)]
    old = expr.args[-1].dtype
    return Const(expr.dtype, scalar.apply(expr.name, old, expr.dtype, *numbers))


def is_const(expr: Expr, value: bool | int | float) -> bool:
    """Whether it is this number; zeros of either sign differ."""
    if not isinstance(expr, Const) or expr.value != value:
        return False
    return not expr.dtype.is_float or math.copysign(1, expr.value) == math.copysign(1, value)


def _neutral(ints: int | None, floats: float | None, left: bool = True) -> Rule:
    """With this number, on the right or on either side, it is the other operand."""

    def rule(expr: Op) -> Expr | None:
        number = floats if expr.dtype.is_float else ints
        a, b = expr.args
        if number is None:
            return None
        if is_const(b, number):
            return a
        return b if left and is_const(a, number) else None

    return rule


def _same(value: Callable[[Op], Expr | None]) -> Rule:
    """Of one operand twice."""

    def rule(expr: Op) -> Expr | None:
        return value(expr) if expr.args[0] is expr.args[1] else None

    return rule


def _inside(*names: str) -> Rule:
    """`f(g(x, ...))` is `f(x)`, for these g."""

    def rule(expr: Op) -> Expr | None:
        match expr.args[0]:
            case Op(name, _, args) if name in names:
                return Op(expr.name, expr.dtype, (args[0], *expr.args[1:]))
            case _:
                return None

    return rule


# -- numbers ---------------------------------------------------------------------------------------


def _minus_zero(expr: Op) -> Expr | None:
    """0 - x and -0.0 - x are -x."""
    a, b = expr.args
    return make("neg", b) if is_const(a, -0.0 if expr.dtype.is_float else 0) else None


def _times_minus_one(expr: Op) -> Expr | None:
    if expr.dtype.is_float or expr.dtype.is_signed:
        for one, other in (expr.args, expr.args[::-1]):
            if is_const(one, -1):
                return make("neg", other)
    return None


def _times_zero(expr: Op) -> Expr | None:
    if expr.dtype.is_float or not any(is_const(arg, 0) for arg in expr.args):
        return None
    return zero(expr.dtype)


def _by_power_of_two(expr: Op) -> Expr | None:
    """A quotient is the product with the reciprocal where that is exact."""
    a, b = expr.args
    if not isinstance(b, Const) or not math.isfinite(b.value) or b.value == 0:
        return None
    mantissa, exponent = math.frexp(b.value)
    most = 100 if expr.dtype is f32 else 1000
    if abs(mantissa) != 0.5 or abs(exponent) > most:
        return None
    return make("mul", a, Const(b.dtype, 1 / b.value))


def _unsigned(expr: Op) -> Expr | None:
    """What is never negative."""
    number = expr.dtype.is_float or expr.dtype.is_signed
    return None if number else expr.args[0]


def _double(expr: Op) -> Expr | None:
    match expr.args[0]:
        case Op(name, _, (inner,)) if name == expr.name:
            return inner
        case _:
            return None


def _end_of_range(lowest: bool) -> Rule:
    """`max` with the lowest number, `min` with the highest."""

    def rule(expr: Op) -> Expr | None:
        dtype = expr.dtype
        if dtype.is_float:
            end: float = -math.inf if lowest else math.inf
        else:
            end = dtype.lowest if lowest else dtype.highest
        a, b = expr.args
        return a if is_const(b, end) else b if is_const(a, end) else None

    return rule


def _fma(expr: Op) -> Expr | None:
    a, b, c = expr.args
    if is_const(c, -0.0):
        return make("mul", a, b)
    for one, other in ((a, b), (b, a)):
        if is_const(one, 1):
            return make("add", other, c)
    return None


_ROUNDINGS = ("floor", "ceil", "trunc", "round")


def _whole(expr: Op) -> Expr | None:
    """Rounding what is whole."""
    match expr.args[0]:
        case Op(name) as inner if name in _ROUNDINGS:
            return inner
        case Op("cast", _, (value,)) as inner if not value.dtype.is_float:
            return inner
        case _:
            return None


def _by_one(left: bool) -> Rule:
    """x // 1 is x, and x % 1 is 0."""

    def rule(expr: Op) -> Expr | None:
        a, b = expr.args
        return (a if left else zero(expr.dtype)) if is_const(b, 1) else None

    return rule


# -- bits and truth --------------------------------------------------------------------------------


def _ones(dtype: DType) -> Const:
    """Every bit set."""
    if dtype is b1:
        return TRUE
    return Const(dtype, -1 if dtype.is_signed else dtype.highest)


def _absorbing(ones: bool, decides: bool) -> Rule:
    """With all bits or none of them: the constant, or the other operand."""

    def rule(expr: Op) -> Expr | None:
        number = _ones(expr.dtype) if ones else zero(expr.dtype)
        for one, other in (expr.args, expr.args[::-1]):
            if one is number:
                return number if decides else other
        return None

    return rule


def _again(expr: Op) -> Expr | None:
    """`a & (a & b)` is `a & b`."""
    for one, other in (expr.args, expr.args[::-1]):
        match other:
            case Op(name, _, inner) if name == expr.name and one in inner:
                return other
            case _:
                pass
    return None


def _with_not(ones: bool) -> Rule:
    """`a & ~a` has no bit, `a | ~a` each."""

    def rule(expr: Op) -> Expr | None:
        for one, other in (expr.args, expr.args[::-1]):
            match one:
                case Op("not", _, (inner,)) if inner is other:
                    return _ones(expr.dtype) if ones else zero(expr.dtype)
                case _:
                    pass
        return None

    return rule


def _xor_ones(expr: Op) -> Expr | None:
    for one, other in (expr.args, expr.args[::-1]):
        if one is _ones(expr.dtype):
            return make("not", other)
    return None


_NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def _not_comparison(expr: Op) -> Expr | None:
    """Of floats only the equality of a pair is the opposite of its inequality: NaN."""
    match expr.args[0]:
        case Op(name, _, (a, b)) if name in _NEGATED:
            if name in ("eq", "ne") or not a.dtype.is_float:
                return make(_NEGATED[name], a, b)
        case _:
            pass
    return None


# -- comparisons -----------------------------------------------------------------------------------

_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def _constant_last(expr: Op) -> Expr | None:
    a, b = expr.args
    if isinstance(a, Const) and not isinstance(b, Const):
        return make(_SWAPPED[expr.name], b, a)
    return None


def _itself(expr: Op) -> Expr | None:
    """Comparison of a value with itself; a NaN is unlike itself."""
    if expr.name in ("lt", "gt"):
        return FALSE
    if expr.args[0].dtype.is_float:
        return None
    return FALSE if expr.name == "ne" else TRUE


def _with_truth(expr: Op) -> Expr | None:
    a, b = expr.args
    if not isinstance(b, Const) or b.dtype is not b1:
        return None
    return a if (b.value is True) == (expr.name == "eq") else make("not", a)


def _beyond_range(expr: Op) -> Expr | None:
    """No integer is below the lowest one."""
    _, b = expr.args
    if not isinstance(b, Const) or not b.dtype.is_integer:
        return None
    match expr.name:
        case "lt" | "ge" if b.value == b.dtype.lowest:
            return FALSE if expr.name == "lt" else TRUE
        case "gt" | "le" if b.value == b.dtype.highest:
            return FALSE if expr.name == "gt" else TRUE
        case _:
            return None


def _as_index(expr: Expr) -> Index | None:
    match expr:
        case Position(value):
            return value
        case Const(dtype, value) if dtype is i64:
            return index(int(value))
        case _:
            return None


def _known(expr: Op) -> Expr | None:
    """Positions whose ranges decide it."""
    a, b = map(_as_index, expr.args)
    if a is None or b is None:
        return None
    answer = _compare(expr.name, a, b)
    return None if answer is None else TRUE if answer else FALSE


def _compare(name: str, a: Index, b: Index) -> bool | None:
    match name:
        case "gt" | "le":
            less = known_less(b, a)
        case "lt" | "ge":
            less = known_less(a, b)
        case _:
            apart = known_less(a, b) is True or known_less(b, a) is True
            equal = None if a is not b else True
            found = False if apart else equal
            return found if name == "eq" or found is None else not found
    if less is None:
        return None
    return less if name in ("lt", "gt") else not less


_POSITIONS = ("add", "sub", "mul", "neg")


def _of_positions(expr: Op) -> Expr | None:
    """Arithmetic on positions where nothing can wrap."""
    values = [value for value in map(_as_index, expr.args) if value is not None]
    if len(values) != len(expr.args):
        return None
    match expr.name, values:
        case "add", (a, b):
            result = add(a, b)
        case "sub", (a, b):
            result = sub(a, b)
        case "mul", (a, b):
            result = mul(a, b)
        case _:
            result = mul(values[0], -1)
    for value in (*values, result):
        low, high = bounds(value)
        if low is None or high is None or low < i64.lowest or high > i64.highest:
            return None
    return reduced(Position(result))


# -- casts and choices -----------------------------------------------------------------------------

_SIGNIFICANT = {bf16: 8, f16: 11, f32: 24, f64: 53}


def _holds(dtype: DType, other: DType) -> bool:
    """Whether each value of `other` is one of `dtype`."""
    if other is b1 or other is dtype:
        return True
    if dtype.is_float:
        if other.is_float:
            return dtype is f64 or (dtype is f32 and other in (bf16, f16))
        return other.bits - other.is_signed <= _SIGNIFICANT[dtype]
    if not other.is_integer or not dtype.is_integer:
        return False
    return dtype.lowest <= other.lowest and other.highest <= dtype.highest


def _cast_of_cast(expr: Op) -> Expr | None:
    match expr.args[0]:
        case Op("cast", middle, (value,)):
            first, last = value.dtype, expr.dtype
        case _:
            return None
    if _holds(middle, first):
        if middle.is_float and first.is_integer and last.is_integer:
            # What the float does not fit is not what the integer wraps to.
            through = i32 if last.bits < 32 or last is i32 else i64
            if not _holds(through, first):
                return None
    elif not (
        first.is_integer and middle.is_integer and last.is_integer and last.bits <= middle.bits
    ):
        return None
    return value if first is last else make_cast(value, last)


def make_cast(value: Expr, dtype: DType) -> Expr:
    return value if value.dtype is dtype else reduced(Op("cast", dtype, (value,)))


def _cast_to_same(expr: Op) -> Expr | None:
    return expr.args[0] if expr.args[0].dtype is expr.dtype else None


def _bitcast(expr: Op) -> Expr | None:
    match expr.args[0]:
        case Op("bitcast", _, (value,)):
            return value if value.dtype is expr.dtype else Op("bitcast", expr.dtype, (value,))
        case value:
            return value if value.dtype is expr.dtype else None


def _decided(expr: Op) -> Expr | None:
    condition, yes, no = expr.args
    if isinstance(condition, Const):
        return yes if condition.value else no
    return yes if yes is no else None


def _select_not(expr: Op) -> Expr | None:
    match expr.args:
        case (Op("not", _, (condition,)), yes, no):
            return make(SELECT, condition, no, yes)
        case _:
            return None


def _select_truth(expr: Op) -> Expr | None:
    condition, yes, no = expr.args
    match yes, no:
        case (Const(value=True), Const(value=False)) if expr.dtype is b1:
            return condition
        case (Const(value=False), Const(value=True)) if expr.dtype is b1:
            return make("not", condition)
        case _, Const(value=False) if expr.dtype is b1:
            return make("and", condition, yes)
        case Const(value=True), _ if expr.dtype is b1:
            return make("or", condition, no)
        case _:
            return None


def _select_again(expr: Op) -> Expr | None:
    """A choice by the same condition inside of one has been made."""
    condition, yes, no = expr.args
    match yes:
        case Op("select", _, (other, inner, _)) if other is condition:
            return make(SELECT, condition, inner, no)
        case _:
            pass
    match no:
        case Op("select", _, (other, _, inner)) if other is condition:
            return make(SELECT, condition, yes, inner)
        case _:
            return None


_COMPARISON = (_constant_last, _same(_itself), _beyond_range, _known)
_ROUNDING = (_whole,)

# Operation -> rules, tried in order behind that of constants.
RULES: Mapping[str, tuple[Rule, ...]] = {
    "add": (_neutral(0, -0.0),),
    "sub": (
        _neutral(0, 0.0, left=False),
        _minus_zero,
        _same(lambda expr: None if expr.dtype.is_float else zero(expr.dtype)),
    ),
    "mul": (_neutral(1, 1.0), _times_minus_one, _times_zero),
    "div": (_by_power_of_two,),
    "neg": (_double,),
    "abs": (_unsigned, _inside("neg", "abs")),
    "min": (_same(lambda expr: expr.args[0]), _end_of_range(lowest=False)),
    "max": (_same(lambda expr: expr.args[0]), _end_of_range(lowest=True)),
    "fma": (_fma,),
    **dict.fromkeys(_ROUNDINGS, _ROUNDING),
    "copysign": (_same(lambda expr: expr.args[0]), _inside("neg", "abs", "copysign")),
    "quotient": (_by_one(left=True),),
    "floordiv": (_by_one(left=True),),
    "remainder": (_by_one(left=False),),
    "mod": (_by_one(left=False),),
    "shl": (_neutral(0, None, left=False),),
    "shr": (_neutral(0, None, left=False),),
    "and": (
        _absorbing(ones=False, decides=True),
        _absorbing(ones=True, decides=False),
        _same(lambda expr: expr.args[0]),
        _again,
        _with_not(ones=False),
    ),
    "or": (
        _absorbing(ones=True, decides=True),
        _absorbing(ones=False, decides=False),
        _same(lambda expr: expr.args[0]),
        _again,
        _with_not(ones=True),
    ),
    "xor": (
        _absorbing(ones=False, decides=False),
        _same(lambda expr: zero(expr.dtype)),
        _xor_ones,
    ),
    "not": (_double, _not_comparison),
    "lt": _COMPARISON,
    "le": _COMPARISON,
    "gt": _COMPARISON,
    "ge": _COMPARISON,
    "eq": (_with_truth, *_COMPARISON),
    "ne": (_with_truth, *_COMPARISON),
    "cast": (_cast_to_same, _cast_of_cast),
    "bitcast": (_bitcast,),
    SELECT: (_decided, _select_not, _select_truth, _select_again),
}
