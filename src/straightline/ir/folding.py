"""Folds of `ops.COMBINES` on numpy arrays: part of the interpreter.

Sums and products are taken in the order of the lanes, each in the type of the fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from straightline.ir.arithmetic import Array, constant, is_nan
from straightline.ir.dtypes import DType
from straightline.ir.nodes import Fold
from straightline.ir.ops import identity


def identities(fold: Fold) -> list[Array]:
    """What it starts with, a component each."""
    return [
        constant(dtype, identity(fold.combine, dtype, at)) for at, dtype in enumerate(fold.dtypes)
    ]


_IN_ORDER: Mapping[str, Any] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "any": np.bitwise_or,
    "all": np.bitwise_and,
    "xor": np.bitwise_xor,
}


class Groups:
    """Lanes sorted into groups, those of one group side by side; `mask` says which take part."""

    def __init__(self, group: Array, mask: Array, count: int) -> None:
        self.group, self.count = group, count
        self.taken = np.flatnonzero(mask)
        self.group_of_taken = group[self.taken]
        self.lengths = np.bincount(self.group_of_taken, minlength=count)
        starts = np.cumsum(self.lengths) - self.lengths
        # The column of each lane that takes part in the row of its group; column 0 is the start.
        self.column = np.arange(len(self.taken)) - starts[self.group_of_taken] + 1
        # How many of its group have been taken, behind each lane.
        self.so_far = np.cumsum(mask) - starts[group] if count else np.zeros(0, "int64")

    def fold(
        self, fold: Fold, values: list[Array], start: list[Array]
    ) -> tuple[list[Array], list[Array]]:
        """The components of each group in the end, and of each lane as far as it has come."""
        if fold.combine == "logsumexp":
            values = [values[0], np.ones_like(values[0])]
        rows = [self._rows(value, first) for value, first in zip(values, start, strict=True)]
        if fold.combine in _IN_ORDER:
            run = _IN_ORDER[fold.combine].accumulate
            rows = [run(rows[0], axis=1, dtype=rows[0].dtype)]
        else:
            rows = _scan(_COMBINE[fold.combine], fold.dtypes[0], rows)
        each = np.arange(self.count)
        ends = [row[each, self.lengths] for row in rows]
        return ends, [row[self.group, self.so_far] for row in rows]

    def _rows(self, value: Array, start: Array) -> Array:
        rows = np.zeros((self.count, int(self.lengths.max(initial=0)) + 1), value.dtype)
        rows[:, 0] = start
        rows[self.group_of_taken, self.column] = value[self.taken]
        return rows


def _scan(combine: Callable[..., list[Array]], dtype: DType, rows: list[Array]) -> list[Array]:
    """Every prefix along the rows, of a combine that does not mind regrouping."""
    step = 1
    while step < rows[0].shape[1]:
        left, right = [row[:, :-step] for row in rows], [row[:, step:] for row in rows]
        merged = combine(dtype, left, right)
        rows = [
            np.concatenate([row[:, :step], new], axis=1)
            for row, new in zip(rows, merged, strict=True)
        ]
        step *= 2
    return rows


def _better(less: Callable[[Array, Array], Array]) -> Callable[..., list[Array]]:
    def combine(dtype: DType, left: list[Array], right: list[Array]) -> list[Array]:
        (a, at), (b, other) = left, right
        nan_a, nan_b = is_nan(a, dtype), is_nan(b, dtype)
        equal = (a == b) | (nan_a & nan_b)
        first = np.where(equal, at <= other, np.where(nan_a | nan_b, nan_a, less(a, b)))
        return [np.where(first, a, b), np.where(first, at, other)]

    return combine


def _logsumexp(dtype: DType, left: list[Array], right: list[Array]) -> list[Array]:
    (a, times), (b, others) = left, right
    top = np.maximum(a, b)
    # Equal infinities differ by nothing.
    low, high = (np.where(x == top, np.zeros_like(x), x - top) for x in (a, b))
    return [top, times * np.exp(low) + others * np.exp(high)]


_COMBINE: Mapping[str, Callable[..., list[Array]]] = {
    "argmin": _better(np.less),
    "argmax": _better(np.greater),
    "logsumexp": _logsumexp,
}
