"""What a record says about one name: its kind, and the parts that must not change unnoticed."""

import dis
import enum
import inspect
import re
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Literal

Kind = Literal["module", "enum", "dataclass", "class", "function", "builtin", "value"]

# "torch._C.f(arg0: torch.Tensor, arg1: list[int])" is all that pybind tells about its functions.
_PYBIND_PARAMETER = re.compile(r"(?<=[(, ])(\w+): ")


@dataclass(frozen=True, slots=True)
class Shape:
    """The recorded form of one name.

    parts: parameters of a function or of a class's constructor ("x", "y=" when it has a default,
    "*args", "**kwargs", and the markers "/" and "*"), fields of a dataclass, members of an enum.
    attributes: what straightline reads from instances of a class, beside its fields.
    """

    kind: Kind
    parts: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()


# One record: module path -> name inside the module ("f", or "C.method") -> its shape.
Record = dict[str, dict[str, Shape]]


def describe(value: object, attributes: Iterable[str] = ()) -> Shape:
    """The shape of `value` as it is now; of `attributes`, those that it still has."""
    kind = kind_of(value)
    if not isinstance(value, type):
        return Shape(kind, _parts(kind, value))
    wanted = tuple(attributes)
    present = instance_attributes(value) if wanted else frozenset()
    return Shape(kind, _parts(kind, value), tuple(name for name in wanted if name in present))


def kind_of(value: object) -> Kind:
    match value:
        case types.ModuleType():
            return "module"
        case enum.EnumType():
            return "enum"
        case type():
            return "dataclass" if is_dataclass(value) else "class"
        case types.FunctionType() | types.MethodType():
            return "function"
        case _:
            return "builtin" if callable(value) else "value"


def instance_attributes(cls: type) -> frozenset[str]:
    """Names an instance has without being asked: what the class defines, what its set-up stores."""
    found = {name for base in cls.__mro__ for name in vars(base)}
    for setup in (getattr(cls, "__init__", None), getattr(cls, "__post_init__", None)):
        if isinstance(setup, types.FunctionType):
            found |= _stored(setup)
    return frozenset(found)


def _stored(function: types.FunctionType) -> set[str]:
    instructions = dis.get_instructions(function)
    return {str(i.argval) for i in instructions if i.opname == "STORE_ATTR"}


def _parts(kind: Kind, value: object) -> tuple[str, ...]:
    match kind, value:
        case "enum", enum.EnumType():
            return tuple(value.__members__)
        case "dataclass", type():
            return tuple(field.name for field in fields(value))
        case "class", type():
            # A constructor that is not written in Python tells nothing.
            written = isinstance(value.__init__, types.FunctionType)  # type: ignore[misc]
            return _parameters(value) if written else ()
        case "function", _ if callable(value):
            return _parameters(value)
        case "builtin", _:
            return _documented_parameters(value)
        case _:
            return ()


def _parameters(function: Callable[..., object]) -> tuple[str, ...]:
    parameters = tuple(inspect.signature(function).parameters.values())
    kinds = [parameter.kind for parameter in parameters]
    parts = [_written(parameter) for parameter in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        parts.insert(kinds.count(inspect.Parameter.POSITIONAL_ONLY), "/")
    return tuple(parts)


def _written(parameter: inspect.Parameter) -> str:
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL:
            return f"*{parameter.name}"
        case inspect.Parameter.VAR_KEYWORD:
            return f"**{parameter.name}"
        case _ if parameter.default is not inspect.Parameter.empty:
            return f"{parameter.name}="
        case _:
            return parameter.name


def _documented_parameters(builtin: object) -> tuple[str, ...]:
    first_line, _, _ = (getattr(builtin, "__doc__", None) or "").partition("\n")
    return tuple(_PYBIND_PARAMETER.findall(first_line))
