"""Eager as the oracle: run a function eagerly and compiled on twin inputs, compare all one can see.

The oracle imports nothing of the compiler. Each side fills a flat record `fact name -> value` by
doing the same things in the same order (call, look, write to outputs, differentiate, look again);
the records must be equal. What is recorded: values, dtype, shape, strides, offset, requires_grad,
leafness, `grad_fn is None`, `_base` and `is` relations, storage sharing, version bumps, gradients,
raised errors, global state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

BACKEND = os.environ.get("STRAIGHTLINE_TEST_BACKEND", "straightline")
# Without it a program is compiled for two sizes, the second time with symbols; with it, also with
# symbols from the start and never with symbols.
FULL = os.environ.get("STRAIGHTLINE_TEST_FULL", "") == "1"

# What is done with the outputs after the call. Each scenario is one more call of the same
# compiled function, which costs microseconds next to its compilation.
SCENARIOS = ("full", "partial", "write", "write_no_grad")

# Parts of messages that tell errors of one type apart.
MESSAGE_KEYS = (
    "modified by an inplace operation",
    "a leaf Variable that requires grad",
    "a view of a leaf Variable that requires grad",
    "is a view and is being modified inplace",
    "is an output of a function that returns multiple views",
    "does not require grad",
    "a second time",
    "Inference tensors cannot",
    "double backward",
)

# Dynamo's names for errors that a program raises while it is traced.
DYNAMO_ERRORS = ("TorchRuntimeError", "BackendCompilerFailed", "InternalTorchDynamoError")

Facts = dict[str, Any]
Context = Callable[[], contextlib.AbstractContextManager[Any]]


# --- inputs -----------------------------------------------------------------------------------


def plain(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor without grad; integers are small and non-negative."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 5, shape).to(dtype)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A leaf that requires grad."""
    return plain(*shape, dtype=dtype).requires_grad_()


def nonleaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor that requires grad and may be written in place."""
    return leaf(*shape, dtype=dtype) * 1


def parameter(*shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(*shape))


# --- looking ----------------------------------------------------------------------------------


def tensors_in(tree: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in a structure of containers, modules and dataclasses, with a readable path."""
    match tree:
        case Tensor():
            yield name, tree
        case torch.nn.Module():
            for key, value in [*tree.named_parameters(), *tree.named_buffers()]:
                yield f"{name}.{key}", value
        case Mapping():
            for key, value in tree.items():
                yield from tensors_in(value, f"{name}[{key!r}]")
        case list() | tuple():
            for index, value in enumerate(tree):
                yield from tensors_in(value, f"{name}[{index}]")
        case _ if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
            for field in dataclasses.fields(tree):
                yield from tensors_in(getattr(tree, field.name), f"{name}.{field.name}")


def skeleton(tree: Any) -> Any:
    """The structure with tensors replaced by their type, and all else as it is."""
    match tree:
        case Tensor():
            return type(tree).__name__
        case torch.nn.Module():
            return type(tree).__name__
        case Mapping():
            return (type(tree).__name__, {key: skeleton(value) for key, value in tree.items()})
        case list() | tuple():
            return (type(tree).__name__, [skeleton(value) for value in tree])
        case _ if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
            return type(tree).__name__
        case _:
            return (type(tree).__name__, repr(tree))


def is_differentiable(tensor: Tensor) -> bool:
    return tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())


def leaves_behind(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The leaves that gradients of these tensors flow to, in a stable order, each once."""
    found: dict[int, Tensor] = {}
    seen: set[Any] = set()

    def walk(node: Any) -> None:
        stack = [node]
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                found.setdefault(id(node.variable), node.variable)
            stack.extend(child for child, _ in reversed(node.next_functions))

    for tensor in tensors:
        if not tensor.requires_grad:
            continue
        if tensor.grad_fn is None:
            found.setdefault(id(tensor), tensor)
        else:
            walk(tensor.grad_fn)
    return list(found.values())


def value_of(tensor: Tensor) -> Any:
    """A copy of the value, by parts for wrapper subclasses."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        return {name: value_of(getattr(tensor, name)) for name in names}
    with torch.no_grad():
        tensor = tensor.detach()
        if tensor.is_sparse or tensor.layout != torch.strided:
            return tensor.to_dense().clone()
        if tensor.untyped_storage().nbytes() == 0 and tensor.numel():
            return "storage freed"
        return tensor.resolve_conj().resolve_neg().clone()


def storage_key(tensor: Tensor) -> Any:
    """What two tensors have in common when they share memory; wrappers share nothing."""
    if is_traceable_wrapper_subclass(tensor) or tensor.layout != torch.strided:
        return ("wrapper", id(tensor))
    return tensor.untyped_storage()._cdata


def version_of(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _has_history(tensor: Tensor) -> bool:
    return tensor.grad_fn is not None


def look(facts: Facts, stage: str, named: Sequence[tuple[str, Tensor]]) -> None:
    """Record all that is visible of these tensors, and of how they relate to one another."""
    objects: dict[int, str] = {}
    storages: dict[Any, str] = {}
    for name, tensor in named:
        at = f"{stage}: {name}"
        facts[f"{at} is"] = objects.setdefault(id(tensor), name)
        facts[f"{at} shares storage with"] = storages.setdefault(storage_key(tensor), name)
    for name, tensor in named:
        at = f"{stage}: {name}"
        base = tensor._base
        facts[f"{at} type"] = type(tensor).__name__
        facts[f"{at} dtype"] = tensor.dtype
        facts[f"{at} device"] = tensor.device
        facts[f"{at} shape"] = tuple(tensor.shape)
        if tensor.layout == torch.strided:
            facts[f"{at} strides"] = visible_strides(tensor)
            facts[f"{at} offset"] = tensor.storage_offset()
        facts[f"{at} requires_grad"] = tensor.requires_grad
        # The history of a multi-output view is an error to look at after a write to its base.
        facts[f"{at} is_leaf"] = attempt(functools.partial(getattr, tensor, "is_leaf"))
        facts[f"{at} grad_fn"] = attempt(functools.partial(_has_history, tensor))
        facts[f"{at} is_inference"] = tensor.is_inference()
        facts[f"{at} is_conj, is_neg"] = (tensor.is_conj(), tensor.is_neg())
        # A base that the caller holds no reference to can be told from none by asking only;
        # torch's own backends drop it, and what matters (shared storage, writes) is seen elsewhere.
        facts[f"{at} _base"] = None if base is None else objects.get(id(base))
        facts[f"{at} value"] = value_of(tensor)


def visible_strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides, except those that address nothing (size 0 or 1): these are not promised."""
    if tensor.numel() == 0:
        return ()
    return tuple(
        stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    )


def attempt(read: Callable[[], Any]) -> Any:
    """What reading gives, or the error as a fact."""
    try:
        return read()
    except RuntimeError as error:
        return error_facts(error)


def global_state() -> Facts:
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "default dtype": torch.get_default_dtype(),
        "rng state": torch.get_rng_state(),
    }


@contextlib.contextmanager
def restoring_state() -> Iterator[None]:
    """Undo what the function under test may have left switched."""
    grad_mode = torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    dtype = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_grad_enabled(grad_mode)
        torch.use_deterministic_algorithms(deterministic)
        torch.set_default_dtype(dtype)


@dataclasses.dataclass(frozen=True)
class Raised:
    """An error as a fact: compared by its type and the telling parts of its message."""

    kind: str
    keys: tuple[str, ...]
    error: BaseException = dataclasses.field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.kind}: {str(self.error).strip()[:400]}"


def error_facts(error: BaseException) -> Raised:
    keys = tuple(key for key in MESSAGE_KEYS if key in str(error))
    return Raised(type(error).__name__, keys, error)


# --- acting -----------------------------------------------------------------------------------


def tangent_for(tensor: Tensor, kind: int) -> Tensor:
    """A random tangent: contiguous, permuted in memory, expanded, or strided with gaps."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if is_traceable_wrapper_subclass(tensor) or tensor.layout != torch.strided:
        return torch.ones_like(tensor)
    match kind % 4:
        case 1 if len(shape) > 1:
            return torch.randn(shape[::-1], dtype=dtype).permute(*range(len(shape))[::-1])
        case 2:
            return torch.randn((), dtype=dtype).expand(shape)
        case 3 if shape:
            return torch.randn((*shape, 2), dtype=dtype)[..., 0]
        case _:
            return torch.randn(shape, dtype=dtype)


def differentiate(
    facts: Facts,
    stage: str,
    roots: Sequence[Tensor],
    leaves: Sequence[Tensor],
    kinds: int,
    partial: bool,
) -> None:
    """Backward through the given roots; records gradients of the leaves, or the error."""
    roots = [root for root in roots if is_differentiable(root)]
    facts[f"{stage}: differentiable roots"] = len(roots)
    if not roots:
        return
    tangents = [tangent_for(root, index + kinds) for index, root in enumerate(roots)]
    try:
        torch.autograd.backward(roots, tangents)
    except Exception as error:  # noqa: BLE001 - any error is a fact
        facts[f"{stage}: error of backward"] = error_facts(error)
        return
    for index, tensor in enumerate(leaves):
        # One node for the whole graph cannot know that a leaf is reached from other outputs only:
        # a compiled function gives zeros where eager gives None.
        grad = torch.zeros_like(tensor) if partial and tensor.grad is None else tensor.grad
        facts[f"{stage}: grad of leaf {index}"] = None if grad is None else value_of(grad)
        if grad is not None:
            facts[f"{stage}: grad of leaf {index} shape"] = tuple(grad.shape)
            facts[f"{stage}: grad of leaf {index} dtype"] = grad.dtype
            facts[f"{stage}: grad of leaf {index} requires_grad"] = grad.requires_grad
        tensor.grad = None


def write(facts: Facts, outputs: Sequence[tuple[str, Tensor]]) -> None:
    """Change each output in place; aliases must see it, and illegal writes fail as in eager."""
    for name, tensor in outputs:
        before = version_of(tensor)
        try:
            if tensor.dtype == torch.bool:
                tensor.logical_not_()
            else:
                tensor.add_(1)
        except Exception as error:  # noqa: BLE001 - any error is a fact
            facts[f"error of writing to {name}"] = error_facts(error)
        facts[f"writing to {name} bumps its version"] = version_of(tensor) > before


def observe(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    scenario: str,
    seed: int,
    context: Context,
    backward: bool,
    backward_context: Context,
) -> Facts:
    """Call once and do what the scenario says; the record of all that could be seen."""
    facts: Facts = {}
    inputs = list(tensors_in(args, "arg"))
    leaves = leaves_behind(tensor for _, tensor in inputs)
    versions = [version_of(tensor) for _, tensor in inputs]
    storages = [storage_key(tensor) for _, tensor in inputs]
    torch.manual_seed(seed)
    with restoring_state():
        try:
            with context():
                result = fn(*args)
                state = global_state()
        except Exception as error:  # noqa: BLE001 - any error is a fact
            facts["error of the call"] = error_facts(error)
            facts |= {f"state left by the error: {k}": v for k, v in global_state().items()}
            return facts
        facts |= {f"state inside: {k}": v for k, v in state.items()}
        facts |= {f"state after: {k}": v for k, v in global_state().items()}
    facts["structure of the result"] = skeleton(result)
    facts["structure of the arguments"] = skeleton(args)

    # Arguments are walked anew: the function may have changed the containers themselves.
    outputs = list(tensors_in(result, "out"))
    everything = [*tensors_in(args, "arg"), *outputs]
    look(facts, "call", everything)
    for (name, tensor), version, storage in zip(inputs, versions, storages, strict=True):
        facts[f"call: {name} version bumped"] = version_of(tensor) > version
        facts[f"call: {name} keeps its storage"] = storage_key(tensor) == storage
        if tensor.layout == torch.strided and not is_traceable_wrapper_subclass(tensor):
            facts[f"call: {name} storage bytes"] = tensor.untyped_storage().nbytes()

    torch.manual_seed(seed + 1)
    roots = [tensor for _, tensor in [*outputs, *inputs] if has_history(tensor)]
    match scenario:
        case "write":
            write(facts, outputs)
            look(facts, "after writes", everything)
        case "write_no_grad":
            with torch.no_grad():
                write(facts, outputs)
            look(facts, "after writes", everything)
        case "partial":
            roots = [root for root in roots if torch.rand(()) < 0.6] or roots[:1]
    if backward:
        with backward_context():
            differentiate(facts, "backward", roots, leaves, seed, partial=scenario == "partial")
        look(facts, "after backward", everything)
    return facts


def has_history(tensor: Tensor) -> bool:
    return tensor.requires_grad and tensor.grad_fn is not None


class CallsBackend:
    """A function compiled by calling the backend itself with a graph of the function."""

    def __init__(self, fn: Callable[..., Any], backend: str) -> None:
        self.graph = torch.fx.symbolic_trace(fn)
        self.backend = torch._dynamo.lookup_backend(backend)
        self.compiled: Callable[..., Any] | None = None
        output = self.graph.graph.output_node()
        self.single = isinstance(output.args[0], torch.fx.Node)
        self.nothing = output.args[0] is None
        if not isinstance(output.args[0], tuple):
            output.args = (() if self.nothing else (output.args[0],),)
            self.graph.recompile()

    def __call__(self, *args: Tensor) -> Any:
        if self.compiled is None:
            self.compiled = self.backend(self.graph, list(args))
        result = tuple(self.compiled(*args))
        return None if self.nothing else result[0] if self.single else result


# --- comparing --------------------------------------------------------------------------------


def show(value: Any) -> str:
    if isinstance(value, Tensor):
        head = value.flatten()[:6].tolist()
        more = ", ..." if value.numel() > 6 else ""
        return f"{tuple(value.shape)} {value.dtype} [{', '.join(f'{v:.6g}' if isinstance(v, float) else str(v) for v in head)}{more}]"  # noqa: E501
    return str(value) if isinstance(value, Raised) else repr(value)


def same(left: Any, right: Any) -> bool:
    match left, right:
        case Tensor(), Tensor():
            if left.dtype != right.dtype or left.shape != right.shape:
                return False
            if not (left.is_floating_point() or left.is_complex()):
                return torch.equal(left, right)
            low = left.dtype in (torch.bfloat16, torch.float16)
            tolerance = 2e-2 if low else 2e-5
            return torch.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)
        case dict(), dict():
            return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
        case Raised(), Raised() if right.kind in DYNAMO_ERRORS:
            return bool(left.keys) and set(left.keys) <= set(right.keys)
        case Tensor(), _:
            return False
        case _, Tensor():
            return False
        case _:
            return bool(left == right)


def differences(
    eager: Facts, compiled: Facts, ignore: Sequence[str] = (), may_raise_early: bool = False
) -> list[str]:
    """One line for each fact that differs. `ignore` holds parts of fact names."""
    lines: list[str] = []
    # Eager's version error may come from a value that the compiled program had no need to save:
    # then nothing after it can be compared.
    late_error = eager.get("backward: error of backward")
    early_error = compiled.get("error of the call")
    if may_raise_early and late_error and early_error and late_error.keys == early_error.keys:
        return []
    lenient = (
        late_error is not None
        and "modified by an inplace operation" in late_error.keys
        and any(key.startswith("after writes") for key in eager)
    )
    missing = "<absent>"
    stop = eager.get("error of the call") or compiled.get("error of the call")
    for key in [*eager, *(key for key in compiled if key not in eager)]:
        if any(part in key for part in ignore):
            continue
        if stop and not (key == "error of the call" or (key in eager and key in compiled)):
            continue
        if lenient and key.startswith(("backward", "after backward")):
            continue
        left, right = eager.get(key, missing), compiled.get(key, missing)
        if not same(left, right):
            line = f"  {key}:\n      eager    {show(left)}\n      compiled {show(right)}"
            # An error explains what is absent after it.
            lines.insert(0 if isinstance(right, Raised) else len(lines), line)
    return lines


def cause_of(eager: Facts, compiled: Facts) -> BaseException | None:
    """The error that only the compiled side raised, to be seen with its traceback."""
    for key, value in compiled.items():
        if isinstance(value, Raised) and not same(eager.get(key), value):
            return value.error
    return None


def variants(dynamic: Sequence[bool | None] | None) -> Sequence[bool | None]:
    if dynamic is not None:
        return dynamic
    return (None, True, False) if FULL else (None,)


def sizes_for(dynamic: bool | None, calls: Sequence[int]) -> Sequence[int]:
    """Static programs see one size first, so that `None` covers both kinds in one test."""
    return calls[:1] if dynamic is False else calls


def check(
    fn: Callable[..., Any],
    make_args: Callable[..., Any],
    *,
    dynamic: Sequence[bool | None] | None = None,
    calls: Sequence[int] = (4, 6),
    backward: bool = True,
    grad_mode: Sequence[bool] = (True,),
    contexts: Sequence[Context] = (contextlib.nullcontext,),
    backward_context: Context = contextlib.nullcontext,
    scenarios: Sequence[str] = SCENARIOS,
    ignore: Sequence[str] = (),
    fullgraph: bool = True,
    may_raise_early: bool = False,
    through_dynamo: bool = True,
    raises: str | None = None,
    backend: str | None = None,
) -> None:
    """Assert that the compiled function cannot be told from the eager one.

    `make_args` makes fresh arguments (it is given a size when it takes a parameter). For each of
    `dynamic`, `grad_mode` and `contexts` the function is compiled anew and called with every size
    of `calls` in every scenario. `raises`: the name of the error that eager must raise somewhere,
    which guards against a case that no longer shows what it was written for. `ignore`: parts of
    names of facts that are not compared; each use says why. `may_raise_early`: the error that eager
    raises in backward may come from the call, because compiling traces the backward.
    `through_dynamo=False`: the backend is called with a graph of flat tensor arguments, for what
    Dynamo does not let into a graph; such programs are static.
    """
    takes_size = bool(inspect.signature(make_args).parameters)
    raised: set[str] = set()
    for dyn in variants(dynamic if through_dynamo else (False,)):
        for enabled in grad_mode:
            for context in contexts:
                torch._dynamo.reset()
                compiled: Callable[..., Any]
                if through_dynamo:
                    compiled = torch.compile(
                        fn, backend=backend or BACKEND, dynamic=dyn, fullgraph=fullgraph
                    )
                else:
                    compiled = CallsBackend(fn, backend or BACKEND)

                @contextlib.contextmanager
                def around(enabled: bool = enabled, context: Context = context) -> Iterator[None]:
                    with torch.set_grad_enabled(enabled), context():
                        yield

                for call, size in enumerate(sizes_for(dyn, calls)):
                    for index, scenario in enumerate(scenarios):
                        seed = 100 * call + 10 * index
                        records: list[Facts] = []
                        for side in (fn, compiled):
                            torch.manual_seed(seed)
                            args = make_args(size) if takes_size else make_args()
                            args = args if isinstance(args, tuple) else (args,)
                            records.append(
                                observe(
                                    side,
                                    args,
                                    scenario=scenario,
                                    seed=seed,
                                    context=around,
                                    backward=backward,
                                    backward_context=backward_context,
                                )
                            )
                        for value in records[0].values():
                            if isinstance(value, Raised):
                                raised.update([value.kind, *value.keys])
                        eager, ours = records
                        lines = differences(
                            eager, ours, ignore=ignore, may_raise_early=may_raise_early
                        )
                        if lines:
                            where = (
                                f"{getattr(fn, '__name__', fn)}: dynamic={dyn}, size={size}, "
                                f"scenario={scenario}, grad={enabled}, seed={seed}, "
                                f"call {call * len(scenarios) + index}"
                            )
                            raise AssertionError(
                                "\n".join([f"not as eager: {where}", *lines])
                            ) from cause_of(*records)
    if raises is not None:
        assert raises in raised, f"eager was to raise {raises!r}, it raised {sorted(raised)}"


# --- tables of cases --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """One function with its inputs and the options of `check`."""

    fn: Callable[..., Any]
    make_args: Callable[..., Any]
    options: Mapping[str, Any]

    def __str__(self) -> str:
        return str(getattr(self.fn, "__name__", self.fn))

    def run(self, **options: Any) -> None:
        check(self.fn, self.make_args, **{**self.options, **options})

    def as_captured(self) -> Any:
        """The case for pytest, where torch's stages cannot trace it, and it runs as captured."""
        ignored = "ignore::straightline.report.fallbacks.StraightlineFallbackWarning"
        marks = [pytest.mark.fallback, pytest.mark.filterwarnings(ignored)]
        return pytest.param(self, marks=marks, id=str(self))


class Cases(list[Case]):
    """A list that functions are put into by decorating them with their inputs."""

    def __call__(
        self, make_args: Callable[..., Any], **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def put(fn: Callable[..., Any]) -> Callable[..., Any]:
            assert all(str(case) != fn.__name__ for case in self), f"two cases named {fn.__name__}"
            self.append(Case(fn, make_args, options))
            return fn

        return put
