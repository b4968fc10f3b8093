"""Runs a generated program in eager and through a backend, and lists what differs.

Shares no code with the compiler: everything is read off the tensors. By hand, for one program:

    python tests/fuzz/compare.py program.py --backend straightline
"""

from __future__ import annotations

import argparse
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from language import Values, grad_mode, load
from torch._dynamo.utils import counters

SOFT_KINDS = frozenset({"hidden_base", "no_error", "undifferentiable"})
"""What few users lose by: whether a tensor that nobody holds is some output's `_base`; a result
where eager's backward raises, because the graph saves another value than eager does, or where
eager has forbidden an output's history, so that it cannot be looked at nor differentiated; an error
in forward where eager's own backward would raise, but was not called."""

RAISES = "raises RuntimeError"

SAVE_HINT = "double backward"
"""Part of the message by which a backend may refuse a second derivative that it cannot have."""

WRONG_TANGENT = "TangentError: "
"""How a backward refuses a gradient of another class than the one that it was compiled for, as
torch's does; what is promised of it is an error that says which output it is of."""

UNTRACEABLE = "torch's stages cannot trace"
"""How the reasons begin for which a graph runs as captured; what torch says is no part of them."""


@dataclass(frozen=True)
class Entry:
    """One fact seen: where, which kind of fact, and what it was."""

    where: str
    kind: str
    fact: object


@dataclass(frozen=True)
class Step:
    """The facts of one step; `error` when the step raised, and then it is the last."""

    name: str
    entries: tuple[Entry, ...] = ()
    error: BaseException | None = None


@dataclass(frozen=True)
class Difference:
    where: str
    kind: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: eager {self.expected}, compiled {self.got}"


@dataclass(frozen=True)
class Verdict:
    """What became of one program.

    status  ok        no difference
            skipped   eager fails in its first forward
            dynamo    `backend="eager"` differs from eager too
            stock     only differences of `SOFT_KINDS`, every one of which aot_eager shows too
            refused   a second derivative refused, with the option that keeps the value; and that
                      option gives eager's result
            untraceable  torch's tracing raises or is wrong, in aot_eager too; ours runs the graph
                      as captured, says so, and gives eager's result
            finding   ours
    """

    status: str
    differences: tuple[Difference, ...] = ()
    graphs: int = 0
    fallbacks: tuple[str, ...] = ()
    aot_eager_too: bool = False
    """Only for findings: aot_eager differs from eager as well."""

    def signature(self) -> str:
        """Equal for programs that probably fail for one reason."""
        if not self.differences:
            return self.status
        hard = [d for d in self.differences if d.kind not in SOFT_KINDS]
        first = (hard or self.differences)[0]
        text = f"{first.kind}: {first.got}" if "error" in first.kind else first.kind
        return re.sub(r"0x[0-9a-f]+|\d+", "#", text)[:120]

    def kinds(self) -> tuple[str, ...]:
        return tuple(sorted({difference.kind for difference in self.differences}))


# -- seeing ----------------------------------------------------------------------------------------


def parts(value: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """The plain tensors of a tensor: itself, or the inner ones of a subclass."""
    if not hasattr(type(value), "__tensor_flatten__"):
        return {"": value}
    names, _ = value.__tensor_flatten__()
    return {
        f".{name}{rest}": part
        for name in names
        for rest, part in parts(getattr(value, name)).items()
    }


def strides(value: torch.Tensor) -> tuple[int, ...]:
    """Strides that matter: a dimension of size one has none, nor has an empty tensor."""
    if value.numel() <= 1:
        return ()
    pairs = zip(value.shape, value.stride(), strict=True)
    return tuple(stride for size, stride in pairs if size != 1)


def is_leaf(value: torch.Tensor) -> bool | str:
    """Reading it looks at the grad_fn, which a forbidden mutation of a view makes raise."""
    try:
        return value.is_leaf
    except RuntimeError:
        return RAISES


def snapshot(value: torch.Tensor) -> torch.Tensor:
    """The values, apart from every alias, in no grad or inference mode of the caller's."""
    with torch.inference_mode(False), torch.no_grad():
        return value.detach().clone()


def flatten(name: str, value: object) -> Iterable[tuple[str, object]]:
    match value:
        case list() | tuple():
            for index, item in enumerate(value):
                yield from flatten(f"{name}[{index}]", item)
        case dict():
            for key, item in value.items():
                yield from flatten(f"{name}[{key!r}]", item)
        case _:
            yield name, value


def describe_all(items: Iterable[tuple[str, object]], versions: Mapping[str, int]) -> list[Entry]:
    """Everything visible of these values, and of how they alias one another."""
    entries: list[Entry] = []
    identities: dict[int, str] = {}
    bases: dict[int, str] = {}
    storages: dict[int, str] = {}
    alive: list[object] = []  # identities hold while the objects do
    for name, value in items:
        if not isinstance(value, torch.Tensor):
            entries += [Entry(name, "type", type(value).__name__), Entry(name, "value", value)]
            continue
        alive.append(value)
        first = identities.setdefault(id(value), name)
        entries += describe(name, value)
        entries.append(Entry(name, "identity", first))
        base = value._base
        if base is None:
            entries += [Entry(name, "_base", None), Entry(name, "hidden_base", None)]
        else:
            alive.append(base)
            hidden = (
                bases.setdefault(id(base), f"base of {name}")
                if id(base) not in identities
                else None
            )
            entries.append(Entry(name, "_base", identities.get(id(base))))
            entries.append(Entry(name, "hidden_base", hidden))
        for suffix, part in parts(value).items():
            storage = part.untyped_storage()
            alive.append(storage)
            # Two empty tensors share nothing that could be seen.
            if storage.nbytes():
                shared = storages.setdefault(storage._cdata, name + suffix)
                entries.append(Entry(name + suffix, "storage", shared))
        if name in versions and not value.is_inference():
            entries.append(Entry(name, "version", value._version > versions[name]))
    return entries


def describe(name: str, value: torch.Tensor) -> list[Entry]:
    entries = [
        Entry(name, "type", type(value).__name__),
        Entry(name, "shape", tuple(value.shape)),
        Entry(name, "dtype", value.dtype),
        Entry(name, "strides", strides(value)),
        Entry(name, "requires_grad", value.requires_grad),
        Entry(name, "is_leaf", is_leaf(value)),
        Entry(name, "inference", value.is_inference()),
    ]
    for suffix, part in parts(value).items():
        entries.append(Entry(name + suffix, "value", snapshot(part)))
    if is_leaf(value) is True and value.requires_grad:
        entries += describe_gradient(f"{name}.grad", value.grad)
    return entries


def describe_gradient(name: str, grad: object) -> list[Entry]:
    """A gradient's values and type. None and zeros are one: eager skips what is unreachable."""
    if not isinstance(grad, torch.Tensor):
        return [Entry(name, "gradient", grad)]
    entries = []
    for suffix, part in parts(grad).items():
        entries.append(Entry(name + suffix, "gradient", snapshot(part)))
    return entries


def run(
    source: str, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> list[Step]:
    """Every step of the program, up to the first that raises."""
    module = load(source, name)
    function = wrap(module["program"])
    steps: list[Step] = []
    kept: tuple[Values, Values] | None = None
    for call, n in enumerate(module["SIZES"]):
        try:
            arguments, extra = kept or module["inputs"](n)
        except Exception as error:  # noqa: BLE001 - a program made smaller may lack what its inputs need
            return [*steps, Step(f"call {call} inputs", error=error)]
        if module["REUSE"]:
            kept = arguments, extra
        if not run_call(module, function, f"call {call}", arguments, extra, steps):
            break
    return steps


def run_call(
    module: Values,
    function: Callable[..., Any],
    label: str,
    arguments: Values,
    extra: Values,
    steps: list[Step],
) -> bool:
    """Forward, what follows, and the state at the end; False when a step raised."""
    known = [*arguments.items(), *extra.items()]
    versions = {
        name: value._version
        for name, value in known
        if isinstance(value, torch.Tensor) and not value.is_inference()
    }
    torch.manual_seed(0)
    try:
        with grad_mode(module["MODE"]):
            out = function(*arguments.values())
    except Exception as error:  # noqa: BLE001 - which error is what is compared
        steps.append(Step(f"{label} forward", error=error))
        return False
    seen = [*known, *flatten("out", out)]
    steps.append(Step(f"{label} forward", tuple(describe_all(seen, versions))))
    try:
        for index, (name, grads) in enumerate(module["after"](arguments, extra, out)):
            where = f"{label} {name}"
            entries = [
                entry
                for key, grad in flatten(name, grads)
                for entry in describe_gradient(key, grad)
            ]
            steps.append(Step(f"{where} {index}", tuple(entries)))
    except Exception as error:  # noqa: BLE001 - as above
        steps.append(Step(f"{label} after", error=error))
        return False
    steps.append(Step(f"{label} end", tuple(describe_all(seen, versions))))
    return True


# -- comparing -------------------------------------------------------------------------------------


def same(kind: str, expected: object, got: object) -> bool:
    if kind == "gradient" and (expected is None or got is None):
        return is_zero(expected) and is_zero(got)
    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        return close(expected, got)
    if isinstance(expected, float) and isinstance(got, float):
        return abs(expected - got) <= 1e-6 * max(1.0, abs(expected))
    return type(expected) is type(got) and expected == got


def is_zero(grad: object) -> bool:
    return grad is None or (isinstance(grad, torch.Tensor) and not bool(grad.count_nonzero()))


def close(expected: torch.Tensor, got: torch.Tensor) -> bool:
    """Equal within rounding, measured against the largest value: differences cancel."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return False
    if not expected.is_floating_point():
        return torch.equal(expected, got)
    tolerance = 1e-9 if expected.dtype == torch.float64 else 1e-4
    finite = expected[expected.isfinite()].abs()
    scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    return torch.allclose(got, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def show(fact: object) -> str:
    if isinstance(fact, torch.Tensor):
        text = str(fact.tolist()) if fact.numel() <= 8 else f"{fact.flatten()[:6].tolist()}..."
        return f"{tuple(fact.shape)} {text}"
    return repr(fact)


def show_error(error: BaseException | None) -> str:
    if error is None:
        return "no error"
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    text = " ".join(lines[:2])  # a wrapped error's first line only says that it wraps
    return f"{type(error).__name__}: {text[:200]}"


def differences(expected: list[Step], got: list[Step]) -> list[Difference]:
    """What the second run shows otherwise, up to its or the first's first error."""
    found: list[Difference] = []
    for index, want in enumerate(expected):
        have = got[index] if index < len(got) else got[-1]
        if want.error is not None or have.error is not None:
            return found + error_difference(want, have)
        facts = {(entry.where, entry.kind): entry.fact for entry in have.entries}
        for entry in want.entries:
            key = (entry.where, entry.kind)
            if key not in facts:
                found.append(
                    Difference(
                        f"{want.name} {entry.where}", entry.kind, show(entry.fact), "nothing"
                    )
                )
            elif not same(entry.kind, entry.fact, facts[key]):
                kind = (
                    "no_error" if entry.kind == "is_leaf" and entry.fact == RAISES else entry.kind
                )
                found.append(
                    Difference(
                        f"{want.name} {entry.where}", kind, show(entry.fact), show(facts[key])
                    )
                )
    return found


def error_difference(want: Step, have: Step) -> list[Difference]:
    if want.error is None:
        return [Difference(have.name, "error", "no error", show_error(have.error))]
    if have.error is None:
        return [Difference(want.name, "no_error", show_error(want.error), "no error")]
    # Dynamo wraps what a backend raises while it compiles; the user sees the inner type named.
    raised = getattr(have.error, "inner_exception", have.error)
    if type(want.error) is not type(raised):
        return [Difference(want.name, "error_type", show_error(want.error), show_error(have.error))]
    return []


# -- judging ---------------------------------------------------------------------------------------


def compiled(
    backend: str, options: Mapping[str, str] | None = None
) -> Callable[..., Callable[..., Any]]:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        dynamic = function.__globals__["DYNAMIC"]
        made: Callable[..., Any] = torch.compile(
            function, backend=backend, dynamic=dynamic, options=dict(options) if options else None
        )
        return made

    return wrap


def run_compiled(source: str, name: str, backend: str, **options: str) -> tuple[list[Step], int]:
    """The steps through a backend, and how many graphs reached it."""
    torch._dynamo.reset()
    counters.clear()
    steps = run(source, name, compiled(backend, options))
    return steps, counters["stats"]["unique_graphs"]


def fallbacks_of(backend: str) -> tuple[str, ...]:
    """Why graphs fell back since the last call, however they ran instead."""
    if backend != "straightline":
        return ()
    from straightline.report import fallbacks

    reasons = tuple(sorted(fallbacks.counts()))
    fallbacks.clear()
    return reasons


def judge(source: str, name: str, backend: str) -> Verdict:
    """Run one program in eager and through the backend; and on a difference, say whose it is."""
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # a guard error is logged, then raised
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = run(source, name, lambda function: function)
        if len(eager) == 1 and eager[0].error is not None:
            return Verdict("skipped")
        fallbacks_of(backend)
        steps, graphs = run_compiled(source, name, backend)
        fallbacks = fallbacks_of(backend)
        found = differences(eager, steps)
        if fallbacks:
            found.append(Difference("compile", "fallback", "none", ", ".join(fallbacks)))
        if not found:
            return Verdict("ok", graphs=graphs)
        return blame(
            source, name, backend, eager, Verdict("finding", tuple(found), graphs, fallbacks)
        )


def blame(source: str, name: str, backend: str, eager: list[Step], verdict: Verdict) -> Verdict:
    if verdict.kinds() != ("fallback",):
        steps, _ = run_compiled(source, name, "eager")
        if differences(eager, steps):
            return replace(verdict, status="dynamo")
    if backend == "straightline" and any(SAVE_HINT in d.got for d in verdict.differences):
        steps, _ = run_compiled(source, name, backend, double_backward="save")
        if not differences(eager, steps):
            return replace(verdict, status="refused")
    if verdict.kinds() == ("error",) and not eager_differentiates(source, name):
        relabelled = tuple(replace(d, kind="undifferentiable") for d in verdict.differences)
        verdict = replace(verdict, differences=relabelled)
    steps, _ = run_compiled(source, name, "aot_eager")
    stock = {(difference.where, difference.kind) for difference in differences(eager, steps)}
    ours = {(difference.where, difference.kind) for difference in verdict.differences}
    if verdict.kinds() == ("undifferentiable",):
        stock = {(where, "undifferentiable") for where, kind in stock if kind == "error"}
    if ours <= stock and refuses_tangents(source, verdict):
        return replace(verdict, status="refused", aot_eager_too=True)
    untraceable = all(reason.startswith(UNTRACEABLE) for reason in verdict.fallbacks)
    if (
        verdict.kinds() == ("fallback",)
        and untraceable
        and any(kind not in SOFT_KINDS for _, kind in stock)
    ):
        return replace(verdict, status="untraceable", aot_eager_too=True)
    if SOFT_KINDS.issuperset(verdict.kinds()) and ours <= stock:
        return replace(verdict, status="stock", aot_eager_too=True)
    return replace(verdict, aot_eager_too=bool(stock))


def refuses_tangents(source: str, verdict: Verdict) -> bool:
    """Whether all that differs is that a gradient without its subclass's wrapper is refused."""
    return "'unwrapped'" in source and all(
        difference.kind in ("error", "error_type") and difference.got.startswith(WRONG_TANGENT)
        for difference in verdict.differences
    )


def eager_differentiates(source: str, name: str) -> bool:
    """Whether eager can run backward from everything that the first forward left behind."""
    module = load(source, name)
    arguments, extra = module["inputs"](module["SIZES"][0])
    with grad_mode(module["MODE"]):
        out = module["program"](*arguments.values())
    values = [value for _, value in [*flatten("out", out), *arguments.items(), *extra.items()]]
    roots = [value for value in values if isinstance(value, torch.Tensor) and value.requires_grad]
    try:
        torch.autograd.backward([root.sum() for root in roots])
    except RuntimeError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("--backend", default="straightline")
    options = parser.parse_args()
    verdict = judge(options.program.read_text(), options.program.stem, options.backend)
    print(verdict.status, f"({verdict.graphs} graphs)")
    for difference in verdict.differences:
        print(difference)


if __name__ == "__main__":
    main()
