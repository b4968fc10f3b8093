"""From a contract and its graphs to a callable program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx

from straightline.capture.contract import Contract
from straightline.runtime import backward, forward, inference, register, rng
from straightline.runtime.writer import Writer
from straightline.torch_private.tracing import never_trace


@dataclass(frozen=True)
class Generated:
    """One generated file."""

    direction: str
    file: str
    text: str
    duties: tuple[tuple[str, str], ...]


@dataclass
class Program:
    """A compiled graph: the function to call and everything that was generated for it.

    `generated` grows when backward is compiled, at its first call.
    """

    contract: Contract
    compile_id: str
    call: Callable[..., Any]
    graphs: tuple[fx.GraphModule, ...]
    generated: list[Generated] = field(default_factory=list)

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
    return Generated(direction, file, writer.text, duties), defined


def _writer(contract: Contract, direction: str, compile_id: str) -> Writer:
    writer = Writer()
    writer.line(f"# straightline | {direction} | {contract.name} | compile {compile_id}")
    for item in (*contract.arguments, *contract.inputs):
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
) -> Program:
    """A program that no gradient flows through."""
    writer = _writer(contract, "inference", compile_id)
    writer.globals.update(lifted)
    function = writer.name(contract.name)
    inference.emit(writer, contract, graph, function)
    generated, defined = _generate(writer, contract, "inference", compile_id)
    observe(generated)
    return _finished(Program(contract, compile_id, defined[function], (graph,), [generated]))


class LazyBackward:
    """Compiles a program's backward at its first call, once, whichever thread comes first."""

    def __init__(self, compile_now: Callable[[], Callable[..., Any]]) -> None:
        self._compile = compile_now
        self._lock = threading.Lock()
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, ctx: Any, grads: list[Any]) -> Any:
        return self.get()(ctx, grads)

    def get(self) -> Callable[..., Any]:
        with self._lock:
            if self._compiled is None:
                self._compiled = self._compile()
        return self._compiled


# Autograd calls it from within whatever Dynamo is running.
never_trace(LazyBackward.__call__.__code__)


def build_training(
    contract: Contract,
    graph: fx.GraphModule,
    backward_graph: fx.GraphModule,
    compile_id: str,
    observe: Observer,
    lifted: Mapping[str, object],
    *,
    function_class: Callable[[str, dict[str, object]], type[torch.autograd.Function]],
    second_order: Callable[[Any, list[Any]], Any],
    around_backward: Callable[[Callable[[], Callable[..., Any]]], Callable[..., Any]],
) -> Program:
    """A program with a backward.

    `function_class(name, body)` makes the autograd function's class; `around_backward` runs the lazy
    compilation of backward under the state that forward was compiled in.
    """
    writer = _writer(contract, "forward", compile_id)
    writer.globals.update(lifted)
    outer, inner = writer.name(contract.name), writer.name(f"{contract.name}_forward")
    apply = writer.name("apply")
    states: rng.GeneratorStates | None = None
    if contract.rng.states:
        assert contract.rng.device is not None
        states = rng.GeneratorStates(contract.rng.states, contract.rng.device)
    made_inner = forward.emit_inner(writer, contract, graph, inner, states)
    writer.line("")
    writer.line("")
    forward.emit_outer(writer, contract, outer, apply, made_inner.results)
    generated, defined = _generate(writer, contract, "forward", compile_id)
    observe(generated)
    program = _finished(
        Program(contract, compile_id, defined[outer], (graph, backward_graph), [generated])
    )

    def compile_backward() -> Callable[..., Any]:
        backward_writer = _writer(contract, "backward", compile_id)
        name = backward_writer.name(f"{contract.name}_backward")
        backward.emit(
            backward_writer,
            contract,
            backward_graph,
            name,
            compile_id=compile_id,
            saved_names=made_inner.saved,
            second_order=second_order,
            rng_states=states,
        )
        made, functions = _generate(backward_writer, contract, "backward", compile_id)
        program.generated.append(made)
        observe(made)
        cls.backward = staticmethod(functions[name])
        return functions[name]

    lazy = LazyBackward(lambda: around_backward(compile_backward))
    body = {"forward": staticmethod(defined[inner]), "backward": staticmethod(lazy)}
    cls = function_class(contract.name, body)
    defined[outer].__globals__[apply] = super(torch.autograd.Function, cls).apply
    return program
