"""Computes written by hand, in few words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from straightline.ir.dtypes import DType, f32
from straightline.ir.index import ONE, Axis, Index, Indexlike, index, mul
from straightline.ir.nodes import Buffer, Compute, Expr, Load

Coords: TypeAlias = tuple[Index, ...]


def buffer(name: str, *shape: Indexlike, dtype: DType = f32) -> Buffer:
    """Memory in the order of its dimensions."""
    sizes = tuple(map(index, shape))
    strides: list[Index] = []
    step = ONE
    for size in reversed(sizes):
        strides.insert(0, step)
        step = mul(step, size)
    return Buffer(name, dtype, sizes, tuple(strides))


def axes(letter: str, shape: tuple[Index, ...]) -> tuple[tuple[Axis, ...], Coords]:
    made = tuple(Axis(f"{letter}{n}", size) for n, size in enumerate(shape))
    return made, tuple(map(index, made))


def elements(result: Buffer, value: Callable[..., Expr]) -> Compute:
    """A map: `value` of the coordinates."""
    made, coords = axes("a", result.shape)
    return Compute((result,), made, (value(*coords),), origins=(result.name,))


def reduced(
    result: Buffer, over: tuple[Indexlike, ...], combine: str, value: Callable[..., Expr]
) -> Compute:
    """A reduction: `value` of the coordinates, then of those that are gone."""
    kept, coords = axes("a", result.shape)
    gone, inner = axes("r", tuple(map(index, over)))
    values = (value(*coords, *inner),)
    return Compute((result,), kept, values, gone, None, combine, origins=(result.name,))


def at(source: Buffer, *coords: Indexlike) -> Load:
    return Load(source, tuple(map(index, coords)))
