"""Index expressions: integers known when a kernel runs, such as sizes and positions in loops.

An `Index` is a sum of products, kept in one normal form, so that equal ones are mostly the same
object. Its atoms carry their ranges: simplification needs no context. Division rounds down.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from straightline.ir.interning import intern

# Where an atom stands in a product: axes come first and sizes last, whatever was made when.
Order: TypeAlias = tuple[int, str]
# The lowest and the highest number that something can be; None where that is not known.
Bounds: TypeAlias = tuple[int | None, int | None]


@dataclass(init=False, frozen=True, eq=False, slots=True, weakref_slot=True)
class Size:
    """A number that the kernel is told when it is called, within `low` and `high`."""

    name: str
    low: int = 0
    high: int | None = None
    order: Order = field(init=False, repr=False)

    def __new__(cls, name: str, low: int = 0, high: int | None = None) -> Size:
        return intern(cls, (name, low, high), (name, low, high, (4, name)))

    def __repr__(self) -> str:
        return self.name


@dataclass(init=False, frozen=True, eq=False, slots=True, weakref_slot=True)
class Axis:
    """The position in a loop: from 0 to below `extent`."""

    name: str
    extent: Index
    order: Order = field(init=False, repr=False)

    def __new__(cls, name: str, extent: Index) -> Axis:
        return intern(cls, (name, extent), (name, extent, (0, name)))

    def __repr__(self) -> str:
        return self.name


@dataclass(init=False, frozen=True, eq=False, slots=True, weakref_slot=True)
class Div:
    """`top // bottom`; `bottom` is positive."""

    top: Index
    bottom: Index
    order: Order = field(init=False, repr=False)

    def __new__(cls, top: Index, bottom: Index) -> Div:
        return intern(cls, (top, bottom), (top, bottom, (2, f"({top} // {bottom})")))

    def __repr__(self) -> str:
        return self.order[1]


@dataclass(init=False, frozen=True, eq=False, slots=True, weakref_slot=True)
class Mod:
    """`top % bottom`; `bottom` is positive, and so is the result, or zero."""

    top: Index
    bottom: Index
    order: Order = field(init=False, repr=False)

    def __new__(cls, top: Index, bottom: Index) -> Mod:
        return intern(cls, (top, bottom), (top, bottom, (3, f"({top} % {bottom})")))

    def __repr__(self) -> str:
        return self.order[1]


@dataclass(init=False, frozen=True, eq=False, slots=True, weakref_slot=True)
class Given:
    """A number computed from data: `value` is an expression of type `i64` (see `nodes.Expr`).

    Its range is a promise for wherever memory is touched with it; a check or a mask that makes it
    true is one of `value` itself, not of the index.
    """

    value: Any
    low: int | None = None
    high: int | None = None
    order: Order = field(init=False, repr=False)

    def __new__(cls, value: Any, low: int | None = None, high: int | None = None) -> Given:
        return intern(cls, (value, low, high), (value, low, high, (1, f"<{value}>")))

    def __repr__(self) -> str:
        return self.order[1]


Atom: TypeAlias = Size | Axis | Div | Mod | Given
Product: TypeAlias = tuple[Atom, ...]

_order = operator.attrgetter("order")


@dataclass(init=False, frozen=True, eq=False, slots=True, weakref_slot=True)
class Index:
    """`sum(count * product for product, count in terms) + constant`; no count is zero."""

    terms: tuple[tuple[Product, int], ...]
    constant: int
    _bounds: list[Bounds] = field(init=False, repr=False)

    def __new__(cls, terms: tuple[tuple[Product, int], ...], constant: int) -> Index:
        return intern(cls, (terms, constant), (terms, constant, []))

    def __repr__(self) -> str:
        parts = [_show_term(product, count) for product, count in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """Every atom of it once, those inside of divisions too, in order."""
        return tuple(dict.fromkeys(_atoms(self)))

    @property
    def computed(self) -> tuple[Given, ...]:
        """The computed numbers in it, in order."""
        return tuple(dict.fromkeys(a for a in _atoms(self) if isinstance(a, Given)))

    @property
    def axes(self) -> frozenset[Axis]:
        """The loops that it changes in, but for those that computed numbers inside depend on."""
        return frozenset(atom for atom in self.atoms if isinstance(atom, Axis))


def _show_term(product: Product, count: int) -> str:
    text = "*".join(str(a) for a in product)
    return text if count == 1 else f"-{text}" if count == -1 else f"{count}*{text}"


def _atoms(index: Index) -> Iterator[Atom]:
    for product, _ in index.terms:
        for atom in product:
            yield atom
            if isinstance(atom, Div | Mod):
                yield from _atoms(atom.top)
                yield from _atoms(atom.bottom)


# -- making ----------------------------------------------------------------------------------------

Indexlike: TypeAlias = "Index | Atom | int"

# What is asked again and again for the same shapes; bounded, so that it keeps little alive.
_remembered = functools.lru_cache(maxsize=4096)


def index(value: Indexlike) -> Index:
    """A number or an atom as an index."""
    match value:
        case Index():
            return value
        case _:
            return _index(value)


@_remembered
def _index(value: Atom | int) -> Index:
    return Index((), value) if isinstance(value, int) else Index((((value,), 1),), 0)


ZERO, ONE = index(0), index(1)


def _sum(counts: Mapping[Product, int], constant: int) -> Index:
    kept = [(product, count) for product, count in counts.items() if count]
    kept.sort(key=lambda term: [_order(a) for a in term[0]])
    return Index(tuple(kept), constant)


def add(*values: Indexlike) -> Index:
    return _add(*map(index, values))


@_remembered
def _add(*values: Index) -> Index:
    counts: dict[Product, int] = {}
    constant = 0
    for value in values:
        constant += value.constant
        for product, count in value.terms:
            counts[product] = counts.get(product, 0) + count
    return _whole(_sum(counts, constant))


def mul(left: Indexlike, right: Indexlike) -> Index:
    return _mul(index(left), index(right))


@_remembered
def _mul(left: Index, right: Index) -> Index:
    counts: dict[Product, int] = {}
    for one, count in (*left.terms, ((), left.constant)):
        for other, times in (*right.terms, ((), right.constant)):
            product = tuple(sorted((*one, *other), key=_order))
            counts[product] = counts.get(product, 0) + count * times
    constant = counts.pop((), 0)
    return _whole(_sum(counts, constant))


def sub(left: Indexlike, right: Indexlike) -> Index:
    return add(left, mul(right, -1))


def product(values: Iterable[Indexlike]) -> Index:
    result = ONE
    for value in values:
        result = mul(result, value)
    return result


def _whole(value: Index) -> Index:
    """`value` with each `d*(x // d) + x % d` in it as `x`, and `a*(x // a % b) + x % a` as
    `x % (a*b)`.
    """
    for term, count in value.terms:
        for at, atom in enumerate(term):
            if not isinstance(atom, Mod):
                continue
            factor = Index(((term[:at] + term[at + 1 :], count),), 0) if term[1:] else index(count)
            below = floordiv(atom.top, atom.bottom)
            partner = mul(mul(factor, atom.bottom), below)
            if partner.terms and not partner.constant and _has(value, partner):
                return add(value, mul(partner, -1), mul(factor, sub(atom.top, atom)))
            joined = _joined(value, atom, factor)
            if joined is not None:
                return joined
    return value


def _has(value: Index, part: Index) -> bool:
    counts = dict(value.terms)
    return all(counts.get(product) == count for product, count in part.terms)


def _joined(value: Index, low: Mod, factor: Index) -> Index | None:
    """`value` with `low` and the digit above it as one."""
    below = floordiv(low.top, low.bottom)
    for term, _ in value.terms:
        for atom in term:
            if isinstance(atom, Mod) and atom.top is below:
                digit = mul(mul(factor, low.bottom), atom)
                if _has(value, digit):
                    both = mod(low.top, mul(low.bottom, atom.bottom))
                    return add(value, mul(digit, -1), mul(factor, sub(both, low)))
    return None


def floordiv(top: Indexlike, bottom: Indexlike) -> Index:
    """`top // bottom`, for a positive `bottom`."""
    return _floordiv(index(top), index(bottom))


@_remembered
def _floordiv(top: Index, bottom: Index) -> Index:
    if bottom is ONE:
        return top
    multiple, rest = _split(top, bottom)
    if within(rest, bottom):
        return multiple
    if bottom.is_constant and rest.is_constant:
        return add(multiple, rest.constant // bottom.constant)
    return add(multiple, _div(rest, bottom))


def _div(top: Index, bottom: Index) -> Index:
    match only_atom(top):
        case Div(inner, below):
            return floordiv(inner, mul(below, bottom))
        case Mod(inner, below):
            multiple, rest = _split(below, bottom)
            if rest is ZERO:
                return mod(floordiv(inner, bottom), multiple)
        case _:
            pass
    coarse = _coarse(top, bottom)
    if coarse is not None:
        _, upper, _, below = coarse
        return floordiv(upper, below)
    return index(Div(top, bottom))


def mod(top: Indexlike, bottom: Indexlike) -> Index:
    """`top % bottom`, for a positive `bottom`."""
    return _mod(index(top), index(bottom))


@_remembered
def _mod(top: Index, bottom: Index) -> Index:
    _, rest = _split(top, bottom)
    if within(rest, bottom):
        return rest
    if bottom.is_constant and rest.is_constant:
        return index(rest.constant % bottom.constant)
    match only_atom(rest):
        case Mod(inner, below) if _split(below, bottom)[1] is ZERO:
            return mod(inner, bottom)
        case _:
            pass
    coarse = _coarse(rest, bottom)
    if coarse is not None:
        step, upper, lower, below = coarse
        return add(mul(mod(upper, below), step), lower)
    return index(Mod(rest, bottom))


def _coarse(top: Index, bottom: Index) -> tuple[Index, Index, Index, Index] | None:
    """(step, upper, lower, below) with `top == upper * step + lower`, `bottom == below * step` and
    `0 <= lower < step`, for a step over one: it goes up by whole steps. None if there is none.
    """
    for step in _steps(top, bottom):
        below, none = _split(bottom, step)
        if none is not ZERO:
            continue
        upper, lower = _split(top, step)
        if upper.terms and within(lower, step):
            return step, upper, lower, below
    return None


def _steps(top: Index, bottom: Index) -> Iterator[Index]:
    """Divisors of `bottom` to try: those that some term of `top` is a multiple of."""
    common = math.gcd(bottom.constant, *(count for _, count in bottom.terms))
    factors: list[Atom] = []
    if bottom.constant == 0 and len(bottom.terms) == 1:
        factors = [a for a in bottom.terms[0][0] if at_least(a, 1)]
    seen: set[Index] = {ONE, bottom}
    for product_, count in top.terms:
        shared: list[Atom] = []
        for atom in factors:
            if product_.count(atom) > shared.count(atom):
                shared.append(atom)
        step = mul(product(shared), math.gcd(common, count))
        if step not in seen:
            seen.add(step)
            yield step


def only_atom(value: Index) -> Atom | None:
    """The atom that it is, if it is one."""
    if value.constant == 0 and len(value.terms) == 1:
        (product, count) = value.terms[0]
        if count == 1 and len(product) == 1:
            return product[0]
    return None


def _split(top: Index, bottom: Index) -> tuple[Index, Index]:
    """(q, r) with `top == q * bottom + r`, where q takes all terms that are whole multiples."""
    if bottom.is_constant:
        by = bottom.constant
        multiple = {p: c // by for p, c in top.terms if c % by == 0}
        rest = {p: c for p, c in top.terms if c % by}
        return _sum(multiple, top.constant // by), _sum(rest, top.constant % by)
    if bottom.constant == 0 and len(bottom.terms) == 1:
        factors, by = bottom.terms[0]
        multiple, rest = {}, {}
        for product, count in top.terms:
            left = _without(product, factors)
            if left is None or count % by:
                rest[product] = count
            else:
                multiple[left] = count // by
        whole = multiple.pop((), 0)
        return _sum(multiple, whole), _sum(rest, top.constant)
    return _split_by_sum(top, bottom)


def _split_by_sum(top: Index, bottom: Index) -> tuple[Index, Index]:
    """For a `bottom` of several terms: as many multiples of it as make what is left shorter."""
    factors, by = bottom.terms[0]
    quotient = ZERO
    for product_, count in top.terms:
        left = _without(product_, factors)
        if left is None or count % by:
            continue
        times = Index(((left, count // by),), 0) if left else index(count // by)
        part = mul(times, bottom)
        if _has(top, part):
            quotient = add(quotient, times)
            top = sub(top, part)
    return quotient, top


def _without(product: Product, factors: Product) -> Product | None:
    left = list(product)
    for factor in factors:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


# -- ranges ----------------------------------------------------------------------------------------


def bounds(value: Indexlike) -> Bounds:
    """The lowest and the highest number it can be; None where that is not known."""
    value = index(value)
    if not value._bounds:
        value._bounds.append(_bounds_of(value))
    return value._bounds[0]


def _bounds_of(value: Index) -> Bounds:
    low: int | None = value.constant
    high: int | None = value.constant
    for product, count in value.terms:
        term: Bounds = (count, count)
        for atom in product:
            term = _times(term, _atom_bounds(atom))
        low = None if low is None or term[0] is None else low + term[0]
        high = None if high is None or term[1] is None else high + term[1]
    return low, high


def _times(left: Bounds, right: Bounds) -> Bounds:
    if None not in (*left, *right):
        corners = [a * b for a in left for b in right]  # type: ignore[operator]
        return min(corners), max(corners)
    if left[0] is not None and left[0] >= 0 and right[0] is not None and right[0] >= 0:
        return left[0] * right[0], None
    if left[1] is not None and left[1] <= 0 and right[0] is not None and right[0] >= 0:
        return None, left[1] * right[0]
    return None, None


def _atom_bounds(atom: Atom) -> Bounds:
    match atom:
        case Size(_, low, high):
            return low, high
        case Axis(_, extent):
            # Inside of its loop the extent is at least one.
            most = bounds(extent)[1]
            return 0, None if most is None else max(most - 1, 0)
        case Given(_, low, high):
            return low, high
        case Mod(top, bottom):
            most = bounds(bottom)[1]
            low, high = bounds(top)
            if low is not None and low >= 0 and high is not None:
                return 0, high if most is None else min(high, most - 1)
            return 0, None if most is None else most - 1
        case Div(top, bottom):
            (lowest, highest), (least, most) = bounds(top), bounds(bottom)
            by = max(least or 1, 1)
            if lowest is not None:
                far = by if lowest < 0 else most
                lowest = 0 if far is None else lowest // far
            if highest is not None:
                far = by if highest >= 0 else most
                highest = -1 if far is None else highest // far
            return lowest, highest


def at_least(value: Indexlike, low: int) -> bool:
    """Whether it is known to be `low` or more."""
    return _at_least(index(value), low)


@_remembered
def _at_least(value: Index, low: int) -> bool:
    least = bounds(value)[0]
    if least is None or least < low:
        least = bounds(_lowest(value))[0]
    return least is not None and least >= low


def within(value: Indexlike, bound: Indexlike) -> bool:
    """Whether `0 <= value < bound` is known."""
    return at_least(value, 0) and at_least(sub(bound, value), 1)


def known_less(left: Indexlike, right: Indexlike) -> bool | None:
    """Whether `left < right`; None where that is not known or not always the same."""
    if at_least(sub(right, left), 1):
        return True
    return False if at_least(sub(left, right), 0) else None


def _lowest(value: Index) -> Index:
    """A lower bound, in sizes alone where positions in it grow or shrink with nothing negative."""
    result = index(value.constant)
    for term, count in value.terms:
        lower = index(count)
        moving = [_last(atom) for atom in term]
        if any(moving) and all(at_least(atom, 0) for atom in term):
            if count > 0:
                continue
            for atom, last in zip(term, moving, strict=True):
                lower = mul(lower, atom if last is None else last)
        else:
            lower = mul(lower, product(term))
        result = add(result, lower)
    return result


def _last(atom: Atom) -> Index | None:
    """The highest value of one that starts at zero."""
    match atom:
        case Axis(_, extent):
            return sub(extent, 1)
        case Mod(_, bottom):
            return sub(bottom, 1)
        case _:
            return None


# -- using -----------------------------------------------------------------------------------------


def substitute(value: Index, replace: Callable[[Atom], Indexlike | None]) -> Index:
    """`value` with the atoms for which `replace` gives something replaced by it."""
    result = index(value.constant)
    changed = False
    for term, count in value.terms:
        made = index(count)
        for atom in term:
            new = _substitute_atom(atom, replace)
            changed = changed or new is not atom
            made = mul(made, new)
        result = add(result, made)
    return result if changed else value


def _substitute_atom(atom: Atom, replace: Callable[[Atom], Indexlike | None]) -> Indexlike:
    found = replace(atom)
    if found is not None:
        return found
    match atom:
        case Div(top, bottom):
            new = substitute(top, replace), substitute(bottom, replace)
            return atom if new == (top, bottom) else floordiv(*new)
        case Mod(top, bottom):
            new = substitute(top, replace), substitute(bottom, replace)
            return atom if new == (top, bottom) else mod(*new)
        case _:
            return atom


def evaluate(value: Indexlike, number: Callable[[Size | Axis | Given], Any]) -> Any:
    """Its value, `number` telling that of sizes, axes and computed numbers (integers or arrays)."""
    value = index(value)
    result: Any = value.constant
    for term, count in value.terms:
        made: Any = count
        for atom in term:
            match atom:
                case Div(top, bottom):
                    made = made * (evaluate(top, number) // evaluate(bottom, number))
                case Mod(top, bottom):
                    made = made * (evaluate(top, number) % evaluate(bottom, number))
                case _:
                    made = made * number(atom)
        result = result + made
    return result


def slope(value: Index, axis: Axis) -> Index | None:
    """What it grows by from one position of `axis` to the next; None where that changes.

    Computed numbers are taken not to depend on the axis.
    """
    result = ZERO
    for term, count in value.terms:
        times = sum(atom is axis for atom in term)
        inside = any(
            isinstance(a, Div | Mod) and axis in (*_atoms(a.top), *_atoms(a.bottom)) for a in term
        )
        if times > 1 or inside:
            return None
        if times:
            rest = tuple(atom for atom in term if atom is not axis)
            result = add(result, mul(count, product(rest)))
    return result
