"""Pure operations on scalars, and ways to fold many into one: what there is, as tables.

Each gives a value for every input. What hardware or C leave open is settled here:

* Integers wrap. Division by zero gives zero (a `Check` stands before it where that is an error);
  the lowest number divided by -1 is itself, with remainder zero.
* A shift by less than zero, or by the width or more, gives zero; an arithmetic one to the right
  gives the sign in every bit.
* A cast from float to integer truncates. What does not fit: to 8 and 16 bits, the low bits of the
  cast to `i32`; to `i32` and `i64`, the lowest number, as x86 does and eager with it; to unsigned
  types of 32 and 64 bits, the low bits of the cast to `i64`. NaN does not fit.
* A cast to bool is a comparison with zero. A cast from bool gives zero or one.
* A cast to a float type goes to the nearest value, the even one at ties. To and from `bf16` and
  `f16` it goes through `f32`: from `f64` and integers it rounds twice, as eager does.
* `min` and `max` give NaN where either operand is NaN, and comparisons with NaN are false but for
  `ne`. Zeros compare equal, whatever their sign; of equal operands `min` and `max` give the second.
* `round` goes to the even neighbour at ties. `fma` rounds once.
* Which NaN an operation gives, and its sign, is not defined; that it is one is.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from straightline.ir.dtypes import DType


class Operands(enum.Enum):
    """The types an operation takes: all its operands have one of them, the same."""

    FLOAT = "floats"
    INTEGER = "integers"
    NUMBER = "integers and floats"
    BITS = "bool and integers"
    ANY = "all"


class Result(enum.Enum):
    SAME = "the type of the operands"
    BOOL = "bool"
    GIVEN = "the type that the node says"


@dataclass(frozen=True)
class Operation:
    """One operation. `ulp`: how far compiled code may be from the exact value, in `f32`; 0: the
    correctly rounded one, bit for bit. `cost` compares operations: an addition is 1.
    """

    name: str
    arity: int
    operands: Operands
    result: Result = Result.SAME
    ulp: float = 0.0
    cost: int = 1


def _table(*operations: Operation) -> Mapping[str, Operation]:
    return {operation.name: operation for operation in operations}


_F, _I, _N, _B, _A = (
    Operands.FLOAT,
    Operands.INTEGER,
    Operands.NUMBER,
    Operands.BITS,
    Operands.ANY,
)

OPERATIONS: Mapping[str, Operation] = _table(
    # Exact, on numbers.
    Operation("add", 2, _N),
    Operation("sub", 2, _N),
    Operation("mul", 2, _N),
    Operation("neg", 1, _N),
    Operation("abs", 1, _N),
    Operation("min", 2, _N),
    Operation("max", 2, _N),
    # Exact, on floats.
    Operation("div", 2, _F, cost=4),
    Operation("sqrt", 1, _F, cost=4),
    Operation("fma", 3, _F),
    Operation("fmod", 2, _F, cost=20),  # C's: the sign of the first operand
    Operation("floor", 1, _F),
    Operation("ceil", 1, _F),
    Operation("trunc", 1, _F),
    Operation("round", 1, _F),
    Operation("copysign", 2, _F),
    Operation("nextafter", 2, _F, cost=4),
    # Integers; `quotient` and `remainder` truncate as in C, `floordiv` and `mod` round down.
    Operation("quotient", 2, _I, cost=20),
    Operation("remainder", 2, _I, cost=20),
    Operation("floordiv", 2, _I, cost=20),
    Operation("mod", 2, _I, cost=20),
    Operation("shl", 2, _I),
    Operation("shr", 2, _I),  # arithmetic on signed types, logical on unsigned ones
    Operation("mulhi", 2, _I, cost=3),  # the upper half of the double-width product
    # Bits, and truth.
    Operation("and", 2, _B),
    Operation("or", 2, _B),
    Operation("xor", 2, _B),
    Operation("not", 1, _B),
    # Comparisons.
    Operation("lt", 2, _A, Result.BOOL),
    Operation("le", 2, _A, Result.BOOL),
    Operation("gt", 2, _A, Result.BOOL),
    Operation("ge", 2, _A, Result.BOOL),
    Operation("eq", 2, _A, Result.BOOL),
    Operation("ne", 2, _A, Result.BOOL),
    # Types.
    Operation("cast", 1, _A, Result.GIVEN),
    Operation("bitcast", 1, _N, Result.GIVEN),
    # Functions.
    *(
        Operation(name, 1, _F, ulp=ulp, cost=cost)
        for name, ulp, cost in (
            ("exp", 2.0, 10), ("exp2", 2.0, 10), ("expm1", 2.0, 14),
            ("log", 2.0, 12), ("log2", 2.0, 12), ("log10", 2.0, 12), ("log1p", 2.0, 14),
            ("sin", 2.0, 16), ("cos", 2.0, 16), ("tan", 2.0, 20),
            ("asin", 2.0, 16), ("acos", 2.0, 16), ("atan", 2.0, 14),
            ("sinh", 2.0, 16), ("cosh", 2.0, 14), ("tanh", 2.0, 14),
            ("asinh", 2.0, 20), ("acosh", 2.0, 20), ("atanh", 2.0, 20),
            ("sigmoid", 2.0, 14), ("erf", 2.0, 16), ("erfc", 2.0, 20), ("erfinv", 2.0, 24),
            ("lgamma", 4.0, 60), ("digamma", 4.0, 60),
        )
    ),
    Operation("pow", 2, _F, ulp=2.0, cost=30),
    Operation("atan2", 2, _F, ulp=2.0, cost=20),
    Operation("hypot", 2, _F, ulp=2.0, cost=8),
)  # fmt: skip

# `select(condition, if_true, if_false)` has operands of two types, and stands apart.
SELECT = "select"


@dataclass(frozen=True)
class Combine:
    """A way to fold many values into one.

    `width`: how many components a value has. A combine of floats may be regrouped, and gives what
    some order of its operands gives; one of integers or bools does not depend on the order.
    """

    name: str
    width: int
    operands: Operands


COMBINES: Mapping[str, Combine] = {
    combine.name: combine
    for combine in (
        Combine("sum", 1, _N),
        Combine("product", 1, _N),
        Combine("min", 1, _A),  # NaN wins
        Combine("max", 1, _A),  # NaN wins
        Combine("any", 1, _B),  # or
        Combine("all", 1, _B),  # and
        Combine("xor", 1, _B),
        # (value, position as i64): of equal values the one with the lowest position; NaN wins.
        Combine("argmin", 2, _A),
        Combine("argmax", 2, _A),
        # log(sum(exp(x))): (largest, sum of exp(x - largest)); what it takes is x alone. Where x is
        # the largest the difference is zero, of infinities too.
        Combine("logsumexp", 2, _F),
    )
}


def identity(combine: str, dtype: DType, component: int = 0) -> bool | int | float:
    """What a fold of nothing gives, and folded with anything gives that."""
    lowest: Any = -float("inf") if dtype.is_float else dtype.lowest if dtype.is_integer else False
    highest: Any = float("inf") if dtype.is_float else dtype.highest if dtype.is_integer else True
    match combine, component:
        case (("sum" | "any" | "xor"), _):
            return 0.0 if dtype.is_float else 0 if dtype.is_integer else False
        case "product", _:
            return 1.0 if dtype.is_float else 1
        case "all", _:
            return -1 if dtype.is_signed else dtype.highest if dtype.is_integer else True
        case (("max" | "argmax" | "logsumexp"), 0):
            return lowest  # type: ignore[no-any-return]
        case (("min" | "argmin"), 0):
            return highest  # type: ignore[no-any-return]
        case (("argmin" | "argmax"), 1):
            return (1 << 63) - 1
        case "logsumexp", 1:
            return 0.0
    raise ValueError(f"no identity of {combine} for {dtype}")
