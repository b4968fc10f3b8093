"""The options: one frozen dataclass, from which checks, errors and the docs page follow.

A value is looked up in this order: argument, context manager, environment, default.
"""

import difflib
import os
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from types import MappingProxyType, NoneType
from typing import Any, Literal

from straightline.errors import OptionError

ENVIRONMENT_PREFIX = "STRAIGHTLINE_"


def _option(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class Config:
    """The options of one compilation. Every value is checked, however the object is made."""

    check: bool = _option(
        False,
        "Whether the results of each kernel are compared, at each call, with those of the ATen "
        "operations that it stands for. The first that differs by more than rounding is an error, "
        "which names the kernel, the operation, the line of the model and the largest difference. "
        "For finding out where a wrong number comes from: calls take several times as long.",
    )
    double_backward: Literal["auto", "save"] = _option(
        "auto",
        "Second and higher derivatives through a compiled forward (`create_graph=True`). `auto` "
        "keeps nothing that a first-order backward would not keep, and raises a clear error where "
        "a second derivative needs a value that is gone; `save` keeps those values too, at the "
        "price of memory.",
    )
    dump: str | None = _option(
        None,
        "A folder to write the generated functions to, as files that run by themselves, and the "
        "constants they use beside them. It is made if it does not exist.",
    )
    fallback: Literal["warn", "error"] = _option(
        "warn",
        "What to do where straightline cannot build its own runtime function, and something else "
        "has to run instead: torch's stock `aot_autograd` on a torch that was not tested, and the "
        "captured graph, one operation after the other, where torch's tracing fails or is wrong. "
        "`warn` once per reason, or raise an `error`. What fell back is counted; `straightline "
        "doctor` and `straightline.report.fallbacks.counts()` show it.",
    )

    fusion: Literal["on", "off"] = _option(
        "on",
        "Whether operations are computed together in one kernel. `off` makes a kernel of each, "
        "for looking at one by itself, or for finding out whether fusing is what differs.",
    )
    fusion_limit: int | None = _option(
        None,
        "The number of decisions to inline or to fuse that are taken for a graph; those that come "
        "after are not. Bisecting it finds the one that matters.",
    )

    def __post_init__(self) -> None:
        for name in NAMES:
            _check(name, getattr(self, name), "a field of Config")


NAMES: tuple[str, ...] = tuple(option.name for option in fields(Config))
_TYPES: dict[str, Any] = typing.get_type_hints(Config)
_context: ContextVar[Mapping[str, object]] = ContextVar(
    "straightline options", default=MappingProxyType({})
)


def resolve(options: Mapping[str, object] | None) -> Config:
    """The Config in force for a compilation whose arguments are `options`.

    Raises OptionError for a name that is no option and for a value that its option does not allow.
    """
    values: dict[str, Any] = {
        **_checked(_from_environment(os.environ), "the environment, as {variable}"),
        **_context.get(),
        **_checked(options or {}, "an argument"),
    }
    return Config(**values)


@contextmanager
def options(**values: object) -> Iterator[None]:
    """Set options for everything that is compiled inside the `with` block; blocks nest.

    What counts is the moment of compilation, which is a compiled function's first call, not the
    moment `torch.compile` is called. The setting belongs to the current thread or task.
    """
    token = _context.set({**_context.get(), **_checked(values, "straightline.options")})
    try:
        yield
    finally:
        _context.reset(token)


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that look like options but are none, each with what to say about it."""
    reserved = f"{ENVIRONMENT_PREFIX}TEST_"
    known = [_variable(name) for name in NAMES]
    return {
        variable: _nearest(variable, known)
        for variable in environ
        if variable.startswith(ENVIRONMENT_PREFIX)
        and not variable.startswith(reserved)
        and variable not in known
    }


# torch's modes. They name Inductor's trade-offs; each is taken where it holds here as well, and
# refused where taking it would promise something that does not happen. (value: why it is refused)
_MODES: dict[str, str | None] = {
    "default": None,
    "reduce-overhead": None,  # the aim of every program straightline makes: nothing to switch on
    "max-autotune": "kernels are chosen by a model of the machine, not by trial",
    "max-autotune-no-cudagraphs": "kernels are chosen by a model of the machine, not by trial",
    "lite": "it names a set of Inductor's own settings",
}


def resolve_mode(mode: str | None) -> None:
    """Return if straightline accepts torch's `mode`, else raise an OptionError that says why."""
    accepted = ", ".join(repr(name) for name, refusal in _MODES.items() if refusal is None)
    if mode is None:
        return
    if mode not in _MODES:
        raise OptionError(
            f"unknown mode {mode!r}{_nearest(mode, _MODES)}",
            todo=f"leave `mode` out, or use one of {accepted}; "
            f"straightline's own settings go into `options`: {', '.join(NAMES)}",
        )
    if (refusal := _MODES[mode]) is not None:
        raise OptionError(
            f"straightline does not take mode={mode!r}: {refusal}",
            todo=f"leave `mode` out, or use one of {accepted}",
        )


def options_page() -> str:
    """The page docs/options.md."""
    rows = "\n\n".join(_section(name) for name in NAMES)
    modes = "\n".join(
        f"| `{name}` | {'accepted' if refusal is None else f'refused: {refusal}'} |"
        for name, refusal in _MODES.items()
    )
    return _PAGE.format(rows=rows, modes=modes)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    # An empty variable counts as unset: that is how a shell line usually takes one back.
    found = {name: environ.get(_variable(name)) for name in NAMES}
    return {name: _parsed(name, value) for name, value in found.items() if value}


_SPELLED = {
    **dict.fromkeys(("1", "true", "on", "yes"), True),
    **dict.fromkeys(("0", "false", "off", "no"), False),
}


def _parsed(name: str, text: str) -> Any:
    """A variable's text as a value, where its option takes numbers, or is on or off."""
    if _TYPES[name] is bool:
        return _SPELLED.get(text.lower(), text)
    return int(text) if int in _allowed(name) and text.isdecimal() else text


def _checked(values: Mapping[str, object], origin: str) -> Mapping[str, object]:
    for name, value in values.items():
        if name not in NAMES:
            raise OptionError(
                f"unknown option {name!r}{_nearest(name, NAMES)}",
                todo=f"the options are {', '.join(NAMES)}",
            )
        _check(name, value, origin.format(variable=_variable(name)))
    return values


def _check(name: str, value: object, origin: str) -> None:
    allowed = _allowed(name)
    if not any(_admits(each, value) for each in allowed):
        raise OptionError(
            f"option {name!r} cannot be {value!r} (given as {origin})",
            todo=f"use {_describe(allowed)}",
        )


def _allowed(name: str) -> tuple[object, ...]:
    """The values, or the types of values, that the option's annotation admits."""
    return (True, False) if _TYPES[name] is bool else typing.get_args(_TYPES[name])


def _admits(allowed: object, value: object) -> bool:
    if isinstance(allowed, type):
        return isinstance(value, allowed) and not isinstance(value, bool)
    return type(value) is type(allowed) and value == allowed


def _describe(allowed: tuple[object, ...]) -> str:
    words = {str: "a string", int: "a number", NoneType: "None"}
    return " or ".join(words[a] if isinstance(a, type) else repr(a) for a in allowed)


def _nearest(name: object, known: typing.Iterable[str]) -> str:
    match difflib.get_close_matches(str(name), list(known), n=1):
        case [nearest]:
            return f"; did you mean {nearest!r}?"
        case _:
            return ""


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _section(name: str) -> str:
    option = next(option for option in fields(Config) if option.name == name)
    return (
        f"## `{name}`\n\n{option.metadata['help']}\n\n"
        f"- values: {_describe(_allowed(name))}\n"
        f"- default: `{option.default!r}`\n"
        f"- environment: `{_variable(name)}`{', `1` or `0`' if _TYPES[name] is bool else ''}"
    )


_PAGE = """\
# Options

<!-- Written by `make pages` from src/straightline/config.py; a test holds it current. -->

Options are given in four places. The first that names one decides:

1. an argument: `torch.compile(f, backend="straightline", options={{"fallback": "error"}})` or
   `straightline.compile(f, fallback="error")`;
2. the context manager `straightline.options(fallback="error")`, for what is compiled inside it;
3. the environment: `STRAIGHTLINE_FALLBACK=error`; an empty variable counts as unset;
4. the default.

They are read when a function is compiled, which is at its first call and at each recompilation. A
name that is no option and a value that is not allowed are errors.

{rows}

## torch's `mode`

| mode | |
|---|---|
{modes}
"""
