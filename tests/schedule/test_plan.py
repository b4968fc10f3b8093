"""What computes written by hand become: how many kernels, and their text."""

from __future__ import annotations

import pytest
from computes import at, axes, buffer, elements, reduced

from straightline.ir.dtypes import f32, i64
from straightline.ir.index import Size, add
from straightline.ir.nodes import Compute, Const, Load, Position, op
from straightline.ir.text import show
from straightline.ir.verify import verify
from straightline.schedule.plan import plan
from straightline.schedule.program import External, Launch, Program


def softmax(n, m) -> Program:
    x, o, e = buffer("x", n, m), buffer("o", n, m), buffer("e", n, m)
    top, total = buffer("top", n), buffer("total", n)
    return Program(
        (
            reduced(top, (m,), "max", lambda i, j: at(x, i, j)),
            elements(e, lambda i, j: op("exp", op("sub", at(x, i, j), at(top, i)))),
            reduced(total, (m,), "sum", lambda i, j: at(e, i, j)),
            elements(o, lambda i, j: op("div", at(e, i, j), at(total, i))),
        ),
        frozenset({"o"}),
    )


def texts(program: Program, **options) -> list[str]:
    found = plan(program, **options).kernels
    for kernel in found:
        verify(kernel)
    return [show(kernel) for kernel in found]


def test_a_softmax_is_one_kernel_that_keeps_its_row():
    (text,) = texts(softmax(Size("n", 1), 64))
    assert (
        text
        == """\
kernel k0_o
size n: 1..
input x: f32[n, 64] strides [64, 1]
output o: f32[n, 64] strides [64, 1]
scratch e_row: f32[64] strides [1]

parallel p < n:
    fold fold_top = max(f32)
    vector j0 < 64:
        fold_top <- x[p, j0]
    fold fold_total = sum(f32)
    vector j0 < 64:
        $0 = exp(sub(x[p, j0], folded(fold_top)))
        e_row[j0] = $0
        fold_total <- $0
    vector j0 < 64:
        o[p, j0] = div(e_row[j0], folded(fold_total))
"""
    )


def test_without_fusion_each_compute_is_a_kernel():
    assert len(texts(softmax(8, 64), fusion=False)) == 4


def test_a_row_too_long_to_keep_goes_to_memory():
    found = plan(softmax(8, 1 << 16))
    assert "e" in found.made
    assert len(found.kernels) == 1


def test_maps_of_one_shape_are_one_flat_loop():
    x, y, z = (buffer(name, 6, 8) for name in "xyz")
    program = Program(
        (
            elements(y, lambda i, j: op("exp", at(x, i, j))),
            elements(z, lambda i, j: op("tanh", at(y, i, j))),
        ),
        frozenset({"y", "z"}),
    )
    assert texts(program) == [
        """\
kernel k0_y_z
input x: f32[48] strides [1]
output y: f32[48] strides [1]
output z: f32[48] strides [1]

vector i0i1 < 48:
    $0 = exp(x[i0i1])
    y[i0i1] = $0
    z[i0i1] = tanh($0)
"""
    ]


def test_a_transpose_is_done_in_tiles():
    x, t = buffer("x", 40, 64), buffer("t", 64, 40)
    (text,) = texts(Program((elements(t, lambda i, j: at(x, j, i)),), frozenset({"t"})))
    assert "serial r < 16:\n        vector c < 16:" in text
    # Of 40 columns the third tile has eight: the rest of it is masked. 64 rows are even.
    assert "lt(position(c + 16*(p % 3)), 40:i64)" in text
    assert "position(r" not in text


def test_columns_are_summed_side_by_side():
    x, s = buffer("x", 500, 64), buffer("s", 64)
    (text,) = texts(
        Program((reduced(s, (500,), "sum", lambda j, i: at(x, i, j)),), frozenset({"s"}))
    )
    assert "vector i0 < 64:\n    fold fold_s = sum(f32)\n    serial j0 < 500:" in text


@pytest.mark.parametrize(("size", "kernels"), [(1 << 20, 2), (1000, 1)])
def test_a_large_sum_is_done_in_parts(size, kernels):
    x, s = buffer("x", size), buffer("s")
    found = texts(Program((reduced(s, (size,), "sum", lambda i: at(x, i)),), frozenset({"s"})))
    assert len(found) == kernels
    assert ("parallel p < 32:" in found[0]) == (kernels == 2)


def test_what_nothing_needs_is_not_computed():
    x, y, z = (buffer(name, 8) for name in "xyz")
    program = Program(
        (elements(y, lambda i: at(x, i)), elements(z, lambda i: op("neg", at(x, i)))),
        frozenset({"z"}),
    )
    assert plan(program).made.keys() == {"z"}


def test_another_operation_between_two_maps_parts_them():
    x, y, e, z = (buffer(name, 8) for name in "xyez")
    program = Program(
        (
            elements(y, lambda i: op("exp", at(x, i))),
            External("e", frozenset({"y"}), frozenset({"e"})),
            elements(z, lambda i: op("exp", at(e, i))),
        ),
        frozenset({"z"}),
    )
    steps = plan(program).steps
    assert [type(step) for step in steps] == [Launch, External, Launch]


def test_a_size_that_an_operation_tells_is_waited_for():
    told = Size("u", 1)
    y = buffer("y", told)
    program = Program(
        (
            External("item", frozenset({"x"}), frozenset(), frozenset({told})),
            elements(y, lambda i: Const(f32, 1.0)),
        ),
        frozenset({"y"}),
    )
    assert [type(step) for step in plan(program).steps] == [External, Launch]


def test_a_neighbour_is_read_after_all_of_them_are_there():
    x, y, z = (buffer(name, 8) for name in "xyz")

    def shifted(i):
        inside = op("lt", Position(add(i, 1)), Const(i64, 8))
        return Load(y, (add(i, 1),), inside)

    steps = (elements(y, lambda i: op("exp", at(x, i))), elements(z, shifted))
    assert len(texts(Program(steps, frozenset({"y", "z"})))) == 2


def test_operations_are_named_in_a_kernels_order():
    steps = plan(softmax(8, 64)).steps
    assert [step.origins for step in steps if isinstance(step, Launch)] == [
        ("top", "e", "total", "o")
    ]


def test_the_same_program_gives_the_same_text():
    assert texts(softmax(8, 64)) == texts(softmax(8, 64))


def test_tensors_keep_their_shapes_beside_flat_kernels():
    x, y = buffer("x", 6, 8), buffer("y", 6, 8)
    program = Program((elements(y, lambda i, j: op("exp", at(x, i, j))),), frozenset({"y"}))
    (launch,) = plan(program).steps
    assert isinstance(launch, Launch)
    assert [len(tensor.shape) for tensor in launch.tensors] == [2, 2]
    assert [len(buffer.shape) for buffer in launch.kernel.buffers] == [1, 1]


def test_a_scan_is_serial_along_its_axis():
    x, y = buffer("x", 5, 7), buffer("y", 5, 7)
    made, coords = axes("a", x.shape)
    scan = Compute((y,), made, (at(x, *coords),), along=made[1], combine="sum")
    (text,) = texts(Program((scan,), frozenset({"y"})))
    assert "parallel p < 5:\n    fold fold_y = sum(f32)\n    serial j0 < 7:" in text
