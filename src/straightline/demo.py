"""`straightline demo`: compile a small model, show what runs, hold it against eager, time it."""

from __future__ import annotations

import contextlib
import copy
import gc
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch import fx, nn

from straightline import __version__, api
from straightline.report import fallbacks
from straightline.runtime import body, register
from straightline.runtime.writer import Writer, tuple_of
from straightline.torch_private import peer

WIDTH = 100
TOLERANCE = 1e-5
_CHECKED_STEPS = 3
_ROUNDS = 60
_ROUND_US = 1500.0

Call = Callable[[], object]


class PatchNet(nn.Module):
    """Scores of a signal, and the signal in patches: a view, which shares the argument's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 4)

    def forward(self, signal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        patches = signal.unflatten(1, (4, 4))
        hidden = self.norm(self.embed(signal)).relu()
        scores = self.head(hidden)
        return scores, patches


def main() -> int:
    """Print the demonstration; 1 when what was compiled differs from eager or fell back, else 0."""
    torch.manual_seed(0)
    model, signal = PatchNet(), torch.randn(8, 16)
    print(f"straightline {__version__}, torch {torch.__version__}\n")
    print("The model (straightline/demo.py) returns scores and a view of its argument; in training")
    print("its BatchNorm writes to three buffers. This is all that runs when it is called.")
    checks = list(_inference(model, signal)) + list(_training(model, signal))
    _title("The same as eager?")
    _print_checks(checks)
    fell_back = sum(fallbacks.counts().values())
    print(f"\nGraphs that fell back, so that something else ran instead: {fell_back}")
    _title("What a call costs")
    with _one_thread():
        _print_costs([*_inference_costs(model, signal), *_training_costs(model, signal)])
    return 0 if all(check.holds for check in checks) and not fell_back else 1


# -- What runs, and whether it is right ----------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """One comparison with eager: how many tensors, and by how much they differ at most."""

    what: str
    tensors: int
    difference: float
    remark: str = ""
    also: bool = True

    @property
    def holds(self) -> bool:
        # Written so that NaN does not hold.
        return self.also and self.difference <= TOLERANCE


def _inference(model: PatchNet, signal: torch.Tensor) -> Iterator[Check]:
    eager, ours = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    compiled = api.compile(ours, fullgraph=True)
    with torch.no_grad():
        expected, found = eager(signal), compiled(signal)
    _title("Inference")
    _show(compiled)
    shares = found[1]._base is signal and expected[1]._base is signal
    remark = "patches are a view of the argument" if shares else "patches are NOT a view"
    yield Check("inference: values", 2, _difference(expected, found), remark, also=shares)
    torch.compiler.reset()


def _training(model: PatchNet, signal: torch.Tensor) -> Iterator[Check]:
    eager, ours = copy.deepcopy(model), copy.deepcopy(model)
    compiled = api.compile(ours, fullgraph=True)
    values = []
    for _ in range(_CHECKED_STEPS):
        expected, found = eager(signal), compiled(signal)
        values.append(_difference(expected, found))
        for scores, _patches in (expected, found):
            scores.square().mean().backward()
    _title("Training: the graph's function, the function that is called, and the backward")
    _show(compiled)
    remark = f"of {_CHECKED_STEPS} steps"
    yield Check("training: values", 2 * _CHECKED_STEPS, max(values), remark)
    parameters = [[p.grad for p in m.parameters()] for m in (eager, ours)]
    yield Check(
        "training: gradients",
        len(parameters[0]),
        _difference(*parameters),
        f"summed over {_CHECKED_STEPS} steps",
    )
    buffers = [list(m.buffers()) for m in (eager, ours)]
    yield Check("training: buffers", len(buffers[0]), _difference(*buffers), "written in place")
    torch.compiler.reset()


def _difference(expected: Sequence[Any], found: Sequence[Any]) -> float:
    """The largest absolute difference between two lists of tensors."""
    differences = [
        (a.detach().double() - b.detach().double()).abs().max()
        for a, b in zip(expected, found, strict=True)
    ]
    return float(torch.stack(differences).max())


def _show(compiled: Any) -> None:
    """The generated functions, without Dynamo's guards, long lines folded."""
    for line in compiled.source.splitlines():
        if not line.startswith("# when "):
            print(fold(line))


def fold(line: str) -> str:
    """`line` as lines that fit the page: the same code, less what does not fit of its comment."""
    if len(line) <= WIDTH:
        return line
    code, mark, comment = line.partition("  # ")
    indent = " " * (len(code) - len(code.lstrip()) + 8)
    *parts, last = textwrap.wrap(
        code, WIDTH - 2, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    folded, depth = [], 0
    for part in parts:
        depth += sum(part.count(c) for c in "([{") - sum(part.count(c) for c in ")]}")
        folded.append(part if depth else f"{part} \\")
    full = f"{last}{mark}{comment}"
    if len(full) > WIDTH:
        room = WIDTH - len("...")
        full = f"{full[:room]}..." if room > len(last) + len(mark) else last
    return "\n".join([*folded, full])


def _title(text: str) -> None:
    print(f"\n{f'-- {text} '.ljust(WIDTH, '-')}\n")


def _print_checks(checks: Sequence[Check]) -> None:
    print(f"{'':24}{'tensors':>8}{'max difference':>17}")
    for check in checks:
        verdict = "same" if check.holds else "DIFFERS"
        print(
            f"{check.what:24}{check.tensors:>8}{check.difference:>17.1e}  {verdict:8} "
            f"{check.remark}"
        )


# -- What it costs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Microseconds a call, by side, one value a round."""

    what: str
    rounds: Mapping[str, Sequence[float]]

    def time(self, side: str) -> str:
        return f"{median(self.rounds[side]):.1f}" if side in self.rounds else ""

    def ratio(self, over: str) -> str:
        """Ours over another side's, of the same round each."""
        if over not in self.rounds:
            return ""
        pairs = zip(self.rounds["ours"], self.rounds[over], strict=True)
        return f"{median(ours / other for ours, other in pairs):.2f}"


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """The model is too small for more, and a busy machine makes threads wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _inference_costs(model: PatchNet, signal: torch.Tensor) -> Iterator[Cost]:
    sides = _sides(copy.deepcopy(model).eval(), signal)

    def call(run: Callable[..., Any], arguments: tuple[Any, ...]) -> Call:
        return lambda: run(*arguments)

    with torch.no_grad():
        yield Cost("inference, whole call", _interleave(sides.whole(call)))
        yield Cost("inference, without Dynamo", _interleave(sides.direct(call)))
    torch.compiler.reset()


def _training_costs(model: PatchNet, signal: torch.Tensor) -> Iterator[Cost]:
    sides = _sides(copy.deepcopy(model), signal)

    def step(run: Callable[..., Any], arguments: tuple[Any, ...]) -> Call:
        parameters = list(sides.model.parameters())
        tangent = torch.ones(signal.shape[0], 4)

        def forward_and_backward() -> object:
            results = run(*arguments)
            scores = next(r for r in results if r.requires_grad)
            return torch.autograd.grad(scores, parameters, tangent)

        return forward_and_backward

    yield Cost("training step, whole", _interleave(sides.whole(step)))
    yield Cost("training step, without Dynamo", _interleave(sides.direct(step)))
    torch.compiler.reset()


@dataclass(frozen=True)
class _Sides:
    """One model and its compiled forms."""

    model: PatchNet
    signal: torch.Tensor
    backends: Mapping[str, peer.Compiler]

    def whole(self, call: Callable[..., Call]) -> dict[str, Call]:
        """Calls as a user makes them, through Dynamo and its guards."""
        calls = {"eager": call(self.model, (self.signal,))}
        for name, backend in self.backends.items():
            compiled = torch.compile(self.model, backend=backend, fullgraph=True, dynamic=False)
            calls[name] = call(compiled, (self.signal,))
        return calls

    def direct(self, call: Callable[..., Call]) -> dict[str, Call]:
        """Calls of what the backend returned, with the arguments that Dynamo passes to it."""
        return {name: call(*self._capture(backend)) for name, backend in self.backends.items()}

    def _capture(self, backend: peer.Compiler) -> tuple[peer.Compiled, tuple[Any, ...]]:
        held: list[tuple[peer.Compiled, tuple[Any, ...]]] = []

        def recording(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> peer.Compiled:
            compiled = peer.without_disable(backend(gm, example_inputs))

            def run(*arguments: Any) -> Any:
                held.append((compiled, arguments))
                return compiled(*arguments)

            return run

        torch.compile(self.model, backend=recording, fullgraph=True, dynamic=False)(self.signal)
        return held[0]


def _sides(model: PatchNet, signal: torch.Tensor) -> _Sides:
    return _Sides(model, signal, {"torch": peer.layer(_body), "ours": api.backend})


def _body(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> peer.Compiled:
    """The graph alone, as the lines that straightline would write: for torch's layer to call."""
    writer = Writer()
    inputs = [writer.name(node.name) for node in body.placeholders(gm)]
    results = range(len(gm.graph.output_node().args[0]))  # type: ignore[arg-type]
    with writer.block("def body(args):"):
        writer.line(f"{', '.join(inputs)}, = args")
        writer.line("args.clear()")
        values = body.emit(writer, gm, inputs, needed=results, own=set(inputs))
        writer.line(f"return {tuple_of(values)}")
    file = register.file_name("demo, graph alone")
    return register.functions(file, writer.text, writer.globals)["body"]


def _interleave(sides: Mapping[str, Call]) -> dict[str, list[float]]:
    """Times of each side, a value a round; every round times all, so that drift hits all alike."""
    times: dict[str, int] = {}
    for name, call in sides.items():
        _time(call, 20)
        times[name] = max(5, int(_ROUND_US / _time(call, 20)))
    results: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    enabled = gc.isenabled()
    gc.disable()
    try:
        for number in range(_ROUNDS):
            first = number % len(order)
            for name in order[first:] + order[:first]:
                results[name].append(_time(sides[name], times[name]))
    finally:
        if enabled:
            gc.enable()
    return results


def _time(call: Call, times: int) -> float:
    """Microseconds a call."""
    start = perf_counter_ns()
    for _ in repeat(None, times):
        call()
    return (perf_counter_ns() - start) / times / 1e3


def _print_costs(costs: Sequence[Cost]) -> None:
    print(f"Microseconds a call on one thread, medians of {_ROUNDS} interleaved rounds; a ratio is")
    print("the median of the rounds' own ratios.\n")
    print(f"{'':32}{'eager':>9}{'torch':>9}{'ours':>9}{'ours/eager':>13}{'ours/torch':>13}")
    for cost in costs:
        times = "".join(f"{cost.time(side):>9}" for side in ("eager", "torch", "ours"))
        ratios = "".join(f"{cost.ratio(side):>13}" for side in ("eager", "torch"))
        print(f"{cost.what:32}{times}{ratios}")
    print(
        "\ntorch: its own runtime layer (aot_autograd) around the same lines of operations as ours."
        "\nA step is forward and backward. Both are called by Dynamo, which checks its guards"
        "\nfirst; without Dynamo, what remains are the operations and the runtime layer."
    )
