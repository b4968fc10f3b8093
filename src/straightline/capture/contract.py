"""The runtime contract: every duty of a compiled program around its graph, frozen.

torch's tracing stages discover these facts; `torch_private.translate` writes them down here once,
and the emitters under `runtime` read nothing else. No object of torch's private modules appears in
a contract, two contracts compare equal when the same functions would be generated for them, and
`str()` prints one.

Three numberings are used, always by plain index:

* **argument**: what the caller passes, in order (`Contract.arguments`).
* **input**: what the graph's calling convention takes after duplicates are dropped and aliased
  arguments are merged into bases (`Contract.inputs`); mutations, outputs and gradients refer to
  inputs.
* **value**: what the forward graph returns before subclasses are wrapped:
  `(mutated inputs..., outputs..., bases..., saved values...)`.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch


@dataclass(frozen=True)
class Plain:
    """A value passed as it is."""


@dataclass(frozen=True)
class Opaque:
    """A member of a subclass that is not a tensor and travels unchanged."""


@dataclass(frozen=True)
class Subclass:
    """A traceable wrapper subclass, taken apart into its members.

    In `size` and `stride`, None marks an entry that is known at run time only; it takes a place of
    its own after the members, sizes before strides. `context` is what the class's
    `__tensor_flatten__` returned.
    """

    type: type
    members: tuple[tuple[str, Layout], ...]
    size: tuple[int | None, ...]
    stride: tuple[int | None, ...]
    context: object

    @property
    def places(self) -> int:
        """How many flat values one object of this layout takes."""
        inner = sum(places(layout) for _, layout in self.members)
        return inner + self.size.count(None) + self.stride.count(None)


Layout: TypeAlias = Plain | Opaque | Subclass


def places(layout: Layout) -> int:
    """How many flat values an object of this layout takes."""
    return layout.places if isinstance(layout, Subclass) else 1


class Role(enum.Enum):
    """What kind of thing an argument is."""

    TENSOR = "tensor"
    NUMBER = "number"
    BACKWARD_STATE = "backward state"
    OTHER = "other"


@dataclass(frozen=True)
class Argument:
    """One thing that the caller passes. `source` is how the user's program reaches it.

    `lifted` arguments are constants of the captured module, bound at compile time and not passed.
    """

    name: str
    source: str
    role: Role
    requires_grad: bool = False
    lifted: bool = False


@dataclass(frozen=True)
class Input:
    """One input of the graph's calling convention.

    `argument` is the argument it is, or None when it is the common base of several
    (`Contract.bases`). `leaf` holds at run time too when the input is a Parameter (`parameter`),
    else only when compiled. `inference`: made in inference mode and written to as `x.data`, which
    is allowed anywhere.
    """

    name: str
    role: Role
    layout: Layout = Plain()
    argument: int | None = None
    requires_grad: bool = False
    leaf: bool = True
    parameter: bool = False
    detached: bool = False
    frozen: bool = False
    waits: bool = False
    inference: bool = False


@dataclass(frozen=True)
class SharedBase:
    """Arguments that alias one another and of which one is mutated, merged into their common base.

    `mutated` lists the members whose version must move even when the base has to be made from the
    storage.
    """

    members: tuple[int, ...]
    mutated: tuple[int, ...]


@dataclass(frozen=True)
class Duplicate:
    """Argument `dropped` is the same tensor as argument `kept`; checked at each call."""

    dropped: int
    kept: int


class Write(enum.Enum):
    """How a new value reaches a mutated input after the graph ran."""

    COPY = "copy_"
    COPY_DETACHED = "detach().copy_"
    RESTRIDE = "as_strided_"
    RESTRIDE_COPY = "as_strided_ + copy_"
    RESTRIDE_COPY_DETACHED = "as_strided_ + detach().copy_"
    SET = "set_"
    STREAM_ERROR = "refused: user stream"


@dataclass(frozen=True)
class Mutation:
    """Input `input` receives value number k, its position in `Contract.mutations`.

    `grows`: the new geometry may need more memory than the input has.
    """

    input: int
    write: Write
    requires_grad: bool
    layout: Layout = Plain()
    grows: bool = False

    @property
    def differentiable(self) -> bool:
        """The new value is a differentiable result of the forward."""
        return self.requires_grad and self.write not in (Write.RESTRIDE, Write.SET)

    @property
    def boxed(self) -> bool:
        """Only the geometry matters: hidden from autograd on its way out of the forward."""
        return self.write in (Write.RESTRIDE, Write.SET)


@dataclass(frozen=True)
class ViewStep:
    """One view operation, replayed on a base: `op(base, *arguments)`, then item `pick` where it is
    a tuple.

    `op` is the operation's public name (`aten::select.int`). A `str` argument inside is a Python
    expression over the sizes that the program receives.
    """

    op: str
    arguments: tuple[object, ...]
    keywords: tuple[tuple[str, object], ...] = ()
    pick: int | None = None


class From(enum.Enum):
    """Where an output comes from."""

    VALUE = "value"
    UNSAFE_VIEW = "value that autograd must not see as a view"
    IN_INPUT = "value in the memory of an input"
    IN_OUTPUT = "value in the memory of an output"
    ARGUMENT = "argument itself"
    OUTPUT = "earlier output itself"
    VIEW_OF_INPUT = "view of an input"
    VIEW_OF_OUTPUT = "view of an output"
    VIEW_OF_BASE = "view of an intermediate base"


VALUES = frozenset({From.VALUE, From.UNSAFE_VIEW, From.IN_INPUT, From.IN_OUTPUT})


@dataclass(frozen=True)
class Output:
    """One output of the user's function.

    `base` indexes the arguments, the inputs, the outputs or the intermediate bases, by `origin`.
    What is in the memory of something else has the value's history. `detached`: it is no view of
    what its memory belongs to. `replay` is the
    chain of views that leads from the base to the output; None means that only the geometry of the
    graph's own result is known, at run time. `requires_grad` is the output's property;
    `differentiable` says that a tangent arrives for it.
    """

    origin: From
    tensor: bool
    requires_grad: bool = False
    differentiable: bool = False
    base: int | None = None
    replay: tuple[ViewStep, ...] | None = None
    detached: bool = False
    dynamic: tuple[int, ...] = ()
    layout: Layout = Plain()

    @property
    def alias(self) -> bool:
        """The output is regenerated from a base outside the autograd function."""
        return self.origin not in VALUES


@dataclass(frozen=True)
class Strides:
    """A tangent must come with exactly these strides."""

    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class Format:
    """A tangent must be contiguous in this memory format."""

    memory_format: torch.memory_format


@dataclass(frozen=True)
class Tangent:
    """One gradient that arrives in backward, for return number `position` of the forward."""

    position: int
    layout: Layout
    format: Strides | Format | None
    members: tuple[Tangent, ...] = ()
    description: str = ""
    created_at: str | None = None

    @property
    def name(self) -> str:
        """What generated source calls it."""
        words = self.description.replace("output ", "out")
        words = re.sub(r"^order (\d+) gradient of ", r"\1 ", words)
        named = re.sub(r"\W+", "_", words).strip("_")
        return f"grad{named}" if words[:1].isdigit() else f"grad_{named}"


@dataclass(frozen=True)
class Zero:
    """A tensor of zeros. A `str` in its size is an expression over `size`, the result's sizes."""

    size: tuple[int | str, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Missing:
    """Gradients may be left out: what stands for them, and what does without them.

    `zeros[k]` are the flat parts of tangent k's zero where it is a subclass (members, then sizes
    known at run time only); the node itself knows what a plain one is like. `needed[i]` lists the
    tangents that gradient i depends on: where all of them are left out, it is left out too.
    `fixed`: some gradient depends on none of them, and is there whatever arrives.
    """

    zeros: tuple[tuple[Zero | str, ...], ...]
    needed: tuple[tuple[int, ...], ...]
    fixed: bool = False


@dataclass(frozen=True)
class Shared:
    """Saved tensor `index` looks at the memory of value `number`, a result of the forward.

    The result has a version counter of its own: what is saved is made from it, so that a write to
    the result is noticed. `way`: the value itself, a view of it with another geometry, the same
    after `conj`, one of another type, or the conjugate of such a one.
    """

    index: int
    number: int
    way: Literal["itself", "as_strided", "conj", "view_like", "conj_view_like"]


@dataclass(frozen=True)
class Saved:
    """The values kept for backward, in the order in which the forward graph returns them.

    `maybe_view` and `view` are indices of tensors that may be, or are, views and are detached
    before they are saved, so that a saved view never keeps its own graph alive.
    """

    checked: int = 0
    unchecked: int = 0
    opaque: int = 0
    numbers: int = 0
    view: tuple[int, ...] = ()
    maybe_view: tuple[int, ...] = ()
    dynamic: tuple[tuple[int, tuple[int, ...]], ...] = ()
    shared: tuple[Shared, ...] = ()

    @property
    def tensors(self) -> int:
        return self.checked + self.unchecked


@dataclass(frozen=True)
class Handles:
    """What forward notes of its inputs, by number, so that its gradients can be differentiated
    later.

    `edges`: results of earlier operations, perhaps. Their place in the autograd graph is kept, not
    their memory. `versions`: perhaps live leaves whose value backward does not keep; if it is
    needed after all, it must not have changed. `numbers`: sizes and other numbers that backward
    does not keep. `values`: kept at their value before the call, under the option
    `double_backward="save"`.
    """

    edges: tuple[int, ...] = ()
    versions: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    values: tuple[int, ...] = ()


@dataclass(frozen=True)
class Given:
    """What a placeholder of a higher-order program's graph stands for, in the program one order
    lower.

    `saved`: value `index` of those its forward kept, in their order. `tangent`: flat tangent
    `index`. `input`: flat part `part` of its input `index`, at its value before the call.
    """

    kind: Literal["saved", "tangent", "input"]
    index: int
    part: int = 0


@dataclass(frozen=True)
class Derivation:
    """How a program of a higher order comes out of the program one order lower.

    `given` lists what its graph takes. `gradients[i]` says whether input i of the lower program has
    a gradient; those that have one are this program's outputs, in order. Its inputs are the lower
    program's inputs, then its tangents; those that cotangents flow to are passed. `by_tangent[k]`
    lists the tangents that output k depends on where it depends on nothing else: it requires grad
    only if one of them does. `lost` has, for each input whose value must come from a live leaf,
    what to say if there is none, and where in the user's program it is needed.
    """

    order: int
    given: tuple[Given, ...]
    gradients: tuple[bool, ...]
    by_tangent: tuple[tuple[int, ...] | None, ...]
    lost: tuple[tuple[int, str, str | None], ...]


@dataclass(frozen=True)
class Rng:
    """Random state that travels through the program as inputs and outputs (accelerators only).

    `functional`: seed and offset are appended to the inputs, the new offset is returned.
    `states` generators are appended to the inputs of forward and backward.
    """

    functional: bool = False
    states: int = 0
    device: torch.device | None = None


@dataclass(frozen=True)
class Modes:
    """Global state around the program. Everything here is guarded by Dynamo for the forward.

    `backward_casts`: the backward graph holds casts of autocast; its caller decides otherwise.
    """

    grad_enabled: bool
    autocast: bool = False
    backward_casts: bool = False
    grad_after: bool | None = None
    deterministic: bool | None = None
    hooks_inlined: bool = False


@dataclass(frozen=True)
class FirstCall:
    """What happens at the first call only."""

    check_custom_ops: bool = False


@dataclass(frozen=True)
class Contract:
    """Every duty of one compiled program, see the module's text for the numberings.

    `version_stays`: arguments that are written to though eager leaves their version;
    `version_moves`: those whose version eager moves though nothing is written to them.
    """

    name: str
    kind: Literal["inference", "training"]
    arguments: tuple[Argument, ...]
    inputs: tuple[Input, ...]
    modes: Modes
    mutations: tuple[Mutation, ...] = ()
    outputs: tuple[Output, ...] = ()
    intermediate_bases: int = 0
    base_layouts: tuple[Layout, ...] = ()
    base_views: tuple[int, ...] = ()
    bases: tuple[SharedBase, ...] = ()
    duplicates: tuple[Duplicate, ...] = ()
    restrided: tuple[int, ...] = ()
    version_stays: tuple[int, ...] = ()
    version_moves: tuple[int, ...] = ()
    saved: Saved = Saved()
    handles: Handles = Handles()
    derivation: Derivation | None = None
    tangents: tuple[Tangent, ...] = ()
    missing: Missing | None = None
    gradients: tuple[Layout, ...] = ()
    rng: Rng = Rng()
    backward_state: int | None = None
    forward_tokens: int = 0
    backward_tokens: int = 0
    backward_mutates: bool = False
    first_call: FirstCall = FirstCall()
    debug_requires_grad: tuple[bool | None, ...] = ()
    profile: bool = False
    boxed: bool = False

    @property
    def returns(self) -> int:
        """How many values the forward graph returns ahead of the saved ones, subclasses not yet
        taken apart.
        """
        return len(self.mutations) + len(self.outputs) + self.intermediate_bases

    def return_layouts(self) -> tuple[Layout, ...]:
        """Layout of each of `returns` values."""
        mutated = tuple(m.layout for m in self.mutations)
        return mutated + tuple(o.layout for o in self.outputs) + self.base_layouts

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(contract: Contract) -> Iterator[str]:
    """One duty a line, absent duties left out."""
    yield f"{contract.kind} program {contract.name}"
    for field in dataclasses.fields(contract):
        value = getattr(contract, field.name)
        if field.name in ("name", "kind") or value == field.default:
            continue
        if isinstance(value, tuple):
            yield from (f"  {field.name}[{i}] = {item}" for i, item in enumerate(value))
        else:
            yield f"  {field.name} = {value}"
