"""How two partial results of a fold become one: `ops.COMBINES` written in operations."""

from __future__ import annotations

from straightline.ir.dtypes import b1
from straightline.ir.nodes import Const, Expr, op

Values = tuple[Expr, ...]


def combined(combine: str, left: Values, right: Values) -> Values:
    """What the values `left` and `right` come to, `left` being the earlier ones."""
    a, b = left[0], right[0]
    match combine:
        case "sum":
            return (op("add", a, b),)
        case "product":
            return (op("mul", a, b),)
        case "any":
            return (op("or", a, b),)
        case "all":
            return (op("and", a, b),)
        case "xor":
            return (op("xor", a, b),)
        case "min" | "max":
            if a.dtype is b1:
                return (op("and" if combine == "min" else "or", a, b),)
            return (op(combine, a, b),)
        case "argmin" | "argmax":
            return _first(combine, left, right)
        case "logsumexp":
            return _log_sum(left, right)
        case _:
            raise ValueError(f"no combine {combine!r}")


def taken(combine: str, left: Values, values: Values, rising: bool) -> Values:
    """What `left` comes to with one more value, as an `Accumulate` gives it; `rising`: positions
    come in order.
    """
    if combine == "logsumexp":
        return _log_sum(left, (values[0], Const(values[0].dtype, 1.0)))
    if combine in ("argmin", "argmax") and rising:
        # A later position is lower than none at all, with which the fold starts.
        takes = op("or", _better(combine, left[0], values[0]), op("lt", values[1], left[1]))
        return tuple(op("select", takes, b, a) for a, b in zip(left, values, strict=True))
    return combined(combine, left, values)


def _first(combine: str, left: Values, right: Values) -> Values:
    """The better of two, the one with the lower position where they are alike."""
    (a, at), (b, other) = left, right
    later = _better(combine, a, b)
    alike = op("not", op("or", later, _better(combine, b, a)))
    takes = op("or", later, op("and", alike, op("lt", other, at)))
    return op("select", takes, b, a), op("select", takes, other, at)


def _better(combine: str, a: Expr, b: Expr) -> Expr:
    """Whether `b` is better than `a`; NaN is the best."""
    if not a.dtype.is_float:
        return op("lt" if combine == "argmin" else "gt", b, a)
    not_worse = op("not", op("ge" if combine == "argmin" else "le", b, a))
    return op("and", not_worse, op("eq", a, a))


def _log_sum(left: Values, right: Values) -> Values:
    """Both sums relative to the larger of the two largest: one of them keeps its own."""
    (a, total), (b, more) = left, right
    largest = op("max", a, b)
    zero = Const(a.dtype, 0.0)
    # Equal infinities have no difference, and lie no distance apart.
    apart = op("select", op("eq", a, b), zero, op("neg", op("abs", op("sub", a, b))))
    scale = op("exp", apart)
    right_larger = op("gt", b, a)
    mine = op("select", right_larger, op("mul", total, scale), total)
    other = op("select", right_larger, more, op("mul", more, scale))
    return largest, op("add", mine, other)
