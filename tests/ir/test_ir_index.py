"""Index expressions against what they evaluate to."""

from __future__ import annotations

import itertools
import random

import pytest

from straightline.ir.index import (
    ONE,
    ZERO,
    Atom,
    Axis,
    Div,
    Given,
    Index,
    Mod,
    Size,
    add,
    at_least,
    bounds,
    evaluate,
    floordiv,
    index,
    known_less,
    mod,
    mul,
    product,
    slope,
    sub,
    substitute,
    within,
)

n, m = Size("n", 1, 6), Size("m", 1)
i, j = Axis("i", index(n)), Axis("j", index(4))
k = Axis("k", mul(m, 3))
g = Given("a number", -3, 5)
ATOMS = (n, m, i, j, k, g)


class Plain:
    """The same expression as a function, with no simplification."""

    def __init__(self, value, of):
        self.value, self.of = value, of


def random_pair(rng: random.Random, depth: int) -> Plain:
    """An index, and what it is at a place."""
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.4:
            number = rng.choice([0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -5])
            return Plain(index(number), lambda at: number)
        atom = rng.choice(ATOMS)
        return Plain(index(atom), lambda at: at[atom])
    left = random_pair(rng, depth - 1)
    match rng.choice(["add", "add", "sub", "mul", "floordiv", "mod"]):
        case "add":
            right = random_pair(rng, depth - 1)
            return Plain(add(left.value, right.value), lambda at: left.of(at) + right.of(at))
        case "sub":
            right = random_pair(rng, depth - 1)
            return Plain(sub(left.value, right.value), lambda at: left.of(at) - right.of(at))
        case "mul":
            right = random_pair(rng, min(depth - 1, 1))
            return Plain(mul(left.value, right.value), lambda at: left.of(at) * right.of(at))
        case name:
            bottom = random_bottom(rng)
            if name == "floordiv":
                value = floordiv(left.value, bottom.value)
                return Plain(value, lambda at: left.of(at) // bottom.of(at))
            return Plain(mod(left.value, bottom.value), lambda at: left.of(at) % bottom.of(at))


def random_bottom(rng: random.Random) -> Plain:
    number = rng.choice([1, 2, 3, 4, 4, 6, 8, 12])
    sizes = [size for size in (n, m) if rng.random() < 0.4]
    plus = rng.choice([0, 0, 0, 1, 4])
    value = add(mul(product(sizes), number), plus)

    def of(at):
        result = number
        for size in sizes:
            result *= at[size]
        return result + plus

    return Plain(value, of)


def places(rng: random.Random, count: int = 40):
    for _ in range(count):
        sizes = {n: rng.randint(1, 6), m: rng.randint(1, 9)}
        yield {
            **sizes,
            i: rng.randrange(sizes[n]),
            j: rng.randrange(4),
            k: rng.randrange(3 * sizes[m]),
            g: rng.randint(-3, 5),
        }


def value_at(value: Index, at) -> int:
    return evaluate(value, lambda atom: at[atom])


BATCHES = pytest.mark.parametrize("batch", range(20))
EACH = 60


def cases(batch: int):
    for seed in range(batch * EACH, (batch + 1) * EACH):
        rng = random.Random(seed)
        yield rng, random_pair(rng, rng.randint(1, 5))


@BATCHES
def test_expressions_are_worth_what_they_were_made_of(batch):
    for rng, plain in cases(batch):
        for at in places(rng):
            assert value_at(plain.value, at) == plain.of(at), plain.value


@BATCHES
def test_ranges_hold(batch):
    for rng, plain in cases(batch):
        low, high = bounds(plain.value)
        other = random_pair(rng, 2)
        less = known_less(plain.value, other.value)
        inside = within(plain.value, other.value)
        fairly = at_least(plain.value, -1)
        for at in places(rng):
            number, bound = plain.of(at), other.of(at)
            assert low is None or low <= number, plain.value
            assert high is None or number <= high, plain.value
            assert not fairly or number >= -1
            assert less is None or less == (number < bound), (plain.value, other.value)
            assert not inside or 0 <= number < bound, (plain.value, other.value)


@BATCHES
def test_substitution_is_evaluation_at_another_place(batch):
    for rng, plain in cases(batch):
        # Positions of `i` stay below its extent: those that are put in place are there too.
        new_i = rng.choice([sub(sub(n, 1), i), mod(k, n), index(0)])
        new_k = rng.choice([add(mul(m, 2), mod(k, m)), sub(mul(m, 3), add(k, 1))])
        new: dict[Atom, Index] = {i: new_i, k: new_k}
        changed = substitute(plain.value, new.get)
        for at in places(rng):
            moved = {**at, i: value_at(new_i, at), k: value_at(new_k, at)}
            assert value_at(changed, at) == plain.of(moved), (plain.value, new)


@BATCHES
def test_slopes_are_differences(batch):
    for rng, plain in cases(batch):
        step = slope(plain.value, j)
        if step is None:
            continue
        for at in places(rng, 10):
            here, there = {**at, j: 1}, {**at, j: 2}
            assert value_at(step, here) == plain.of(there) - plain.of(here), plain.value


def test_what_is_the_same_is_one_object():
    assert add(i, mul(j, 2), 1) is add(mul(2, j), add(1, i))
    assert mul(add(i, 1), add(n, 2)) is add(mul(n, i), mul(i, 2), n, 2)
    assert floordiv(k, 4) is index(Div(index(k), index(4)))
    assert Axis("i", index(n)) is i
    assert Size("n", 1, 7) is not n


a, b, c = Axis("a", index(4)), Axis("b", index(3)), Axis("c", index(5))
flat = Axis("flat", index(60))
N, M = Size("N", 2), Size("M", 2)
p, q, s = Axis("p", index(N)), Axis("q", index(M)), Axis("s", index(8))
pq = Axis("pq", mul(N, M))
ps = Axis("ps", mul(N, 8))
odd = Axis("odd", mul(N, add(M, 3)))
r = Axis("r", add(M, 3))

MERGED = add(mul(a, 15), mul(b, 5), c)
REDUCED = [
    # A merged dimension taken apart.
    (floordiv(MERGED, 15), index(a)),
    (mod(floordiv(MERGED, 5), 3), index(b)),
    (mod(MERGED, 5), index(c)),
    (floordiv(MERGED, 5), add(mul(a, 3), b)),
    (mod(MERGED, 15), add(mul(b, 5), c)),
    # One taken apart, and merged.
    (add(mul(floordiv(flat, 15), 15), mul(mod(floordiv(flat, 5), 3), 5), mod(flat, 5)),
     index(flat)),
    (add(mod(flat, 5), mul(mod(floordiv(flat, 5), 3), 5)), mod(flat, 15)),
    # Into other lengths.
    (floordiv(add(mul(flat, 2), mod(a, 2)), 2), index(flat)),
    (mod(add(mul(a, 4), mod(c, 4)), 8), add(mul(mod(a, 2), 4), mod(c, 4))),
    (floordiv(add(mul(a, 4), mod(c, 4)), 8), floordiv(a, 2)),
    (floordiv(floordiv(flat, 5), 3), floordiv(flat, 15)),
    (mod(mod(flat, 15), 5), mod(flat, 5)),
    (floordiv(mod(flat, 15), 5), mod(floordiv(flat, 5), 3)),
    # Symbolic lengths.
    (floordiv(add(mul(p, M), q), M), index(p)),
    (mod(add(mul(p, M), q), M), index(q)),
    (add(mul(floordiv(pq, M), M), mod(pq, M)), index(pq)),
    (floordiv(pq, mul(N, M)), ZERO),
    (floordiv(add(mul(p, 8), s), 8), index(p)),
    (floordiv(add(mul(p, M, ), q), mul(M, N)), ZERO),
    (floordiv(mul(p, M), mul(M, 2)), floordiv(p, 2)),
    (mod(mul(pq, M), mul(M, 2)), mul(mod(pq, 2), M)),
    (mod(add(mul(s, M), q), mul(M, 2)), add(mul(mod(s, 2), M), q)),
    (floordiv(add(mul(p, add(M, 3)), r), add(M, 3)), index(p)),
    (mod(add(mul(p, add(M, 3)), r), add(M, 3)), index(r)),
    (add(mul(floordiv(odd, add(M, 3)), add(M, 3)), mod(odd, add(M, 3))), index(odd)),
    # Below zero.
    (floordiv(add(mul(a, 4), -1), 4), add(a, -1)),
    (mod(add(mul(a, 4), -1), 4), index(3)),
    (floordiv(index(-7), 2), index(-4)),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), REDUCED)
def test_reshapes_come_to_what_they_are(value, expected):
    assert value is expected


def test_substitution_takes_a_flat_loop_apart():
    coords = (floordiv(flat, 15), mod(floordiv(flat, 5), 3), mod(flat, 5))
    parts = [substitute(coord, {flat: MERGED}.get) for coord in coords]  # type: ignore[arg-type]
    assert parts == [index(a), index(b), index(c)]
    pair = (floordiv(pq, M), mod(pq, M))
    merged = add(mul(p, M), q)
    parts = [substitute(coord, {pq: merged}.get) for coord in pair]  # type: ignore[arg-type]
    assert parts == [index(p), index(q)]


@pytest.mark.parametrize(
    ("value", "bound", "expected"),
    [
        (p, N, True),
        (add(p, 1), N, False),
        (sub(sub(N, 1), p), N, True),
        (add(mul(p, M), q), mul(N, M), True),
        (mod(pq, M), M, True),
        (sub(p, 1), N, False),
        (add(mul(p, M), q, 1), mul(N, M), False),
        (floordiv(flat, 7), 9, True),
        (floordiv(flat, 7), 8, False),
    ],
)
def test_what_is_known_to_lie_within(value, bound, expected):
    assert within(value, bound) is expected


def test_all_splits_of_a_length_are_inverse():
    """Every way to cut 24 into three, there and back."""
    f = Axis("f", index(24))
    for x, y in itertools.product((1, 2, 3, 4, 6, 8, 12), repeat=2):
        if 24 % (x * y) == 0:
            digits = floordiv(f, x * y), mod(floordiv(f, y), x), mod(f, y)
            assert add(mul(digits[0], x * y), mul(digits[1], y), digits[2]) is index(f), (x, y)


def test_text_has_signs_and_factors():
    assert repr(add(mul(i, -2), mul(n, m), -3)) == "-2*i + m*n - 3"
    assert repr(floordiv(add(k, 1), 4)) == "(k + 1 // 4)"
    assert repr(ZERO) == "0"
    assert slope(index(Mod(index(j), index(3))), j) is None
    assert slope(mul(j, n), j) is index(n)
    assert ONE.is_constant
