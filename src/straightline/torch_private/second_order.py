"""torch's private side of the second-order program: how a program is derived and traced.

A *program* here is what torch's stages trace: a flat function, its fake inputs and the metadata of
its forward. `derive` makes, from a program, the program that computes its gradients. The result is
traced by the same stages as any other, so that derivatives of every order come from one rule and no
traced graph is ever differentiated.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo import compiled_autograd
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.descriptors import PlainAOTInput, PlainAOTOutput
from torch._functorch._aot_autograd.graph_capture_wrappers import fn_prepped_for_autograd
from torch._functorch._aot_autograd.graph_compile import (
    aot_stage1_graph_capture,
    run_joint_graph_passes_on_hops,
)
from torch._functorch._aot_autograd.runtime_wrappers import (
    AOTDedupeWrapper,
    AOTSyntheticBaseWrapper,
    pre_compile,
)
from torch._functorch._aot_autograd.schemas import (
    AOTConfig,
    AOTState,
    FakifiedFlatArgs,
    PlainTensorMeta,
    SubclassCreationMeta,
    SubclassMeta,
    ViewAndMutationMeta,
)
from torch._functorch.aot_autograd import create_aot_state, prepare_aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from straightline.capture.contract import places
from straightline.errors import DoubleBackwardError
from straightline.torch_private import autocast, outputs, sharing
from straightline.torch_private.layouts import return_layouts
from straightline.torch_private.stages import tensorify_floats

AUTOGRAD_FUNCTION: Any = torch.ops.higher_order.autograd_function_apply
SAVE_RNG: Any = torch.ops.higher_order.run_and_save_rng_state
WITH_RNG: Any = torch.ops.higher_order.run_with_rng_state
WITH_EFFECTS: Any = torch.ops.higher_order.with_effects
BACKWARD_TOKEN = "tangents_token"
"""How a joint graph's placeholders for the tokens of its backward are called, at least."""
SET_GRAD_ENABLED: Any = torch._C._set_grad_enabled
outside_fake_mode = unset_fake_temporarily

REPLAYED = "straightline_replayed"
"""`node.meta` key: the node belongs to the part that ran before, in the program one order lower."""


@dataclass(frozen=True)
class Ambient:
    """Global state that a graph was captured under, and its derivatives must be traced under."""

    autocast: tuple[tuple[str, torch.dtype], ...]
    autocast_cache: bool
    dtype: torch.dtype

    @staticmethod
    def now() -> Ambient:
        return Ambient(
            tuple((kind, torch.get_autocast_dtype(kind)) for kind in _autocast_kinds()),
            torch.is_autocast_cache_enabled(),
            torch.get_default_dtype(),
        )

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        before = torch.get_default_dtype()
        with contextlib.ExitStack() as stack:
            for kind in _autocast_kinds():
                stack.enter_context(torch.autocast(kind, enabled=False))
            for kind, dtype in self.autocast:
                stack.enter_context(
                    torch.autocast(kind, dtype=dtype, cache_enabled=self.autocast_cache)
                )
            torch.set_default_dtype(self.dtype)
            stack.callback(torch.set_default_dtype, before)
            yield


def _autocast_kinds() -> list[str]:
    """The kinds of devices that autocast is on for."""
    if not torch._C._is_any_autocast_enabled():
        return []
    return [k for k in torch._C._autocast_supported_devices() if torch.is_autocast_enabled(k)]


@dataclass(frozen=True)
class Program:
    """A flat function over fake inputs, in the calling convention of its graph.

    `function` returns `(outputs, descriptions)`.
    """

    function: Callable[..., Any]
    state: AOTState


def _settled(
    stack: contextlib.ExitStack,
    function: Callable[..., Any],
    args: list[Any],
    descriptions: list[Any],
    config: AOTConfig,
    fake_mode: FakeTensorMode,
    gm: fx.GraphModule | None = None,
) -> Program:
    """Collect the metadata of `function`, then drop duplicate and merge aliased inputs as torch
    does.
    """
    fake = FakifiedFlatArgs(args)
    seen = outputs.Seen()
    watched = outputs.watched(function, seen)
    state = create_aot_state(
        stack, watched, fake, descriptions, config, fake_mode, fake_mode.shape_env
    )
    sharing.agree(state)
    outputs.settle(state, watched, seen, gm)

    def described(*inner: Any) -> tuple[Any, list[Any]]:
        out = function(*inner)
        return out, type(out)(PlainAOTOutput(i) for i in range(len(out)))

    flat, state.flat_args, state.flat_args_descs, state.fw_metadata = pre_compile(
        [AOTDedupeWrapper(), AOTSyntheticBaseWrapper(trace_joint=True)],
        described,
        state.flat_args,
        state.flat_args_descs,
        state.aot_config,
        fw_metadata=state.fw_metadata,
    )
    return Program(flat, state)


def _fresh(tangent: Any) -> Any:
    """A leaf like `tangent` that shares no storage with anything."""
    with torch.no_grad():
        return tangent.detach().clone().requires_grad_(True)


def _gradient_function(
    program: Program, kept: list[bool], reached: list[frozenset[int]]
) -> Callable[..., Any]:
    """The function `(*inputs, *tangents) -> gradients` of a program; `kept[i]`: input i has a
    gradient; `reached[k]`: what gradient k depends on in the eyes of autograd, of all it is given.
    """
    state = program.state
    info = state.fw_metadata.input_info
    prepared = fn_prepped_for_autograd(
        program.function, state.flat_args_descs, state.fw_metadata, state.aot_config
    )
    count = len(state.flat_args)

    def gradients(*args: Any) -> list[Any]:
        inputs, tangents = args[:count], args[count:]
        # a program may mutate what it was given; what counts is the value before
        given = [
            x.clone()
            if isinstance(x, torch.Tensor) and (i.mutates_data or i.mutates_metadata)
            else x
            for x, i in zip(inputs, info, strict=True)
        ]
        with torch.enable_grad():
            (outputs, mask), _ = prepared(*given)
            mode = get_proxy_mode()
            if mode is not None:
                for node in mode.tracer.graph.nodes:
                    node.meta[REPLAYED] = True
            pairs = [
                (out, tangent)
                for out, tangent in zip(
                    [o for o, differentiable in zip(outputs, mask, strict=True) if differentiable],
                    tangents,
                    strict=True,
                )
                if isinstance(out, torch.Tensor) and out.requires_grad
            ]
            wanted = [
                i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and x.requires_grad
            ]
            with _lines_kept([o for o, _ in pairs]), autocast.off_in_backward():
                found: Sequence[torch.Tensor | None] = torch.autograd.grad(
                    [o if o.shape == t.shape else o.view(t.shape) for o, t in pairs],
                    [inputs[i] for i in wanted],
                    [t for _, t in pairs],
                    create_graph=True,
                    allow_unused=True,
                )
        by_input = dict(zip(wanted, found, strict=True))
        kept[:] = [by_input.get(i) is not None for i in range(count)]
        reached[:] = [_reached(g, args) for g in found if g is not None]
        # the copy makes every gradient a result of its own in the eyes of torch's alias analysis;
        # `second_order` takes it out of the graph again
        return [g.clone() for g in found if g is not None]

    return gradients


def _reached(result: torch.Tensor, given: Sequence[Any]) -> frozenset[int]:
    """Which of `given` the autograd graph of `result` leads to, be it to derivatives of zero."""
    tensors = [(i, x) for i, x in enumerate(given) if isinstance(x, torch.Tensor)]
    leaves = {id(x): i for i, x in tensors if x.grad_fn is None and x.requires_grad}
    edges = {(x.grad_fn, x.output_nr): i for i, x in tensors if x.grad_fn is not None}
    if result.grad_fn is None:
        return frozenset({leaves[id(result)]} if id(result) in leaves else ())
    found: set[int] = set()
    todo: list[tuple[Any, int]] = [(result.grad_fn, result.output_nr)]
    seen: set[Any] = set()
    while todo:
        edge = todo.pop()
        node = edge[0]
        if edge in edges:
            found.add(edges[edge])
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::AccumulateGrad" and id(node.variable) in leaves:
            found.add(leaves[id(node.variable)])
        todo += node.next_functions
    return frozenset(found)


@contextlib.contextmanager
def _lines_kept(results: Sequence[torch.Tensor]) -> Iterator[None]:
    """What is traced in a backward of `results` tells the lines of the forward it is of.

    Anomaly mode, under which torch traces, notes them at the nodes of the autograd graph.
    """
    before = traceback.format_stack()
    nodes: list[Any] = [t.grad_fn for t in results if t.grad_fn is not None]
    seen: set[Any] = set(nodes)
    while nodes:
        node = nodes.pop()
        node.register_prehook(functools.partial(_set_lines, node.metadata.get("traceback_", [])))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    try:
        yield
    finally:
        traceback.set_stack_trace(before)


def _set_lines(lines: list[str], _gradients: object) -> None:
    traceback.set_stack_trace(lines)


@dataclass(frozen=True)
class Derived:
    """The joint graph of a derived program, before it is cut and split.

    `inputs` counts the lower program's inputs, which come first, then `tangents`. `kept[i]` says
    whether input i has a gradient among the first `results` outputs. `reached[k]`: the inputs, and
    tangents after those, that result k depends on in the eyes of autograd.
    """

    graph: fx.GraphModule
    state: AOTState
    subclass: SubclassMeta | None
    lower: AOTState
    inputs: int
    tangents: int
    kept: tuple[bool, ...]
    results: int
    reached: tuple[frozenset[int], ...]

    @property
    def meta(self) -> ViewAndMutationMeta:
        return self.state.fw_metadata

    @property
    def flat_results(self) -> int:
        """How many of the graph's outputs the results are, subclasses taken apart."""
        return sum(places(layout) for layout in return_layouts(self.meta))

    @property
    def has_backward(self) -> bool:
        """Whether any gradient depends differentiably on an input or a tangent."""
        return self.state.needs_autograd

    @property
    def differentiable(self) -> tuple[bool, ...]:
        """For each result, whether a cotangent arrives for it."""
        return tuple(
            self.has_backward and bool(o.requires_grad_for_backward) for o in self.meta.output_info
        )

    def flat_inputs(self, total: int) -> int:
        """How many of `total` flat inputs belong to the lower program's inputs rather than its
        tangents.
        """
        layouts = self.meta.subclass_inp_meta
        if self.subclass is None:
            return self.inputs
        if self.inputs == len(layouts):
            return total
        first = layouts[self.inputs]
        if isinstance(first, SubclassCreationMeta):
            return first.flat_tensor_start_idx
        assert isinstance(first, PlainTensorMeta)
        return first.unwrapped_idx

    def owner(self, flat: int) -> int:
        """The lower program's input, or tangent after those, that a flat input is part of."""
        if self.subclass is None:
            return flat
        starts = [
            m.flat_tensor_start_idx if isinstance(m, SubclassCreationMeta) else m.unwrapped_idx
            for m in self.meta.subclass_inp_meta
        ]
        return bisect.bisect_right(starts, flat) - 1

    def input(self, index: int) -> tuple[bool, bool, int | None]:
        """Of a lower input: whether it requires grad, whether it is mutated, its place in Dynamo's
        graph.
        """
        info = self.lower.fw_metadata.input_info[index]
        place = getattr(self.lower.flat_args_descs[index], "idx", None)
        mutated = info.mutates_data or info.mutates_metadata
        return info.requires_grad, mutated, place


@contextlib.contextmanager
def failures_named() -> Iterator[None]:
    """What torch's stages cannot trace has no derivative of this order, and says why."""
    try:
        yield
    except DoubleBackwardError:
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise DoubleBackwardError(
            "double backward: torch's stages cannot trace the gradients of this program "
            f"({type(error).__name__}: {first[:200]})",
            todo="keep what it names out of the compiled function",
        ) from error


@contextlib.contextmanager
def derived(
    gm: fx.GraphModule, example_inputs: Sequence[Any], order: int, ambient: Ambient
) -> Iterator[Derived]:
    """Trace the program that computes the derivatives of order `order - 1` of `gm`, with its
    backward.

    `order` 2 is the second-order program. The tracing state lives until the block ends.
    """
    fake_mode = detect_fake_mode(list(example_inputs))
    assert fake_mode is not None
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracing(TracingContext(fake_mode)))
        stack.enter_context(ambient.restored())
        stack.enter_context(torch.enable_grad())
        stack.enter_context(functorch_config.patch(unlift_effect_tokens=False, cse=False))
        flat_fn, _, _, _, fake, descriptions, config, _, _, _, _, _ = prepare_aot_module_simplified(
            gm, list(example_inputs), None, None, True, False, flatten=False
        )
        stack.enter_context(compiled_autograd._disable())
        program = _settled(stack, flat_fn, list(fake), list(descriptions), config, fake_mode, gm)
        for level in range(2, order + 1):
            state = program.state
            tangents = [_fresh(t) for t in state.fw_metadata.traced_tangents]
            args = [*state.flat_args, *tangents]
            kept: list[bool] = []
            reached: list[frozenset[int]] = []
            function = _gradient_function(program, kept, reached)
            config = dataclasses.replace(
                config, static_input_indices=[], aot_autograd_arg_pos_to_source=None
            )
            places: list[Any] = [PlainAOTInput(i) for i in range(len(args))]
            if level < order:
                program = _settled(stack, function, args, places, config, fake_mode)
                continue
            given = FakifiedFlatArgs(args)
            derived_state = create_aot_state(
                stack, function, given, places, config, fake_mode, fake_mode.shape_env
            )
            captured = aot_stage1_graph_capture(derived_state, function)
            # What it specializes, first order has specialized and guarded already.
            with contextlib.suppress(TensorifyScalarRestartAnalysis):
                tensorify_floats(captured.graph_module)
            yield Derived(
                captured.graph_module,
                derived_state,
                captured.maybe_subclass_meta,
                state,
                len(state.flat_args),
                len(tangents),
                tuple(kept),
                sum(kept),
                tuple(reached),
            )


def split(
    graph: fx.GraphModule, results: int, state: AOTState
) -> tuple[fx.GraphModule, fx.GraphModule | None]:
    """Split a joint graph into its forward and its backward."""
    if not state.needs_autograd:
        return graph, None
    graph = run_joint_graph_passes_on_hops(
        graph, None, state.aot_config, default_partition_fn=min_cut_rematerialization_partition
    )
    forward, backward = min_cut_rematerialization_partition(
        graph, None, num_fwd_outputs=results, static_lifetime_input_indices=[]
    )
    return forward, backward


def random_state(drawn: Any) -> torch.Tensor:
    """The state of a generator as it is traced, beside what is drawn from it."""
    fake_mode = detect_fake_mode(drawn)
    assert fake_mode is not None
    with fake_mode:
        return fake_mode.from_tensor(torch.get_rng_state())


def free_of_unbacked(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> bool:
    """Whether a symbolic number is made of the inputs' sizes alone."""
    return not free_unbacked_symbols(value)
