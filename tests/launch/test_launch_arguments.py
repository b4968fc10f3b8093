"""Tensors are checked one by one: what fits runs, what can be made to fit is copied, the rest is an
error that says what came and what was expected.
"""

import re

import pytest
import torch
from ir_kernels import ADD, add_builtin, buffer, kernel, loop
from torch._subclasses import FakeTensorMode

from straightline.ir.dtypes import BY_NAME, f32
from straightline.ir.index import Size, floordiv, index, mul
from straightline.launch import launcher
from straightline.launch.arguments import torch_dtype
from straightline.launch.descriptor import Work, describe
from straightline.launch.machine_code import assemble

NOTHING = "define i64 @k(ptr %data, ptr %sizes, i64 %low, i64 %high) {\n  ret i64 0\n}"


@pytest.fixture(params=["dlpack", "public"])
def tier(request, monkeypatch):
    """Both ways to read tensors behave the same."""
    if request.param == "public":
        monkeypatch.setattr(launcher, "reader", lambda: None)
    assert launcher.tier() == request.param
    return request.param


@pytest.fixture
def natively(monkeypatch):
    """Python is not to look at the arguments."""

    def settle(*_):
        raise AssertionError

    monkeypatch.setattr(launcher, "settle", settle)


@pytest.fixture
def add(tier):
    return add_builtin()


def tensors():
    return torch.randn(8), torch.randn(8), torch.full((8,), torch.nan)


def test_what_fits_runs(add):
    a, b, out = tensors()
    assert add(a, b, out) is None
    assert torch.equal(out, a + b)


def test_dlpack_is_what_this_torch_has(natively):
    assert launcher.tier() == "dlpack"
    launch = add_builtin()
    assert type(launch).__name__ == "builtin_function_or_method"
    launch(*tensors())


def test_strides_that_do_not_matter_are_not_looked_into(natively):
    launch = nothing([buffer("a", (1, 4), (77, 1)), buffer("out", (0, 4), (9, 9))])
    launch(torch.zeros(1, 4), torch.zeros(0, 4))


class Plain(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda a: a.requires_grad_(),
        lambda a: a.requires_grad_() * 1,
        lambda a: torch.nn.Parameter(a),
        lambda a: a.as_subclass(Plain),
        lambda a: torch.stack([a, a])[1],
        lambda a: torch.inference_mode()(torch.clone)(a),
    ],
    ids=["leaf", "with history", "parameter", "subclass", "slice", "inference"],
)
def test_tensors_of_every_kind_that_have_memory(add, make):
    a, b, out = tensors()
    made = make(a.clone())
    add(made, b, out)
    assert torch.equal(out, a + b)


@pytest.mark.parametrize(
    "make",
    [
        lambda a: torch.stack([a, a], 1)[:, 0],
        lambda a: a[:1].expand(8),
        lambda a: torch._neg_view(-a),
        lambda a: torch.complex(a, -a).conj().imag,
        lambda a: torch.stack([a, a], 1)[:, 0].requires_grad_(),
    ],
    ids=["strided", "expanded", "negated", "part of a conjugate", "strided leaf"],
)
def test_inputs_of_another_layout_are_copied(add, make):
    a, b, out = tensors()
    made = make(a.clone())
    add(made, b, out)
    assert torch.equal(out, made.detach() + b)


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, like):
        return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


def emptied(a):
    a.untyped_storage().resize_(0)
    return a


def fake(a):
    with FakeTensorMode():
        return torch.empty(8)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda a: 3, TypeError, "not int"),
        (lambda a: None, TypeError, "not NoneType"),
        (lambda a: a.numpy(), TypeError, "not ndarray"),
        (lambda a: a.double(), TypeError, "a float64 tensor"),
        (lambda a: a.bfloat16(), TypeError, "a bfloat16 tensor"),
        (lambda a: a.int(), TypeError, "an? int32 tensor"),
        (lambda a: a.cfloat().conj(), TypeError, "a complex64 tensor"),
        (lambda a: a.to("meta"), TypeError, "on meta"),
        (lambda a: a.to_sparse(), TypeError, "sparse_coo float32"),
        (lambda a: a[:4], RuntimeError, r"of sizes \(4,\)"),
        (lambda a: a.view(2, 4), RuntimeError, r"of sizes \(2, 4\)"),
        (lambda a: a.view(8, 1), RuntimeError, r"of sizes \(8, 1\)"),
        (lambda a: a[0], RuntimeError, r"of sizes \(\)"),
        (emptied, RuntimeError, "without memory"),
        (fake, RuntimeError, r"\(FakeTensor\)|data pointer"),
        (Wrapped, RuntimeError, r"\(Wrapped\)|data pointer"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_does_not_fit_is_an_error(add, make, error, says, place):
    args = [*tensors()]
    args[place] = make(args[place].clone())
    with pytest.raises(error, match=says) as caught:
        add(*args)
    if "data pointer" not in str(caught.value):
        assert "k0_add: a float32 tensor of sizes (8,)" in str(caught.value)
        assert f"for `{['a', 'b', 'out'][place]}`" in str(caught.value)
    assert place == 2 or args[2].isnan().all()


def test_an_output_of_another_layout_is_an_error(add):
    a, b, _ = tensors()
    out = torch.zeros(8, 2)[:, 0]
    with pytest.raises(RuntimeError, match=r"for `out`, not .* strides \(2,\)"):
        add(a, b, out)
    assert out.eq(0).all()


def test_the_number_of_arguments(add):
    a, b, out = tensors()
    for args in ((), (a, b), (a, b, out, 1)):
        with pytest.raises(TypeError, match=f"3 tensors and 0 integers, not {len(args)}"):
            add(*args)


def test_an_error_leaves_nothing_behind(add):
    a, b, out = tensors()
    for _ in range(3):
        with pytest.raises(TypeError):
            add(a.to("meta"), b, out)
        add(a, b, out)
        assert torch.equal(out, a + b)


def test_strides_of_single_elements_do_not_matter(tier):
    launch = nothing([buffer("a", (1, 4), (77, 1)), buffer("out", (4, 1), (1, 9))])
    launch(torch.zeros(1, 4), torch.zeros(4, 1))
    launch(torch.empty_strided((1, 4), (3, 1)), torch.empty_strided((4, 1), (1, 6)))
    with pytest.raises(RuntimeError, match="for `out`"):
        launch(torch.zeros(1, 4), torch.empty_strided((4, 1), (2, 1)))


def test_strides_of_empty_tensors_do_not_matter(tier):
    launch = nothing([buffer("out", (0, 4), (4, 1))])
    launch(torch.zeros(0, 4))
    launch(torch.empty_strided((0, 4), (1, 5)))
    with pytest.raises(RuntimeError, match=r"sizes \(0, 5\)"):
        launch(torch.zeros(0, 5))


def nothing(buffers, sizes=(), work=None):
    made = kernel(buffers, sizes)
    return launcher.kernel_builtin("k", made, assemble(NOTHING), RuntimeError, work or Work())


def test_an_overlapping_layout_is_not_made(tier):
    """The kernel was told that elements are one; others than those cannot become one."""
    launch = nothing([buffer("a", (4, 3), (0, 1)), buffer("out", (4, 3))])
    launch(torch.zeros(3).expand(4, 3), torch.zeros(4, 3))
    with pytest.raises(RuntimeError, match="for `a`"):
        launch(torch.randn(4, 3), torch.zeros(4, 3))


@pytest.mark.parametrize("dtype", BY_NAME.values(), ids=str)
def test_every_type(tier, dtype):
    launch = nothing([buffer("out", (2, 3), dtype=dtype)])
    for other in BY_NAME.values():
        tensor = torch.zeros(2, 3, dtype=torch_dtype(other))
        if other is dtype:
            launch(tensor)
        else:
            with pytest.raises(TypeError, match=f"not an? {tensor.dtype}".replace("torch.", "")):
                launch(tensor)


def test_sizes_and_facts(tier):
    m, n = Size("m"), Size("n")
    half = floordiv(n, 2)
    buffers = [buffer("a", (m, half)), buffer("b", (m,), (n,)), buffer("out", (m, n))]
    made = kernel(buffers, (m, n))
    work = Work(1.0, mul(m, n))
    facts = describe("k", made, work).facts
    assert facts == (index(m), index(n), half, mul(m, n))
    launch = nothing(buffers, (m, n), work)
    for rows, columns in ((3, 8), (5, 2), (1, 7), (0, 4)):
        a, b = torch.zeros(rows, columns // 2), torch.zeros(rows, columns)[:, 0]
        out = torch.zeros(rows, columns)
        numbers = (rows, columns, columns // 2, rows * columns)
        launch(a, b, out, *numbers)
        with pytest.raises(RuntimeError, match=re.escape(f"sizes ({rows + 1}, {columns // 2})")):
            launch(a, b, out, rows + 1, *numbers[1:])
    with pytest.raises(TypeError, match="3 tensors and 4 integers"):
        launch(a, b, out)


@pytest.mark.parametrize("bad", [None, "3", 2.0, torch.tensor([1, 2])], ids=str)
def test_integers_are_integers(tier, bad):
    n = Size("n")
    launch = nothing([buffer("out", (n,))], (n,))
    with pytest.raises((TypeError, RuntimeError)):
        launch(torch.zeros(3), bad)


def test_integers_that_do_not_fit(tier):
    n = Size("n")
    launch = nothing([buffer("out", (n,))], (n,))
    with pytest.raises((OverflowError, RuntimeError)):
        launch(torch.zeros(3), 1 << 70)
    with pytest.raises(RuntimeError):
        launch(torch.zeros(3), -1)


def test_a_number_that_the_caller_cannot_know_is_refused():
    from straightline.ir.dtypes import i64
    from straightline.ir.index import Given
    from straightline.ir.nodes import Const

    made = kernel([buffer("out", (Given(Const(i64, 3)),), (1,))])
    with pytest.raises(ValueError, match="cannot be told"):
        describe("k", made, Work())


def test_the_offset_of_a_view(tier):
    add = add_builtin((3,))
    base = torch.arange(10.0)
    out = torch.zeros(9)
    add(base[2:5], base[7:10], out[4:7])
    assert out.tolist() == [0, 0, 0, 0, 9, 11, 13, 0, 0]


def test_many_tensors(tier):
    shape = (4,)
    buffers = [buffer(f"a{n}", shape) for n in range(300)]
    launch = nothing([*buffers, buffer("out", shape)])
    args = [torch.zeros(4) for _ in range(301)]
    launch(*args)
    args[200] = torch.zeros(5)
    with pytest.raises(RuntimeError, match="for `a200`"):
        launch(*args)


def test_the_name_shown_is_the_caller_s():
    made = kernel([buffer("a", (8,)), buffer("b", (8,)), buffer("out", (8,))], count=8)
    launch = launcher.kernel_builtin("k3_add_relu", made, loop(3, ADD), RuntimeError)
    assert launch.__name__ == "k3_add_relu"
    assert f32 is made.buffers[0].dtype
