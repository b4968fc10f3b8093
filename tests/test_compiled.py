"""`straightline.compile` and `straightline.source`: what comes back behaves as what was passed."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import inspect
import io
import pickle
import re
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import straightline
from straightline.errors import OptionError

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def affine(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """Twice as much, and one."""
    return x * scale + 1


@straightline.compile
def at_module_level(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def programs(text: str) -> list[str]:
    """What is generated, by title: `forward Net`, `backward Net`."""
    return re.findall(r"^# straightline \| (\w.*?) \| (\w+) \|", text, re.MULTILINE)  # type: ignore[return-value]


def titles(text: str) -> list[str]:
    return [" ".join(pair) for pair in programs(text)]


def same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want)


class Net(nn.Module):
    """A layer, a buffer, a plain attribute."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.fc = nn.Linear(3, width)
        self.register_buffer("offset", torch.ones(width))
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.fc(x).relu()
        if self.training:
            hidden = hidden * 3
        return hidden * self.scale + self.offset

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self(self(x))


# -- Functions -----------------------------------------------------------------------------------


def test_function() -> None:
    f = straightline.compile(affine)
    same(f(X), affine(X))
    same(f(X, scale=3.0), affine(X, scale=3.0))
    assert titles(f.source) == ["inference affine", "inference affine"]


def test_decorator_without_arguments() -> None:
    @straightline.compile
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    same(f(X), X + 1)
    assert titles(f.source) == ["inference f"]


@pytest.mark.parametrize(
    "arguments", [{}, {"fullgraph": True}, {"double_backward": "save"}], ids=str
)
def test_decorator_with_arguments(arguments: dict[str, Any]) -> None:
    @straightline.compile(**arguments)
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    same(f(X), X + 1)
    assert titles(f.source) == ["inference f"]


def test_metadata_of_the_function() -> None:
    f = straightline.compile(affine)
    assert f.__name__ == "affine"
    assert f.__qualname__ == affine.__qualname__
    assert f.__module__ == affine.__module__
    assert f.__doc__ == affine.__doc__
    assert f.__wrapped__ is affine
    assert inspect.unwrap(f) is affine
    assert inspect.signature(f) == inspect.signature(affine)
    assert inspect.getsource(f) == inspect.getsource(affine)
    assert repr(f) == f"<straightline compiled {affine!r}>"

    @functools.wraps(f)
    def around(x: torch.Tensor) -> torch.Tensor:
        return f(x) * 2

    same(around(X), affine(X) * 2)
    assert around.__name__ == "affine"


def test_attributes_of_the_function_come_along() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    f.note = "kept"  # type: ignore[attr-defined]
    compiled = straightline.compile(f)
    assert compiled.note == "kept"  # type: ignore[attr-defined]
    compiled.note = "other"  # type: ignore[attr-defined]
    assert f.note == "kept"  # type: ignore[attr-defined]


def test_every_kind_of_parameter() -> None:
    def f(
        a: torch.Tensor,
        /,
        b: torch.Tensor,
        *rest: torch.Tensor,
        c: float = 2.0,
        **more: torch.Tensor,
    ) -> torch.Tensor:
        total = a + b * c
        for value in (*rest, *more.values()):
            total = total + value
        return total

    compiled = straightline.compile(f, fullgraph=True)
    y, z = X + 1, X * 3
    same(compiled(X, y), f(X, y))
    same(compiled(X, b=y, c=3.0), f(X, b=y, c=3.0))
    same(compiled(X, y, z, z, c=1.0, d=y, e=z), f(X, y, z, z, c=1.0, d=y, e=z))
    assert inspect.signature(compiled) == inspect.signature(f)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        compiled(X)  # type: ignore[call-arg]


def test_lambda() -> None:
    f = straightline.compile(lambda x: x + 1)
    same(f(X), X + 1)
    assert titles(f.source) == ["inference function"]


def test_partial() -> None:
    f = straightline.compile(functools.partial(affine, scale=5.0))
    same(f(X), affine(X, 5.0))
    assert titles(f.source) == ["inference affine"]


class Scale:
    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by

    def shifted(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by + 1


def test_object_that_can_be_called() -> None:
    scale = Scale(3.0)
    f = straightline.compile(scale)
    same(f(X), X * 3)
    scale.by = 4.0
    same(f(X), X * 4)
    assert set(titles(f.source)) == {"inference Scale"}


def test_bound_method() -> None:
    scale = Scale(3.0)
    f = straightline.compile(scale.shifted)
    same(f(X), X * 3 + 1)
    scale.by = 4.0
    same(f(X), X * 4 + 1)
    assert f.__name__ == "shifted"
    assert f.__wrapped__.__self__ is scale


@pytest.mark.parametrize(
    "builtin", [torch.sin, torch.nn.functional.relu, abs], ids=["sin", "relu", "abs"]
)
def test_builtins(builtin: Callable[..., Any]) -> None:
    f, other = straightline.compile(builtin), straightline.compile(torch.cos)
    same(f(X), builtin(X))
    same(other(X), X.cos())
    assert titles(f.source) == [f"inference {builtin.__name__}"]
    assert titles(other.source) == ["inference cos"]


def test_what_autograd_sees() -> None:
    f = straightline.compile(affine)
    x = X.clone().requires_grad_()
    f(x).sum().backward()
    same(x.grad, torch.full_like(X, 2))


def test_methods_of_a_class() -> None:
    class Model:
        by = 2.0

        @straightline.compile
        def plain(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

        @straightline.compile(fullgraph=True)
        def whole(self, x: torch.Tensor, *, plus: float = 1.0) -> torch.Tensor:
            return x * self.by + plus

        @staticmethod
        @straightline.compile
        def static(x: torch.Tensor) -> torch.Tensor:
            return x + 3

        @classmethod
        @straightline.compile
        def of_class(cls, x: torch.Tensor) -> torch.Tensor:
            return x * cls.by

        @straightline.compile
        @staticmethod
        def static_inside(x: torch.Tensor) -> torch.Tensor:
            return x + 4

        @straightline.compile(fullgraph=True)
        @classmethod
        def of_class_inside(cls, x: torch.Tensor) -> torch.Tensor:
            return x * cls.by * 2

    class Child(Model):
        by = 5.0

        def plain(self, x: torch.Tensor) -> torch.Tensor:
            return super().plain(x) + 1

    model, child = Model(), Child()
    same(model.plain(X), X * 2)
    same(Model.plain(model, X), X * 2)
    same(child.plain(X), X * 5 + 1)
    same(model.whole(X, plus=2.0), X * 2 + 2)
    for owner in (Model, model):
        same(owner.static(X), X + 3)
        same(owner.of_class(X), X * 2)
        same(owner.static_inside(X), X + 4)
        same(owner.of_class_inside(X), X * 4)
    same(Child.of_class(X), X * 5)

    bound = model.plain
    assert bound.__self__ is model
    assert bound == model.plain
    assert bound.__name__ == "plain"
    assert list(inspect.signature(bound).parameters) == ["x"]
    assert list(inspect.signature(Model.plain).parameters) == ["self", "x"]
    assert bound.source == Model.plain.source  # type: ignore[attr-defined]
    assert set(titles(Model.plain.source)) == {"inference plain"}  # type: ignore[attr-defined]
    assert titles(Model.static_inside.source) == ["inference static_inside"]  # type: ignore[attr-defined]


def test_a_method_does_not_keep_its_object() -> None:
    class Model:
        @straightline.compile
        def go(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    model = Model()
    model.go(X)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_copies_of_a_function_are_itself() -> None:
    f = straightline.compile(affine)
    assert copy.copy(f) is f
    assert copy.deepcopy(f) is f
    holder = nn.Linear(3, 3)
    holder.activation = f  # type: ignore[assignment]
    twin = copy.deepcopy(holder)
    same(twin.activation(X), affine(X))  # type: ignore[operator]


def test_a_deep_copy_of_a_method_has_an_object_of_its_own() -> None:
    scale = Scale(3.0)
    f = straightline.compile(scale.shifted)
    other = copy.deepcopy(f)
    scale.by = 10.0
    same(f(X), X * 10 + 1)
    same(other(X), X * 3 + 1)
    assert titles(other.source)


def test_pickle_of_a_function() -> None:
    """By name, as any function, where the name leads to it; else an error that says what to do."""
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level
    with pytest.raises(TypeError, match="__wrapped__"):
        pickle.dumps(straightline.compile(affine))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(straightline.compile(functools.partial(affine, scale=1.0)))


def test_weak_references() -> None:
    f = straightline.compile(lambda x: x + 1)
    f(X)
    reference = weakref.ref(f)
    assert reference() is f
    del f
    gc.collect()
    assert reference() is None


async def coroutine(x: torch.Tensor) -> torch.Tensor:
    await asyncio.sleep(0)
    return affine(x)


async def async_generator(x: torch.Tensor) -> AsyncIterator[torch.Tensor]:
    yield affine(x)


def generator(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield affine(x)


@pytest.mark.parametrize("target", [coroutine, async_generator, generator])
def test_what_runs_in_pieces_is_refused(target: Any) -> None:
    """Dynamo would run a generator as it is, without a word, and fail over an await."""
    for function in (target, functools.partial(target)):
        with pytest.raises(OptionError, match="compile the functions that it calls"):
            straightline.compile(function)


def test_what_runs_in_pieces_may_call_what_is_compiled() -> None:
    f = straightline.compile(affine)

    async def waits() -> torch.Tensor:
        await asyncio.sleep(0)
        return f(X)

    same(asyncio.run(waits()), affine(X))
    same(next(f(X) for _ in range(1)), affine(X))


def test_from_many_threads() -> None:
    f = straightline.compile(affine)
    results: list[torch.Tensor] = []
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for _ in range(20):
                x = torch.full((number,), 1.0)
                same(f(x), affine(x))
                results.append(f(x))
                assert f.source
        except Exception as error:  # noqa: BLE001 - told by the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (2, 3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(results) == 80


def test_fullgraph_refuses_a_break_and_the_default_does_not() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    same(straightline.compile(broken)(X), (X + 1) * 2)
    torch._dynamo.reset()  # it does not look again at what it has compiled
    with pytest.raises(torch._dynamo.exc.Unsupported):
        straightline.compile(broken, fullgraph=True)(X)


@pytest.mark.parametrize(("dynamic", "count"), [(False, 3), (None, 2), (True, 1)])
def test_dynamic(dynamic: bool | None, count: int) -> None:
    f = straightline.compile(affine, dynamic=dynamic)
    for size in (3, 4, 5):
        x = torch.ones(size)
        same(f(x), affine(x))
    assert titles(f.source) == ["inference affine"] * count


# -- What cannot be compiled ---------------------------------------------------------------------


def test_unknown_option() -> None:
    with pytest.raises(OptionError, match="did you mean 'double_backward'"):
        straightline.compile(affine, double_backwards="save")
    with pytest.raises(OptionError, match="the options are check, double_backward, dump"):
        straightline.compile(zzz=1)
    with pytest.raises(OptionError, match="'auto' or 'save'"):
        straightline.compile(double_backward="sometimes")


@pytest.mark.parametrize(
    "target", [3, "text", [affine], property(affine)], ids=["int", "str", "list", "property"]
)
def test_what_cannot_be_called(target: Any) -> None:
    with pytest.raises(OptionError, match="takes a function or a module") as caught:
        straightline.compile(target)
    assert type(target).__name__ in str(caught.value)


@pytest.mark.parametrize("target", [Scale, Net])
def test_classes(target: Any) -> None:
    with pytest.raises(OptionError, match="compile its objects, or decorate its methods"):
        straightline.compile(target)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_torch_jit_made() -> None:
    scripted = torch.jit.script(nn.Linear(3, 3))
    traced = torch.jit.trace(affine, (X,))
    for target in (scripted, traced):
        with pytest.raises(OptionError, match=r"what was given to torch\.jit\.script"):
            straightline.compile(target)


# -- Modules -------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> tuple[Net, Net]:
    """A module and what was compiled of it."""
    torch.manual_seed(0)
    original = Net()
    return original, straightline.compile(original)


def test_module(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    same(twin(X), original(X))
    assert titles(twin.source) == ["forward Net"]  # type: ignore[arg-type]
    assert isinstance(twin, Net)
    assert isinstance(twin, nn.Module)
    assert repr(twin) == repr(original)
    assert type(twin).__name__ == "Net"
    assert type(twin).__qualname__ == Net.__qualname__
    assert twin.__doc__ == original.__doc__


def test_state_is_one(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    assert list(twin.state_dict()) == list(original.state_dict())
    for (name, ours), (wanted, theirs) in zip(
        twin.named_parameters(), original.named_parameters(), strict=True
    ):
        assert name == wanted
        assert ours is theirs
    assert [n for n, _ in twin.named_modules()] == [n for n, _ in original.named_modules()]
    assert twin.fc is original.fc
    assert dict(twin.named_buffers())["offset"] is original.offset
    assert list(twin.children()) == list(original.children())


def test_load_state_dict_reaches_both(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    twin(X)
    other = Net()
    assert str(twin.load_state_dict(other.state_dict())) == "<All keys matched successfully>"
    same(original(X), other(X))
    same(twin(X), other(X))
    with pytest.raises(RuntimeError, match=r"Error\(s\) in loading state_dict for Net"):
        twin.load_state_dict({})


def test_saved_state_loads_into_a_plain_module(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    file = io.BytesIO()
    torch.save(twin.state_dict(), file)
    file.seek(0)
    plain = Net()
    plain.load_state_dict(torch.load(file))
    same(plain(X), original(X))


def test_train_and_eval(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    training = twin(X)
    assert twin.eval() is twin
    assert not original.training
    assert not original.fc.training
    same(twin(X), original(X))
    assert not torch.equal(twin(X), training)
    original.train()
    assert twin.training
    same(twin(X), training)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_other_types(pair: tuple[Net, Net], dtype: torch.dtype) -> None:
    original, twin = pair
    twin(X)
    assert twin.to(dtype) is twin
    assert original.fc.weight.dtype == original.offset.dtype == dtype
    x = X.to(dtype)
    same(twin(x), original(x))
    assert twin(x).dtype == dtype
    same(twin.float()(X), original(X))


def test_double_and_half(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    same(twin.double()(X.double()), original(X.double()))
    same(twin.half()(X.half()), original(X.half()))


def test_attributes_of_either_are_the_others(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    same(twin(X), original(X))
    twin.scale = 5.0
    assert original.scale == 5.0
    same(twin(X), original(X))
    original.scale = 7.0
    assert twin.scale == 7.0
    same(twin(X), original(X))
    twin.fc = nn.Linear(3, 3, bias=False)
    assert original.fc is twin.fc
    same(twin(X), original(X))
    twin.note = "here"  # type: ignore[assignment]
    assert original.note == "here"
    del twin.note
    assert not hasattr(original, "note")
    original.register_parameter("extra", nn.Parameter(X))
    assert "extra" in dict(twin.named_parameters())
    del original.extra
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'extra'"):
        _ = twin.extra


def test_methods_of_the_twin_call_compiled_code(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    same(twin.twice(X), original.twice(X))
    assert titles(twin.source)  # type: ignore[arg-type]


def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


def test_gradients_and_an_optimizer(pair: tuple[Net, Net]) -> None:
    _, twin = pair
    plain = Net()
    plain.load_state_dict(twin.state_dict())
    for module in (twin, plain):
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(X).square().sum().backward()
            optimizer.step()
    for name, value in plain.state_dict().items():
        same(twin.state_dict()[name], value)
    assert titles(twin.source) == ["forward Net", "backward Net"]  # type: ignore[arg-type]
    assert len(twin.graphs) == 2  # type: ignore[arg-type]
    assert twin.num_kernels == len(twin.kernels) > 0  # type: ignore[arg-type,operator]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("on", ["original", "twin"])
def test_hooks_run_once(when: str, on: str) -> None:
    def told(compile: Callable[[Net], Net]) -> tuple[list[str], torch.Tensor, Any]:
        torch.manual_seed(0)
        log: list[str] = []
        original = Net()
        module = compile(original)
        target = original if on == "original" else module

        def pre(module: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            log.append("pre")
            return (args[0] * 2,)

        def after(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
            log.append("forward")
            return out + 1

        def back(module: nn.Module, grads_in: Any, grads_out: Any) -> None:
            log.append("backward")

        def back_pre(module: nn.Module, grads_out: Any) -> None:
            log.append("backward pre")

        if when == "after":
            module(X)
        target.register_forward_pre_hook(pre)
        target.register_forward_hook(after)
        target.register_full_backward_hook(back)
        handle = target.register_full_backward_pre_hook(back_pre)
        x = X.clone().requires_grad_()
        out = module(x)
        out.sum().backward()
        handle.remove()
        module(x.detach().requires_grad_()).sum().backward()
        return log, out, (x.grad, gradients(original))

    want, got = told(lambda m: m), told(straightline.compile)
    assert got[0] == want[0]
    same(got[1:], want[1:])


def test_hooks_for_all_modules_run_once(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    log: list[str] = []
    with nn.modules.module.register_module_forward_hook(
        lambda module, args, out: log.append(type(module).__name__)
    ):
        original(X)
        want = list(log)
        log.clear()
        twin(X)
    assert log == want


def test_state_dict_hooks(pair: tuple[Net, Net]) -> None:
    _, twin = pair
    log: list[str] = []
    twin.register_state_dict_pre_hook(lambda *args: log.append("pre"))
    twin.register_state_dict_post_hook(lambda *args: log.append("post"))
    twin.register_load_state_dict_pre_hook(lambda *args: log.append("load pre"))
    twin.register_load_state_dict_post_hook(lambda *args: log.append("load post"))
    twin.load_state_dict(twin.state_dict())
    assert log == ["pre", "post", "load pre", "load post"]


def test_deep_copy_is_compiled_and_has_its_own_state(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    other = copy.deepcopy(twin)
    assert type(other) is type(twin)
    assert other.fc.weight is not twin.fc.weight
    with torch.no_grad():
        other.fc.weight.zero_()
    same(twin(X), original(X))
    assert not torch.equal(other(X), twin(X))
    assert titles(other.source)  # type: ignore[arg-type]
    both = copy.deepcopy([original, twin])
    assert both[1].fc is both[0].fc


def test_shallow_copy(pair: tuple[Net, Net]) -> None:
    _, twin = pair
    other = copy.copy(twin)
    assert type(other) is type(twin)
    assert other.fc is twin.fc
    same(other(X), twin(X))


def test_pickles_are_of_the_original(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    for module in (original, twin):
        loaded = pickle.loads(pickle.dumps(module))
        assert type(loaded) is Net
        same(loaded(X), original(X))
    file = io.BytesIO()
    torch.save(twin, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is Net


def test_forward_called_directly_is_compiled_and_runs_no_hooks(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    original.register_forward_hook(lambda *args: pytest.fail("a hook ran"))
    same(twin.forward(X), original.forward(X))
    assert titles(twin.source) == ["forward Net"]  # type: ignore[arg-type]
    assert inspect.signature(twin.forward) == inspect.signature(original.forward)
    assert inspect.signature(type(twin).forward) == inspect.signature(Net.forward)


def test_forward_can_be_replaced(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    same(twin(X), original(X))
    twin.forward = lambda x: x * 100  # type: ignore[method-assign]
    same(original(X), X * 100)
    same(twin(X), X * 100)
    same(twin.forward(X), X * 100)
    del twin.forward
    same(twin(X), original(X))
    same(twin.forward(X), original.forward(X))


def test_inside_other_modules(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    for inside, plain in (
        (nn.Sequential(twin, nn.Tanh()), nn.Sequential(original, nn.Tanh())),
        (Wrapper(twin), Wrapper(original)),
    ):
        same(inside(X), plain(X))
        assert list(inside.state_dict()) == list(plain.state_dict())
        assert titles(twin.source)  # type: ignore[arg-type]


class Wrapper(nn.Module):
    """What wrappers for training in parallel do: hold a module, look at it, call it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.names = [n for n, p in module.named_parameters() if p.requires_grad]
        for child in module.modules():
            child.seen = True  # type: ignore[assignment]

    def forward(self, *args: Any, **keywords: Any) -> Any:
        return self.module(*args, **keywords)


def test_submodules_compiled_in_place() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Net(), nn.Tanh(), Net())
    want = model(X)
    for number in (0, 2):
        model[number] = straightline.compile(model[number])
    same(model(X), want)
    assert set(titles(straightline.source(model[0]))) == {"forward Net"}
    whole = straightline.compile(model, fullgraph=True)
    same(whole(X), want)
    assert titles(whole.source) == ["forward Sequential"]  # type: ignore[arg-type]


def test_compiled_twice(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    again = straightline.compile(twin)
    same(again(X), original(X))
    assert type(again) is type(twin)
    assert titles(again.source) == ["forward Net"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(3, 2),
        lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()),
        lambda: nn.LayerNorm(3),
        lambda: nn.LazyLinear(4),
    ],
    ids=["Linear", "Sequential", "LayerNorm", "LazyLinear"],
)
def test_modules_of_torch(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    original = make()
    twin = straightline.compile(original)
    other = straightline.compile(nn.ReLU())
    got = twin(X)
    same(got, original(X))
    same(other(X), X.relu())
    assert titles(twin.source) == [f"forward {type(original).__name__}"]  # type: ignore[arg-type]
    assert titles(other.source) == ["inference ReLU"]  # type: ignore[arg-type]


def test_length_and_items_of_a_container() -> None:
    twin = straightline.compile(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    assert len(twin) == 2
    assert isinstance(twin[1], nn.ReLU)
    assert [type(m).__name__ for m in twin] == ["Linear", "ReLU"]


class WithSlots(nn.Module):
    __slots__ = ("__private", "by")

    def __init__(self) -> None:
        super().__init__()
        self.by = 3.0
        self.__private = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by + self.__private

    def private(self) -> float:
        return self.__private


def test_slots() -> None:
    original = WithSlots()
    twin = straightline.compile(original)
    same(twin(X), X * 3 + 1)
    assert twin.private() == 1.0
    twin.by = 4.0
    assert original.by == 4.0
    same(twin(X), X * 4 + 1)
    del original.by
    assert not hasattr(twin, "by")


class Elaborate(nn.Module):
    """Properties, attributes made up on demand, a call of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self._by = 2.0

    @property
    def by(self) -> float:
        return self._by

    @by.setter
    def by(self, value: float) -> None:
        self._by = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("made_up_"):
            return name.removeprefix("made_up_")
        return super().__getattr__(name)

    def __call__(self, x: torch.Tensor, *args: Any, **keywords: Any) -> Any:
        return super().__call__(x + 1, *args, **keywords)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * self.by


def test_properties_getattr_and_call() -> None:
    original = Elaborate()
    twin = straightline.compile(original)
    same(twin(X), original(X))
    twin.by = 3.0
    assert original.by == 3.0
    same(twin(X), original(X))
    assert twin.made_up_name == "name"
    with pytest.raises(AttributeError):
        _ = twin.nothing
    assert titles(twin.source)  # type: ignore[arg-type]


def test_classes_are_not_told_of_the_twins() -> None:
    known: list[type] = []

    class Registered(nn.Module):
        def __init_subclass__(cls, *, kind: str) -> None:
            known.append(cls)

    class Child(Registered, kind="child"):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    twin = straightline.compile(Child())
    same(twin(X), X + 1)
    assert known == [Child]


def test_the_class_of_twins_goes_with_its_twins() -> None:
    class Local(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    twin = straightline.compile(Local())
    twin(X)
    first, second = weakref.ref(twin), weakref.ref(Local)
    assert type(straightline.compile(Local())) is type(twin)
    del twin, Local
    torch._dynamo.reset()
    gc.collect()
    assert first() is None
    assert second() is None


def test_functional_call(pair: tuple[Net, Net]) -> None:
    original, twin = pair
    other = {n: torch.zeros_like(p) for n, p in original.named_parameters()}
    same(
        torch.func.functional_call(twin, other, (X,)),
        torch.func.functional_call(original, other, (X,)),
    )


# -- What can be read ----------------------------------------------------------------------------


def test_source_grows() -> None:
    f = straightline.compile(affine)
    assert f.source == ""
    assert f.graphs == ()
    x = X.clone().requires_grad_()
    out = f(x)
    assert titles(f.source) == ["forward affine"]
    out.sum().backward()
    assert titles(f.source) == ["forward affine", "backward affine"]
    assert len(f.graphs) == 2
    f(X)
    assert titles(f.source) == ["forward affine", "backward affine", "inference affine"]
    f(torch.ones(7))
    assert len(titles(f.source)) == 4
    assert len(f.graphs) == 4
    assert all(isinstance(g, torch.fx.GraphModule) for g in f.graphs)
    assert f.num_kernels == len(f.kernels)
    (grad,) = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
    grad.sum().backward()
    assert "second order forward affine" in titles(f.source)


def test_source_has_the_guards() -> None:
    f = straightline.compile(affine, dynamic=False)
    f(torch.ones(3))
    f(torch.ones(5))
    first, second = f.source.split("\n\n# when ", 1)
    assert "size=[3]" in first
    assert "size=[3]" not in second
    assert "size=[5]" in second
    lines = f.source.splitlines()
    at = [i for i, line in enumerate(lines) if line.startswith("# straightline |")]
    assert all(lines[i - 1].startswith("# when ") for i in at)


def test_source_after_a_reset() -> None:
    f = straightline.compile(affine)
    x = X.clone().requires_grad_()
    held = f(x)  # its backward keeps the first program alive
    assert titles(f.source)
    torch._dynamo.reset()
    assert f.source == ""
    assert f.graphs == ()
    f(X)
    assert titles(f.source) == ["inference affine"]
    held.sum().backward()
    assert titles(f.source) == ["inference affine"]


def test_source_across_graph_breaks() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        torch._dynamo.graph_break()
        return y.cos()

    def outer(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y = inner(y)
        torch._dynamo.graph_break()
        return y.sin()

    f = straightline.compile(outer)
    with straightline.backends.llvm.disabled():
        same(f(X), outer(X))
    text = f.source
    for operation in ("aten_mul_Tensor", "aten_cos(", "aten_sin(", "aten_add_Tensor"):
        assert text.count(operation) == 1, operation
    assert straightline.compile(affine).source == ""


def test_sources_are_told_apart() -> None:
    def one(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    f, g = straightline.compile(one), straightline.compile(affine)
    f(X)
    g(X)
    saving = straightline.compile(one, double_backward="save")
    assert titles(f.source) == ["inference one"]
    assert titles(g.source) == ["inference affine"]
    assert saving.source == "", "another backend, as Dynamo sees it"
    saving(X)
    assert titles(saving.source) == titles(f.source) == ["inference one"]
    assert saving.graphs[0] is not f.graphs[0]


def test_modules_of_one_class_share_programs() -> None:
    first, second = straightline.compile(Net()), straightline.compile(Net())
    first(X)
    second(X)
    assert first.source == second.source
    assert titles(first.source) == ["forward Net"]  # type: ignore[arg-type]


def test_source_of_lists() -> None:
    f = straightline.compile(lambda xs: xs[0] + xs[1])
    same(f([X, X]), X + X)
    assert titles(f.source) == ["inference function"]


through_torch = functools.partial(torch.compile, backend="straightline")


def test_source_of_what_torch_compiled() -> None:
    f = through_torch(affine)
    assert straightline.source(f) == ""
    f(X)
    assert titles(straightline.source(f)) == ["inference affine"]

    module = through_torch(Net())
    module(X)
    assert titles(straightline.source(module)) == ["forward Net"]

    of_torch = through_torch(nn.Linear(3, 3))
    of_torch(X)
    assert titles(straightline.source(of_torch)) == ["forward Linear"]

    method = through_torch(Scale(3.0).shifted)
    method(X)
    assert titles(straightline.source(method)) == ["inference shifted"]

    called = through_torch(Scale(3.0))
    called(X)
    assert titles(straightline.source(called)) == ["inference Scale"]

    builtin = through_torch(torch.sin)
    builtin(X)
    assert titles(straightline.source(builtin)) == ["inference sin"]


def test_source_of_a_module_compiled_in_place() -> None:
    net = Net()
    net.compile(backend="straightline")
    net(X)
    assert titles(straightline.source(net)) == ["forward Net"]


def test_source_of_methods_and_classes() -> None:
    class Model:
        @through_torch
        def go(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @straightline.compile
        def other(self, x: torch.Tensor) -> torch.Tensor:
            return x * 3

        @staticmethod
        @straightline.compile
        def static(x: torch.Tensor) -> torch.Tensor:
            return x * 4

    model = Model()
    model.go(X)
    assert titles(straightline.source(model.go)) == ["inference go"]
    assert straightline.source(Model.go) == straightline.source(model.go)
    model.other(X)
    assert titles(straightline.source(model.other)) == ["inference other"]
    model.static(X)
    assert set(titles(straightline.source(Model))) == {
        "inference go",
        "inference other",
        "inference static",
    }
    assert straightline.source(model) == straightline.source(Model)


def test_source_of_a_compiled_class() -> None:
    @through_torch
    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    @through_torch
    class Plain:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * 3

    for cls in (Module, Plain):
        instance = cls()
        instance(X)
        assert titles(straightline.source(cls)) == [f"inference {cls.__name__}"]
        assert straightline.source(instance) == straightline.source(cls)


def test_source_through_decorators() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def around(*args: Any) -> Any:
            return function(*args)

        return around

    for compile in (through_torch, straightline.compile):
        torch._dynamo.reset()
        outside = logged(compile(affine))
        outside(X)
        assert titles(straightline.source(outside)) == ["inference affine"]
        inside = compile(logged(affine))
        inside(X)
        assert len(titles(straightline.source(inside))) == 1
        no_grad = torch.no_grad()(compile(affine))
        no_grad(X)
        assert "inference affine" in titles(straightline.source(no_grad))
        beneath = compile(torch.no_grad()(affine))
        beneath(X)
        assert len(titles(straightline.source(beneath))) >= 1


@pytest.mark.parametrize(
    "target",
    [affine, 3, None, Net(), torch.sin, Scale(1.0), Scale, torch.compiler.disable(affine)],
    ids=["function", "int", "None", "module", "builtin", "object", "class", "disabled"],
)
def test_source_of_what_was_not_compiled(target: Any) -> None:
    with pytest.raises(OptionError, match="takes something that was compiled") as caught:
        straightline.source(target)
    assert "pass what torch.compile or straightline.compile returned" in str(caught.value)


@pytest.mark.parametrize("make", [lambda: affine, Net], ids=["function", "module"])
@pytest.mark.parametrize("called", [False, True])
def test_source_of_another_backends_work(make: Callable[[], Any], called: bool) -> None:
    f = torch.compile(make(), backend="eager")
    if called:
        f(X)
    with pytest.raises(OptionError, match="compiled with the backend 'eager', not with"):
        straightline.source(f)


def test_source_is_not_mixed_with_another_backends() -> None:
    ours, theirs = straightline.compile(affine), torch.compile(affine, backend="eager")
    theirs(X)
    assert ours.source == ""
    ours(X)
    assert titles(ours.source) == ["inference affine"]
    with pytest.raises(OptionError, match="'eager'"):
        straightline.source(theirs)
