"""Properties of generated kernels."""

from __future__ import annotations

import numpy as np
import pytest
import slowly
from generate import FAILED, random_kernel, same

from straightline.ir.dtypes import BY_NAME
from straightline.ir.interpret import interpret
from straightline.ir.nodes import (
    Accumulate,
    Check,
    Const,
    Declare,
    Expr,
    Folded,
    How,
    Load,
    Loop,
    Op,
    Position,
    Running,
    Store,
    expressions,
    statements,
    walk,
)
from straightline.ir.ops import COMBINES, OPERATIONS
from straightline.ir.rewrite import simplify_kernel
from straightline.ir.verify import verify

BATCHES = [range(start, start + 25) for start in range(0, 300, 25)]
batches = pytest.mark.parametrize("seeds", BATCHES, ids=str)


@batches
def test_generated_kernels_are_sound_and_run(seeds):
    for seed in seeds:
        kernel, arrays, sizes = random_kernel(seed)
        verify(kernel)
        before = {name: array.copy() for name, array in arrays.items()}
        assert interpret(kernel, arrays, sizes) in (0, FAILED)
        for name, array in arrays.items():
            untouched = array.view("uint8") == before[name].view("uint8")
            assert name in kernel.outputs or untouched.all(), (seed, name)


@batches
def test_simplifying_changes_no_bit(seeds):
    for seed in seeds:
        kernel, arrays, sizes = random_kernel(seed)
        others = {name: array.copy() for name, array in arrays.items()}
        simple = simplify_kernel(kernel)
        verify(simple)
        assert simplify_kernel(simple) == simple
        status = interpret(kernel, arrays, sizes)
        assert interpret(simple, others, sizes) == status
        for buffer in kernel.buffers if status == 0 else ():
            both = arrays[buffer.name], others[buffer.name]
            assert same(buffer.dtype, *both), (seed, buffer)


def test_functions_are_in_kernels_that_are_asked_for():
    for seed in range(25):
        kernel, arrays, sizes = random_kernel(seed, functions=True)
        verify(kernel)
        assert interpret(kernel, arrays, sizes) in (0, FAILED)


def test_a_seed_gives_the_same_kernel_each_time():
    first, second = random_kernel(7), random_kernel(7)
    assert first[0] == second[0]
    assert first[2] == second[2]
    assert all(np.array_equal(a, second[1][name], equal_nan=a.dtype.kind == "f")
               for name, a in first[1].items())  # fmt: skip


def test_everything_is_generated():
    """What the grammar has comes up: operations, folds, loops, masks, checks, gathers, types."""
    seen: set[object] = set()
    statuses = set()
    for seed in range(300):
        kernel, arrays, sizes = random_kernel(seed, functions=True)
        statuses.add(interpret(kernel, arrays, sizes))
        seen |= {buffer.dtype for buffer in kernel.buffers}
        seen.add(("sizes", bool(kernel.sizes)))
        seen.add(("scratch", bool(kernel.scratch)))
        roots: list[Expr] = []
        for statement in statements(kernel.body):
            seen.add(type(statement))
            roots += expressions(statement)
            match statement:
                case Loop(_, how):
                    seen.add(how)
                case Declare(fold):
                    seen.add(fold.combine)
                case Accumulate(mask=mask) | Store(mask=mask):
                    seen.add((type(statement), mask is None))
                case _:
                    pass
        for expr in walk(*roots):
            seen.add(type(expr))
            match expr:
                case Op(name):
                    seen.add(name)
                case Load(_, coords, mask):
                    seen.add((Load, mask is None))
                    seen.add((Load, any(coord.computed for coord in coords)))
                case _:
                    pass
    assert statuses == {0, FAILED}
    expected = {*OPERATIONS, *COMBINES, *How, *BY_NAME.values(), "select"}
    expected |= {Loop, Declare, Accumulate, Store, Check, Const, Load, Position, Folded, Running}
    for both in (True, False):
        expected |= {("sizes", both), ("scratch", both), (Load, both), (Store, both)}
        expected.add((Accumulate, both))
    assert expected - seen == {"logsumexp"}


@batches
def test_all_positions_at_once_are_one_after_the_other(seeds):
    for seed in seeds:
        kernel, arrays, sizes = random_kernel(seed)
        if sum(array.size for array in arrays.values()) > 2000:
            continue
        others = {name: array.copy() for name, array in arrays.items()}
        status = interpret(kernel, arrays, sizes)
        assert slowly.run(kernel, others, sizes) == status, seed
        for buffer in kernel.buffers if status == 0 else ():
            both = arrays[buffer.name], others[buffer.name]
            assert same(buffer.dtype, *both), (seed, buffer)
