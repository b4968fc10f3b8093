"""About how long a kernel takes: what decides whether threads share it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from straightline.ir.index import ONE, Index, mul
from straightline.ir.nodes import Accumulate, Check, Expr, How, Kernel, Load, Loop, Statement, Store
from straightline.ir.nodes import walk as nodes_below
from straightline.launch.descriptor import Work
from straightline.schedule import cost

OPERATION_NS = {True: 0.03, False: 0.4}
"""An addition for one element: as a lane of a vector, and alone."""

TRANSFER_NS = 0.1
"""What an element takes on its way from or to memory."""

GRAIN_NS = 2000.0
"""The least that is worth another thread's attention."""


def work(kernel: Kernel) -> Work:
    """The estimate for one position of the outermost loop, or for the whole."""
    body, lanes = kernel.body, False
    match body:
        case (Loop(_, How.PARALLEL | How.VECTOR as how, inside),):
            body, lanes = inside, how is How.VECTOR
        case _:
            pass
    parts = list(_parts(body, ONE, lanes))
    total = sum(each * _guess(times) for each, times in parts)
    largest = max((times for _, times in parts), key=_guess, default=ONE)
    grain = max(1, int(GRAIN_NS / total)) if total else 1
    if largest.is_constant:
        return Work(total, ONE, grain)
    return Work(total / _guess(largest), largest, grain)


def _guess(times: Index) -> int:
    return max(1, cost.amount(times))


def _parts(body: Iterable[Statement], times: Index, lanes: bool) -> Iterator[tuple[float, Index]]:
    """Nanoseconds, and how often they are spent."""
    for statement in body:
        match statement:
            case Loop(axis, how, inside):
                yield from _parts(inside, mul(times, axis.extent), lanes or how is How.VECTOR)
            case Accumulate(_, values, _):
                yield _price(values, lanes), times
            case Store(_, _, value, _):
                yield _price((value,), lanes) + TRANSFER_NS, times
            case Check(condition, _):
                yield _price((condition,), lanes), times
            case _:
                pass


def _price(values: tuple[Expr, ...], lanes: bool) -> float:
    loads = sum(isinstance(node, Load) for node in nodes_below(*values))
    return cost.arithmetic(*values) * OPERATION_NS[lanes] + loads * TRANSFER_NS
