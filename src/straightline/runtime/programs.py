"""From a contract and its graphs to a callable program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch
from torch import fx

from straightline.capture.contract import Contract
from straightline.capture.origins import identifier
from straightline.runtime import (
    backward,
    forward,
    higher,
    inference,
    register,
    rng,
    sequence,
)
from straightline.runtime.body import Lower
from straightline.runtime.writer import Writer
from straightline.torch_private.dynamo import COMPILE_LOCK
from straightline.torch_private.tracing import never_trace


@dataclass(frozen=True)
class Generated:
    """One generated file. `names` are the objects it uses, by their names in it; `sources` says how
    to get at those that have no name of their own.
    """

    direction: str
    file: str
    text: str
    duties: tuple[tuple[str, str], ...]
    names: Mapping[str, object]
    sources: Mapping[str, str]


@dataclass
class Program:
    """A compiled graph: the function to call and everything that was generated for it.

    `generated` grows when backward is compiled, at its first call. `lower` is what put kernels into
    its graphs.
    """

    contract: Contract
    compile_id: str
    call: Callable[..., Any]
    graphs: tuple[fx.GraphModule, ...]
    generated: list[Generated] = field(default_factory=list)
    lower: Lower | None = None

    @property
    def source(self) -> str:
        """The text of all functions so far."""
        return "\n\n".join(g.text for g in self.generated)


class Observer(Protocol):
    """Told about each file as it is generated."""

    def __call__(self, generated: Generated) -> None: ...


def _generate(
    writer: Writer, contract: Contract, direction: str, compile_id: str
) -> tuple[Generated, dict[str, Callable[..., Any]]]:
    title = f"{contract.name} {compile_id} {direction}"
    file = register.file_name(title)
    defined = register.functions(file, writer.text, writer.globals)
    duties = tuple((name, writer.duty_text(name)) for name in writer.duties)
    names, sources = dict(writer.globals), dict(writer.sources)
    return Generated(direction, file, writer.text, duties, names, sources), defined


def _writer(contract: Contract, direction: str, compile_id: str) -> Writer:
    writer = Writer()
    writer.line(f"# straightline | {direction} | {contract.name} | compile {compile_id}")
    for argument in contract.arguments:
        writer.reserve(argument.name)
    for item in contract.inputs:
        writer.reserve(item.name)
    return writer


def _finished(program: Program) -> Program:
    """The program can be found again from its function."""
    program.call.__straightline__ = program  # type: ignore[attr-defined]
    return program


def build_inference(
    contract: Contract,
    graph: fx.GraphModule,
    compile_id: str,
    observe: Observer,
    lifted: Mapping[str, object],
    lower: Lower | None = None,
) -> Program:
    """A program that no gradient flows through."""
    writer = _writer(contract, "inference", compile_id)
    writer.globals.update(lifted)
    function = writer.name(contract.name)
    inference.emit(writer, contract, graph, function, lower)
    generated, defined = _generate(writer, contract, "inference", compile_id)
    observe(generated)
    call = defined[function]
    return _finished(Program(contract, compile_id, call, (graph,), [generated], lower))


def build_sequence(
    whole: fx.GraphModule, parts: Sequence[Callable[..., Any]], name: str, compile_id: str
) -> Callable[..., Any]:
    """The function that calls the programs of a graph's parts, as `whole` does."""
    writer = Writer()
    writer.line(f"# straightline | sequence | {name} | compile {compile_id}")
    function = writer.name(name)
    defined = register.functions(
        register.file_name(f"{name} {compile_id} sequence"),
        sequence.emit(writer, whole.graph, parts, function),
        writer.globals,
    )
    return defined[function]


@dataclass(frozen=True)
class Derived:
    """A traced program of a higher order. `derive` traces the one above it."""

    contract: Contract
    forward: fx.GraphModule
    backward: fx.GraphModule | None
    derive: Derive


Derive: TypeAlias = Callable[[], Derived]


@dataclass(frozen=True)
class Seams:
    """What a program with a backward needs from outside.

    `function_class(name, body)` makes the class of the first order's autograd function,
    `higher_class` that of the others; `later(compile)` runs a compilation that was put off to the
    first call, under the state that forward was compiled in. `lower` puts kernels into graphs.
    """

    function_class: Callable[[str, dict[str, object]], Any]
    higher_class: Callable[[str, dict[str, object]], Any]
    later: Callable[[Callable[[], Callable[..., Any]]], Callable[..., Any]]
    lower: Lower | None = None


class Lazy:
    """A function of a node and its gradients, compiled at its first call, by whichever thread comes
    first.

    `settle` is told the function, so that the next call finds it without coming here. One that
    traces takes Dynamo's lock for its own: with two, threads could each wait for the other's. One
    that only writes a function needs nothing that a thread could be waiting for. `direction` is
    that of what is generated.
    """

    def __init__(
        self,
        direction: str,
        compile_now: Callable[[], Callable[..., Any]],
        settle: Callable[[Callable[..., Any]], None],
        *,
        traces: bool = False,
    ) -> None:
        self.direction = direction
        self._compile = compile_now
        self._settle = settle
        self._lock = COMPILE_LOCK if traces else threading.Lock()
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, ctx: Any, grads: list[Any]) -> Any:
        with self._lock:
            if self._compiled is None:
                self._compiled = self._compile()
                self._settle(self._compiled)
        return self._compiled(ctx, grads)


# Autograd calls it from within whatever Dynamo is running.
never_trace(Lazy.__call__.__code__)


def _settle(caller: Callable[..., Any], lazy: Lazy, function: Callable[..., Any]) -> None:
    """Where the generated `caller` calls `lazy`, it calls `function` from now on."""
    scope = caller.__globals__
    scope.update({name: function for name, value in scope.items() if value is lazy})


def _order(contract: Contract) -> int:
    return contract.derivation.order if contract.derivation else 1


def _direction(contract: Contract) -> str:
    return higher.title(_order(contract), "backward")


def build_training(
    contract: Contract,
    graph: fx.GraphModule,
    backward_graph: fx.GraphModule,
    compile_id: str,
    observe: Observer,
    lifted: Mapping[str, object],
    *,
    seams: Seams,
    derive: Derive,
) -> Program:
    """A program with a backward; `derive` traces the program of its gradients."""
    writer = _writer(contract, "forward", compile_id)
    writer.globals.update(lifted)
    outer, inner = writer.name(contract.name), writer.name(f"{contract.name}_forward")
    apply = writer.name("apply")
    states: rng.GeneratorStates | None = None
    if contract.rng.states:
        assert contract.rng.device is not None
        states = rng.GeneratorStates(contract.rng.states, contract.rng.device)
    made_inner = forward.emit_inner(writer, contract, graph, inner, states, seams.lower)
    writer.line("")
    writer.line("")
    forward.emit_outer(writer, contract, outer, apply, made_inner.results)
    generated, defined = _generate(writer, contract, "forward", compile_id)
    observe(generated)
    graphs = graph, backward_graph
    program = _finished(
        Program(contract, compile_id, defined[outer], graphs, [generated], seams.lower)
    )
    build = _Build(program, observe, seams)
    cls = build.function_class(
        contract, defined[inner], backward_graph, made_inner.saved, derive, states
    )
    defined[outer].__globals__[apply] = cls
    return program


@dataclass(frozen=True)
class _Build:
    """Makes the parts of a program that are compiled when they are first needed."""

    program: Program
    observe: Observer
    seams: Seams

    def function_class(
        self,
        contract: Contract,
        inner: Callable[..., Any],
        backward_graph: fx.GraphModule | None,
        kept: Sequence[str],
        derive: Derive,
        states: rng.GeneratorStates | None = None,
    ) -> Callable[..., Any]:
        """What enters the autograd function whose forward is `inner`."""
        body: dict[str, object] = {"forward": staticmethod(inner)}
        if backward_graph is not None:
            graph = backward_graph

            def compile_backward() -> Callable[..., Any]:
                return self.seams.later(
                    lambda: self._backward(contract, graph, kept, derive, states)
                )

            def settle(function: Callable[..., Any]) -> None:
                cls.backward = staticmethod(function)

            body["backward"] = staticmethod(Lazy(_direction(contract), compile_backward, settle))
        make = self.seams.higher_class if contract.derivation else self.seams.function_class
        cls = make(contract.name, body)
        # The Python part of `Function.apply` prepares for what never comes here.
        return super(torch.autograd.Function, cls).apply  # type: ignore[misc, no-any-return]

    def _backward(
        self,
        contract: Contract,
        graph: fx.GraphModule,
        kept: Sequence[str],
        derive: Derive,
        states: rng.GeneratorStates | None,
    ) -> Callable[..., Any]:
        direction = _direction(contract)

        def compile_above() -> Callable[..., Any]:
            return self.seams.later(lambda: self._above(contract, kept, derive))

        def compile_cast() -> Callable[..., Any]:
            return self.seams.later(lambda: self._cast_backward(contract, graph, kept, states))

        above = Lazy(
            higher.title(_order(contract) + 1, "forward"),
            compile_above,
            lambda found: _settle(made, above, found),
            traces=True,
        )
        cast = Lazy(
            higher.under_autocast(direction),
            compile_cast,
            lambda found: _settle(made, cast, found),
        )
        made = self._emit_backward(contract, graph, direction, kept, states, above, cast)
        return made

    def _cast_backward(
        self,
        contract: Contract,
        graph: fx.GraphModule,
        kept: Sequence[str],
        states: rng.GeneratorStates | None,
    ) -> Callable[..., Any]:
        """The backward for callers that have autocast on."""
        direction = higher.under_autocast(_direction(contract))
        return self._emit_backward(contract, graph, direction, kept, states, None, None)

    def _emit_backward(
        self,
        contract: Contract,
        graph: fx.GraphModule,
        direction: str,
        kept: Sequence[str],
        states: rng.GeneratorStates | None,
        above: Lazy | None,
        cast: Lazy | None,
    ) -> Callable[..., Any]:
        """One backward function; `above` and `cast` are what it hands its callers on to."""
        writer = _writer(contract, direction, self.program.compile_id)
        name = writer.name(identifier(f"{contract.name}_{direction}"))
        backward.emit(
            writer,
            contract,
            graph,
            name,
            compile_id=self.program.compile_id,
            kept=kept,
            second_order=above,
            under_autocast=cast,
            rng_states=states,
            lower=self.seams.lower,
        )
        return self._add(writer, contract, direction)[name]

    def _above(self, lower: Contract, kept: Sequence[str], derive: Derive) -> Callable[..., Any]:
        """The entry of the program one order above `lower`."""
        derived = derive()

        def compile_cast() -> Callable[..., Any]:
            return self.seams.later(lambda: self._enter(lower, kept, derived, None))

        direction = higher.title(_order(derived.contract), "forward")
        cast = Lazy(
            higher.under_autocast(direction),
            compile_cast,
            lambda found: _settle(entry, cast, found),
        )
        entry = self._enter(lower, kept, derived, cast)
        return entry

    def _enter(
        self, lower: Contract, kept: Sequence[str], derived: Derived, under_autocast: Lazy | None
    ) -> Callable[..., Any]:
        """The entry of `derived`, which leaves callers that have autocast on to `under_autocast`.

        None: the entry for those.
        """
        contract = derived.contract
        stem, direction = higher.title(_order(contract)), higher.title(_order(contract), "forward")
        if under_autocast is None:
            stem, direction = map(higher.under_autocast, (stem, direction))
        compile_id = self.program.compile_id
        writer = _writer(contract, direction, compile_id)
        for item in lower.inputs:
            writer.reserve(item.name)
        stem = identifier(f"{contract.name}_{stem}")
        entry, inner = writer.name(stem), writer.name(f"{stem}_forward")
        apply = writer.name("apply")
        made = higher.emit_inner(
            writer,
            contract,
            lower,
            derived.forward,
            inner,
            compile_id=compile_id,
            lower_saved=kept,
            recast=under_autocast is None,
            kernels=self.seams.lower,
        )
        writer.line("")
        writer.line("")
        if not backward.autocast_matters(contract, derived.forward):
            under_autocast = None
        higher.emit_entry(writer, contract, lower, entry, apply, under_autocast=under_autocast)
        functions = self._add(writer, contract, direction)
        functions[entry].__globals__[apply] = self.function_class(
            contract, functions[inner], derived.backward, made.saved, derived.derive
        )
        return functions[entry]

    def _add(
        self, writer: Writer, contract: Contract, direction: str
    ) -> dict[str, Callable[..., Any]]:
        generated, functions = _generate(writer, contract, direction, self.program.compile_id)
        self.program.generated.append(generated)
        self.observe(generated)
        return functions
