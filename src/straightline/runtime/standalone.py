"""What files that the option `dump` writes import, so that they run by themselves.

A dumped file holds generated functions, the objects they use by the names of those, and arguments
like the ones that were compiled for. Nothing here is part of a compiled call.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import math
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch

from straightline.errors import StraightlineError
from straightline.runtime.rng import GeneratorStates
from straightline.torch_private.function_class import higher_class

_generator = torch.Generator().manual_seed(0)


class NotDumped(StraightlineError):
    """A dumped function needs something that could not be written down."""


# -- Objects that the functions use --------------------------------------------------------------


def constants(file: str) -> Mapping[str, Any]:
    """The objects saved beside the dumped `file`."""
    saved: Mapping[str, Any] = torch.load(Path(file).with_suffix(".pt"), weights_only=False)
    return saved


class Missing:
    """Stands for an object that has no name in any module and cannot be saved."""

    def __init__(self, name: str, what: str) -> None:
        self._name = name
        self._what = what

    def _fail(self) -> NoReturn:
        raise NotDumped(
            f"{self._name!r} was {self._what} in the process that compiled this function; it has "
            "no name in a module and cannot be saved",
            todo=f"bind {self._name!r} to something of your own in this file",
        )

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._fail()

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        self._fail()

    def __repr__(self) -> str:
        return f"<{self._name}: was {self._what}, not dumped>"


def from_file(path: str, name: str) -> Any:
    """What the script at `path` calls `name`; the script is imported, not run as the main one."""
    return functools.reduce(getattr, name.split("."), _script(path))


@functools.cache
def _script(path: str) -> ModuleType:
    name = f"straightline_dump_of_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def generator_states(program: str, count: int, device: str) -> GeneratorStates:
    """The generators of one program: the same for its forward and its backward."""
    return GeneratorStates(count, torch.device(device))


class Sibling:
    """The function that another file of the same folder is for, loaded when it is first called."""

    def __init__(self, file: str, other: str) -> None:
        self._path = Path(file).parent / other
        self._function: Callable[..., Any] | None = None

    @property
    def exists(self) -> bool:
        """Whether it was generated and written."""
        return self._path.exists()

    def __call__(self, *args: Any) -> Any:
        if self._function is None:
            if not self.exists:
                raise NotDumped(
                    f"{self._path.stem} was not generated while the functions were dumped: it is "
                    "compiled when it is first called",
                    todo="differentiate as often in the run that dumps",
                )
            self._function = runpy.run_path(str(self._path))["_entry"]
        return self._function(*args)


def apply(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Enters the autograd function of these two."""
    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    name = forward.__name__.removesuffix("_forward")
    entered: Callable[..., Any] = higher_class(name, body).apply
    return entered


# -- Arguments to run them with ------------------------------------------------------------------


def tensor(
    size: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    stride: Sequence[int] | None = None,
    low: int = 0,
    high: int = 1,
    requires_grad: bool = False,
    leaf: bool = True,
    device: str = "cpu",
) -> torch.Tensor:
    """A tensor of random values, the same ones in every process.

    Numbers with a fraction lie between 0 and 1, integers between `low` and `high`. With `leaf` off
    it is the result of an operation, as an argument is that is written to and requires grad.
    """
    last = sum((n - 1) * s for n, s in zip(size, stride or (), strict=False))
    overlaps = stride is not None and last + 1 < math.prod(size)
    shape = (last + 1,) if overlaps else tuple(size)
    values = _random(shape, dtype, low, high).to(device)
    if overlaps:
        assert stride is not None
        values = values.as_strided(size, stride).detach()
    elif stride is not None:
        values = torch.empty_strided(size, stride, dtype=dtype, device=device).copy_(values)
    return like_argument(values, leaf=leaf) if requires_grad else values


def _random(size: Sequence[int], dtype: torch.dtype, low: int, high: int) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(size, generator=_generator) < 0.5
    if dtype.is_complex:
        parts = torch.rand((*size, 2), generator=_generator, dtype=torch.float64)
        return torch.view_as_complex(parts).to(dtype)
    if dtype.is_floating_point:
        return torch.rand(size, generator=_generator).to(dtype)
    return torch.randint(low, high + 1, size, generator=_generator).to(dtype)


def like_argument(value: torch.Tensor, *, leaf: bool = True) -> torch.Tensor:
    """`value` as an argument that requires grad."""
    value.requires_grad_()
    return value if leaf else value.clone()


# -- Running them --------------------------------------------------------------------------------


def main(
    function: Callable[..., Any],
    example: Callable[[], Sequence[Any]],
    *,
    backward: Sibling | None = None,
    order: int = 1,
    grad: bool = True,
    inference: bool = False,
) -> None:
    """Call `function` with the `example` arguments and print what comes out.

    Where there is a backward, gradients up to `order` are printed too. `grad` and `inference` are
    the modes that the function was compiled under.
    """
    arguments = list(example())
    torch.manual_seed(0)
    versions = [_version(argument) for argument in arguments]
    names = _names(function, len(arguments))
    boxed = list(inspect.signature(function).parameters) == ["args"]
    with _modes(grad, inference):
        results = function(list(arguments)) if boxed else function(*arguments)
    for number, result in enumerate(results):
        print(f"result {number}: {_shown(result)}")
    for name, argument, version in zip(names, arguments, versions, strict=True):
        if _version(argument) != version:
            print(f"{name} was written to: {_shown(argument)}")
    if backward is not None:
        _run_backward(backward, results, dict(zip(names, arguments, strict=True)), order)


@contextlib.contextmanager
def _modes(grad: bool, inference: bool) -> Iterator[None]:
    with torch.set_grad_enabled(grad), torch.inference_mode(inference):
        yield


def _names(function: Callable[..., Any], count: int) -> list[str]:
    names = list(inspect.signature(function).parameters)
    return names if len(names) == count else [f"argument {i}" for i in range(count)]


def _run_backward(
    backward: Sibling, results: Sequence[Any], arguments: Mapping[str, Any], order: int
) -> None:
    """Print gradients of that order; each result counts as if all of them were summed up."""
    ends = [r for r in results if _differentiable(r)]
    starts = {name: value for name, value in arguments.items() if _differentiable(value)}
    if not backward.exists:
        print("no gradients: no backward was generated while the functions were dumped")
        return
    for current in range(1, order + 1):
        if not ends or not starts:
            return
        gradients = torch.autograd.grad(
            ends,
            list(starts.values()),
            [torch.ones_like(end) for end in ends],
            allow_unused=True,
            create_graph=current < order,
        )
        kind = "gradient" if current == 1 else f"gradient of order {current}"
        for name, gradient in zip(starts, gradients, strict=True):
            print(f"{kind} of {name}: {_shown(gradient)}")
        ends = [gradient for gradient in gradients if _differentiable(gradient)]


def _differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def run(file: str, forward: str, order: int) -> None:
    """Run what the dumped `file` is for, by way of the file that calls it in the end."""
    names = runpy.run_path(str(Path(file).parent / forward))
    main(names["_entry"], names["_example_arguments"], backward=names["_backward"], order=order)


def _version(value: Any) -> int | None:
    plain = isinstance(value, torch.Tensor) and not value.is_inference()
    return value._version if plain else None


def _shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    size = ", ".join(map(str, value.shape))
    kind = "" if type(value) is torch.Tensor else f" {type(value).__name__}"
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{dtype}[{size}]{kind}\n{value.detach()}"
