"""What is in force, what is degraded and why, and what to do about it."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from straightline import __version__, config
from straightline.errors import OptionError
from straightline.report import fallbacks

OURS = "straight-line"
TORCHS = fallbacks.STOCK


@dataclass(frozen=True)
class Finding:
    """One thing that is degraded."""

    what: str
    why: str
    todo: str


@dataclass(frozen=True)
class Diagnosis:
    """The doctor's report; `str()` of it is for people, `json()` for programs."""

    python: str
    torch: str
    straightline: str
    runtime_layer: str
    options: dict[str, object]
    fallbacks: dict[str, int]
    findings: tuple[Finding, ...]

    def json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def doctor() -> Diagnosis:
    """Examine this process and its environment. Changes nothing and never raises."""
    from straightline.torch_private import gate

    record = gate.check()
    findings = [*_gate(record.ok, record.torch_version, record.differences)]
    options, broken = _options()
    findings += [*broken, *_environment(), *_entry_point(), *_fallbacks()]
    return Diagnosis(
        python=platform.python_version(),
        torch=record.torch_version,
        straightline=__version__,
        runtime_layer=OURS if record.ok else TORCHS,
        options=options,
        fallbacks=fallbacks.counts(),
        findings=tuple(findings),
    )


def _gate(ok: bool, torch_version: str, differences: tuple[str, ...]) -> Iterator[Finding]:
    if not ok:
        yield Finding(
            what=f"the runtime layer is {TORCHS}, not ours",
            why=f"torch {torch_version} is not as tested: {'; '.join(differences)}",
            todo="install a torch that this straightline was tested with, "
            "or a straightline that was tested with this torch",
        )


def _options() -> tuple[dict[str, object], list[Finding]]:
    try:
        return asdict(config.resolve(None)), []
    except OptionError as error:
        finding = Finding(
            what="every compilation fails",
            why=error.what,
            todo=error.todo or "",
        )
        return {}, [finding]


def _environment() -> Iterator[Finding]:
    for variable, hint in config.unknown_variables(os.environ).items():
        yield Finding(
            what=f"the environment variable {variable} has no effect",
            why=f"it names no option{hint}",
            todo="correct or remove it; `straightline options` lists them all",
        )
    for variable in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"):
        if os.environ.get(variable) == "1":
            yield Finding(
                what="nothing is compiled: functions run in eager mode",
                why=f"the environment variable {variable} switches torch.compile off",
                todo=f"unset {variable}",
            )


def _entry_point() -> Iterator[Finding]:
    named = importlib.metadata.entry_points(group="torch_dynamo_backends", name="straightline")
    if not named:
        yield Finding(
            what='torch.compile(backend="straightline") does not find us',
            why="the package is importable but not installed, so its entry point is not known",
            todo="install it (`pip install straightline`, or `pip install -e .` in a checkout), "
            "or use straightline.compile",
        )


def _fallbacks() -> Iterator[Finding]:
    for (reason, to), count in fallbacks.counts_by_way().items():
        yield Finding(
            what=f"{count} graph{'s' if count > 1 else ''} of this process fell back to {to}",
            why=reason,
            todo='the warning says where; option fallback="error" makes it an error there',
        )


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"straightline   {diagnosis.straightline}"
    yield f"torch          {diagnosis.torch}"
    yield f"python         {diagnosis.python}"
    yield f"runtime layer  {diagnosis.runtime_layer}"
    for name, value in diagnosis.options.items():
        yield f"option         {name} = {value!r}"
    yield f"fall-backs     {sum(diagnosis.fallbacks.values())} in this process"
    yield ""
    if not diagnosis.findings:
        yield "Nothing is degraded."
    for number, finding in enumerate(diagnosis.findings, 1):
        yield f"{number}. {finding.what}"
        yield f"   why:        {finding.why}"
        yield f"   what to do: {finding.todo}"
