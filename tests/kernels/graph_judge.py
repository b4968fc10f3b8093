"""Whether a random function of tensors gives through the backend what eager gives.

A float may be as far from the same function in double precision as a few of eager's own errors.
What a rounding more or less turns over (a comparison, an `argmax`) is not ours to judge: eager is
run on inputs that differ by a rounding too, and where that moves its result as far, the program is
`unstable`.
"""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from graphs import namespace

from straightline.report import fallbacks

Backend = str | Callable[..., Any]

MULTIPLE, ULPS = 6.0, 24.0
TRIALS = 4


@dataclass(frozen=True)
class Verdict:
    """`status` is `ok`, `wrong`, `error`, or what is no finding: `unstable`, `refused` by
    eager, `stock`, which aot_eager has too, and `fallback`, right but not by kernels.
    """

    status: str
    detail: str = ""

    @property
    def found(self) -> bool:
        return self.status in ("wrong", "error")


@dataclass(frozen=True)
class Run:
    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]


def judge(source: str, backend: Backend = "straightline") -> Verdict:
    """What holds of the backend's results; a finding only where torch's aot_eager does better."""
    fallbacks.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fallbacks.StraightlineFallbackWarning)
        verdict = _judged(source, backend)
    reasons = sorted(fallbacks.counts())
    fallbacks.clear()
    if verdict.status == "ok" and reasons:
        return Verdict("fallback", "; ".join(reasons))
    if verdict.found and _judged(source, "aot_eager").status != "ok":
        return Verdict("stock", verdict.detail)
    return verdict


def _judged(source: str, backend: Backend) -> Verdict:
    names = namespace(source)
    torch._dynamo.reset()
    compiled = torch.compile(names["program"], backend=backend, dynamic=names["DYNAMIC"])
    for sizes in names["SIZES"]:
        given = names["inputs"](*sizes)
        try:
            eager = run(names["program"], given, names["BACKWARD"])
        except (RuntimeError, IndexError, ValueError) as error:
            return Verdict("refused", str(error))
        try:
            ours = run(compiled, given, names["BACKWARD"])
        except Exception as error:  # noqa: BLE001 - any failure is a finding
            return Verdict("error", described(error))
        verdict = compare(source, given, eager, ours, names["BACKWARD"])
        if verdict.status != "ok":
            return Verdict(verdict.status, f"sizes {sizes}: {verdict.detail}")
    return Verdict("ok")


def described(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "straightline" in f.filename]
    where = f" at {frames[-1].filename.rsplit('/', 2)[-1]}:{frames[-1].name}" if frames else ""
    first = " ".join(line for line in str(error).splitlines()[:4] if line)
    return f"{type(error).__name__}{where}: {first}"[:600]


def run(function: Callable[..., Any], given: Sequence[torch.Tensor], backward: bool) -> Run:
    leaves = [value.detach() for value in given]
    if backward:
        leaves = [v.requires_grad_(v.is_floating_point()) for v in leaves]
    outputs = list(function(*leaves))
    roots = [value for value in outputs if value.requires_grad]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    gradients: list[torch.Tensor | None] = []
    if roots and wanted:
        generator = torch.Generator().manual_seed(1)
        tangents = [
            torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.dtype)
            for r in roots
        ]
        gradients = list(torch.autograd.grad(roots, wanted, tangents, allow_unused=True))
    return Run([value.detach() for value in outputs], gradients)


def wide(source: str, given: Sequence[torch.Tensor], backward: bool) -> Run:
    """The same in double precision."""
    names = namespace(source)
    names |= dict.fromkeys(("F32", "BF16", "F16"), torch.float64)
    doubles = [v.double() if v.is_floating_point() else v for v in given]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return run(names["program"], doubles, backward)
    finally:
        torch.set_default_dtype(before)


def moved(given: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """The inputs, off by a rounding or so."""
    generator = torch.Generator().manual_seed(seed)

    def one(value: torch.Tensor) -> torch.Tensor:
        if not value.is_floating_point():
            return value
        step = 2 * torch.finfo(value.dtype).eps
        noise = 1 + step * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        return torch.empty_like(value).copy_(value.double() * noise)

    return [one(value) for value in given]


def compare(
    source: str, given: Sequence[torch.Tensor], eager: Run, ours: Run, backward: bool
) -> Verdict:
    if len(eager.outputs) != len(ours.outputs) or len(eager.gradients) != len(ours.gradients):
        return Verdict("wrong", "another number of results")
    for name, want, have in pairs(eager, ours):
        shown = form(want, have, strides=name.startswith("output"))
        if shown:
            return Verdict("wrong", f"{name}: {shown}")
    if all(equal(want, have) for _, want, have in pairs(eager, ours)):
        return Verdict("ok")
    exact = _tried(lambda: wide(source, given, backward))
    differences = [
        (name, difference(want, have, truth))
        for (name, want, have), truth in zip(pairs(eager, ours), _results(exact), strict=False)
    ]
    differences = [(name, text) for name, text in differences if text]
    if not differences:
        return Verdict("ok")
    name, text = differences[0]
    if exact is None or sensitive(source, given, eager, ours, backward):
        return Verdict("unstable", f"{name}: {text}")
    return Verdict("wrong", f"{name}: {text}")


def _results(found: Run | None) -> Iterator[torch.Tensor | None]:
    if found is not None:
        yield from found.outputs
        yield from found.gradients
    while True:
        yield None


def _tried(make: Callable[[], Run]) -> Run | None:
    try:
        return make()
    except (RuntimeError, IndexError, ValueError):
        return None


def pairs(eager: Run, ours: Run) -> Iterator[tuple[str, torch.Tensor | None, torch.Tensor | None]]:
    for at, (want, have) in enumerate(zip(eager.outputs, ours.outputs, strict=True)):
        yield f"output {at}", want, have
    for at, (first, second) in enumerate(zip(eager.gradients, ours.gradients, strict=True)):
        yield f"gradient {at}", first, second


def form(want: torch.Tensor | None, have: torch.Tensor | None, strides: bool) -> str:
    if want is None or have is None:
        some = want if want is not None else have
        zero = some is None or not some.count_nonzero()
        return "" if zero else f"{_brief(have)} for {_brief(want)}"
    if want.dtype != have.dtype or want.shape != have.shape:
        return f"{_brief(have)} for {_brief(want)}"
    if strides and want.numel() and _strides(want) != _strides(have):
        return f"strides {have.stride()} for {want.stride()} of shape {tuple(want.shape)}"
    return ""


def _strides(value: torch.Tensor) -> list[int]:
    return [s for s, n in zip(value.stride(), value.shape, strict=True) if n > 1]


def _brief(value: torch.Tensor | None) -> str:
    return "None" if value is None else f"{value.dtype} {tuple(value.shape)}"


def equal(want: torch.Tensor | None, have: torch.Tensor | None) -> bool:
    if want is None or have is None:
        return True
    return bool(torch.allclose(want, have, 0, 0, equal_nan=True))


def difference(
    want: torch.Tensor | None, have: torch.Tensor | None, truth: torch.Tensor | None
) -> str:
    if want is None or have is None or equal(want, have):
        return ""
    if not want.is_floating_point() or truth is None or truth.shape != want.shape:
        return _shown(want, have, want != have)
    expected, got, true = want.double(), have.double(), truth.double()
    odd = ~(expected.isfinite() & got.isfinite() & true.isfinite())
    with_infinities = torch.where(odd, ~torch.isclose(expected, got, 0, 0, equal_nan=True), odd)
    error = torch.where(odd, 0.0, (expected - true).abs())
    unit = torch.finfo(want.dtype).eps
    # The error of one element is now and then nothing: that of its neighbours says more.
    scale = torch.where(odd, 0.0, true.abs())
    relative = (error / scale.clamp(min=1e-30)).quantile(0.9) if error.numel() < 1e6 else 0.0
    allowed = MULTIPLE * torch.maximum(error, error.mean()) + scale * (ULPS * unit + relative)
    # Values are of order one: what is left of them where they cancel is no more right in eager.
    allowed += ULPS * unit
    wrong = with_infinities | (~odd & ((got - true).abs() > allowed))
    return _shown(want, have, wrong)


def _shown(want: torch.Tensor, have: torch.Tensor, wrong: torch.Tensor) -> str:
    count = int(wrong.sum())
    if not count:
        return ""
    at = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{have[at].item()!r} for {want[at].item()!r} at {at}, {count} of {want.numel()},"
        f" {_brief(want)}"
    )


def sensitive(
    source: str, given: Sequence[torch.Tensor], eager: Run, ours: Run, backward: bool
) -> bool:
    """Whether eager's own results move as far when the inputs move by a rounding."""
    names = namespace(source)
    reach: list[torch.Tensor | None] = [None] * (len(eager.outputs) + len(eager.gradients))
    for trial in range(TRIALS):
        other = _tried(functools.partial(run, names["program"], moved(given, trial), backward))
        if other is None:
            return True
        for at, (_, want, have) in enumerate(pairs(eager, other)):
            if want is None or have is None or want.shape != have.shape:
                continue
            step = distance(want, have)
            known = reach[at]
            reach[at] = step if known is None else torch.maximum(known, step)
    for at, (_, want, have) in enumerate(pairs(eager, ours)):
        if want is None or have is None or equal(want, have):
            continue
        far = reach[at]
        unit = torch.finfo(want.dtype).eps if want.is_floating_point() else 0.0
        allowed = 0.0 if far is None else far.max().item() * MULTIPLE
        near = want.double().abs().nan_to_num(0.0, 0.0, 0.0) * unit * ULPS
        if bool((distance(want, have) > allowed + near).any()):
            return False
    return True


def distance(want: torch.Tensor, have: torch.Tensor) -> torch.Tensor:
    """How far apart; infinite where only one is finite."""
    first, second = want.double(), have.double()
    same = torch.isclose(first, second, 0, 0, equal_nan=True)
    return torch.where(same, 0.0, (first - second).abs().nan_to_num(float("inf")))
