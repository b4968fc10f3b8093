"""The option `dump`: generated functions as files that run by themselves.

A file names what its functions use: operations as `torch.ops.aten.mul.Tensor`, functions and types
by an import. What has no name but can be pickled is saved beside the file. `runtime.standalone` has
what such a file needs to run.
"""

from __future__ import annotations

import ast
import builtins
import collections
import functools
import io
import itertools
import pickle
import symtable
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import fx

from straightline.capture.origins import identifier
from straightline.runtime import body, higher
from straightline.runtime.programs import Generated, Lazy
from straightline.runtime.rng import GeneratorStates
from straightline.runtime.writer import Writer, literal, tuple_of
from straightline.torch_private import operations, symbols

_CONSTANTS = "_constants"
_taken: collections.defaultdict[tuple[str, str], Callable[[], int]] = collections.defaultdict(
    lambda: functools.partial(next, itertools.count(1))
)


@dataclass
class _Scope:
    """The names of one file under `straightline`: imports to write and objects to save. `kernel`
    says in Python what makes a kernel.
    """

    imports: set[str] = field(default_factory=set)
    saved: dict[str, object] = field(default_factory=dict)
    kernel: Callable[[object], str | None] = lambda _: None


@dataclass(frozen=True)
class Examples:
    """Arguments like those that were compiled for, as source, and the modes at that time.

    `shared` are statements that come first. `saved` are those that only their values describe.
    """

    arguments: tuple[str, ...]
    shared: tuple[str, ...]
    imports: frozenset[str]
    saved: Mapping[str, object]
    grad: bool
    inference: bool


# -- What the program was called with ------------------------------------------------------------


def examples(values: Sequence[Any]) -> Examples:
    """Describe the arguments of a call; a tensor is kept only where nothing else describes it."""
    scope = _Scope()
    memories, shared = _memories(values)
    arguments = []
    for number, value in enumerate(values):
        memory = memories.get(number)
        if memory is not None:
            arguments.append(_view_of(memory, value))
        else:
            arguments.append(_example(value, f"argument_{number}", scope))
    return Examples(
        tuple(arguments),
        tuple(shared),
        frozenset(scope.imports),
        scope.saved,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
    )


def _memories(values: Sequence[Any]) -> tuple[dict[int, str], list[str]]:
    """The name of the memory that an argument shares with others, by its number; how to make it."""
    groups: dict[tuple[int, torch.dtype], list[int]] = {}
    for number, value in enumerate(values):
        if _is_plain(value) and value.untyped_storage().data_ptr():
            key = value.untyped_storage().data_ptr(), value.dtype
            groups.setdefault(key, []).append(number)
    names: dict[int, str] = {}
    statements: list[str] = []
    for (_, dtype), members in groups.items():
        if len(members) < 2:
            continue
        name = f"memory_{len(statements)}"
        names.update(dict.fromkeys(members, name))
        first = values[members[0]]
        whole = torch.empty(0, dtype=dtype).set_(first.untyped_storage())
        made_by_operations = any(values[m].grad_fn is not None for m in members)
        text = _tensor(whole, requires_grad=made_by_operations, leaf=not made_by_operations)
        statements.append(f"{name} = {text}")
    return names, statements


def _is_plain(value: Any) -> bool:
    plain = type(value) in (torch.Tensor, torch.nn.Parameter)
    return plain and value.layout is torch.strided and value.device.type != "meta"


def _view_of(memory: str, value: torch.Tensor) -> str:
    geometry = tuple(value.shape), value.stride(), value.storage_offset()
    view = f"{memory}.as_strided({', '.join(map(repr, geometry))})"
    if value.grad_fn is not None:
        return view
    return f"{view}.detach(){'.requires_grad_()' if value.requires_grad else ''}"


def _example(value: Any, name: str, scope: _Scope) -> str:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return repr(symbols.hint(value))
    if _is_plain(value):
        return _tensor(value, requires_grad=value.requires_grad, leaf=value.is_leaf)
    wrapped = _wrapped(value, name, scope)
    if wrapped is None or not value.requires_grad:
        return wrapped or _object(value, name, scope)
    return f"standalone.like_argument({wrapped}{'' if value.is_leaf else ', leaf=False'})"


def _wrapped(value: Any, name: str, scope: _Scope) -> str | None:
    """A wrapper subclass made of its members, where its size is made of plain numbers."""
    if not hasattr(value, "__tensor_flatten__"):
        return None
    size, stride = tuple(value.shape), value.stride()
    if not all(type(n) is int for n in (*size, *stride)):
        return None
    keys, context = value.__tensor_flatten__()
    members = [f"{k!r}: {_example(getattr(value, k), f'{name}_{k}', scope)}" for k in keys]
    made = f"{_object(type(value), type(value).__name__, scope)}.__tensor_unflatten__"
    parts = f"{{{', '.join(members)}}}, {_object(context, f'{name}_context', scope)}"
    return f"{made}({parts}, {size!r}, {stride!r})"


def _tensor(value: torch.Tensor, *, requires_grad: bool, leaf: bool) -> str:
    parts = [repr(tuple(value.shape))]
    if value.dtype is not torch.float32:
        parts.append(str(value.dtype))
    contiguous = torch.empty(value.shape, device="meta").stride()
    if value.stride() != contiguous:
        parts.append(f"stride={value.stride()!r}")
    counts = not value.dtype.is_floating_point and not value.dtype.is_complex
    if counts and value.dtype is not torch.bool and value.numel():
        known = value.detach().to(torch.int64)
        parts += [f"low={int(known.min())}", f"high={int(known.max())}"]
    if requires_grad:
        parts.append("requires_grad=True")
        parts += [] if leaf else ["leaf=False"]
    if value.device.type != "cpu":
        parts.append(f"device={str(value.device)!r}")
    return f"standalone.tensor({', '.join(parts)})"


# -- Writing a file ------------------------------------------------------------------------------


def stem(folder: str, title: str) -> str:
    """The name that one program's files begin with: no other program of this process has it."""
    count = _taken[folder, title]()
    return title if count == 1 else f"{title}_{count}"


def write(
    generated: Generated,
    folder: str,
    program: str,
    example: Examples,
    kernel: Callable[[object], str | None] = lambda _: None,
) -> Path:
    """Write one generated file, and what it needs, to `folder`; returns its path.

    `kernel` says in Python what makes an object, if that is a kernel.
    """
    path = Path(folder) / _file(program, generated.direction)
    path.parent.mkdir(parents=True, exist_ok=True)
    scope = _Scope({"from straightline.runtime import standalone"}, kernel=kernel)
    order, part = _place(generated.direction)
    bindings = list(_bindings(generated.names, generated.sources, program, order, scope))
    end = list(_late(generated, program, order))
    if order > 1 or part == "backward":
        first = f"{program}_forward.py"
        end += [
            "",
            "",
            'if __name__ == "__main__":',
            f"    standalone.run(__file__, {first!r}, {order})",
        ]
    else:
        entry, names = _functions(generated.text)[-1]
        end += _example_function(example, names if len(names) > 1 else (), scope)
        end += _main(entry, example, backward=part == "forward")
    if scope.saved:
        bindings.insert(0, f"{_CONSTANTS} = standalone.constants(__file__)")
        torch.save(scope.saved, path.with_suffix(".pt"))
    text = [
        _docstring(generated, path, example),
        "# ruff: noqa",
        "",
        *sorted({"import torch", *scope.imports}, key=_import_order),
        "",
        *bindings,
        "",
        "",
        generated.text.rstrip("\n"),
        *end,
    ]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


def _import_order(line: str) -> tuple[bool, str]:
    return "straightline" in line, line.replace("from ", "").replace("import ", "")


def _docstring(generated: Generated, path: Path, example: Examples) -> str:
    mode = ""
    if generated.direction == "inference" and not example.grad:
        what = "torch.inference_mode()" if example.inference else "torch.no_grad()"
        mode = f" It was compiled under {what}: call it so."
    name = generated.text.splitlines()[0].removeprefix("# ")
    return (
        f'"""{name}\n\nGenerated code, as it ran.{mode}\n`python {path.name}` runs it on arguments '
        'like those that it was compiled for.\n"""'
    )


def _functions(text: str) -> list[tuple[str, list[str]]]:
    """(name, names of its arguments) of each function."""
    return [
        (node.name, [argument.arg for argument in node.args.args])
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    ]


def _place(direction: str) -> tuple[int, str]:
    """(order, part) of a file: ("second order backward" is 2, "backward")."""
    if direction == "inference":
        return 1, direction
    for order in itertools.count(1):
        for part in ("forward", "backward"):
            title = higher.title(order, part)
            if direction in (title, higher.under_autocast(title)):
                return order, part
    raise AssertionError("unreachable")


def _file(program: str, direction: str) -> str:
    return f"{program}_{identifier(direction)}.py"


def _late(generated: Generated, program: str, order: int) -> Iterator[str]:
    """What can be bound only after the functions: the way into the autograd function."""
    names = [name for name, _ in _functions(generated.text)]
    yield from ("", "", f"_entry = {names[-1]}")
    for name in unbound(generated):
        other = _file(program, higher.title(order, "backward"))
        yield f"_backward = standalone.Sibling(__file__, {other!r})"
        yield f"{name} = standalone.apply({names[0]}, _backward)"


def _example_function(example: Examples, names: Sequence[str], scope: _Scope) -> Iterator[str]:
    scope.imports |= example.imports
    saved = {f"example_{name}": value for name, value in example.saved.items()}
    scope.saved.update(saved)
    yield from (
        "",
        "",
        "def _example_arguments():",
        '    """Arguments like those it was compiled for."""',
    )
    yield from (f"    {statement}" for statement in example.shared)
    yield "    return ("
    for argument, name in itertools.zip_longest(example.arguments, names):
        yield f"        {argument},{f'  # {name}' if name else ''}"
    yield "    )"


def _main(entry: str, example: Examples, *, backward: bool) -> Iterator[str]:
    parts = [entry, "_example_arguments"]
    parts += ["backward=_backward"] if backward else []
    parts += [] if example.grad else ["grad=False"]
    parts += ["inference=True"] if example.inference else []
    yield from ("", "", 'if __name__ == "__main__":', f"    standalone.main({', '.join(parts)})")


def unbound(generated: Generated) -> list[str]:
    """Names that the functions use and that nothing binds when they are generated."""
    used: dict[str, None] = {}
    table = symtable.symtable(generated.text, generated.file, "exec")
    for function in table.get_children():
        assert isinstance(function, symtable.Function)
        used.update(dict.fromkeys(sorted(function.get_globals())))
    known = {*generated.names, *dict(_functions(generated.text)), *dir(builtins)}
    return [name for name in used if name not in known]


def _bindings(
    names: Mapping[str, object],
    sources: Mapping[str, str],
    program: str,
    order: int,
    scope: _Scope,
) -> Iterator[str]:
    """Lines for the objects that functions use, by the names that they have for them."""
    for name, value in names.items():
        match value:
            case _ if name in sources:
                yield f"{name} = {sources[name]}"
            case _ if callable(value) and (source := scope.kernel(value)) is not None:
                function = source.partition("(")[0]
                scope.imports.add(f"from straightline.kernels.standalone import {function}")
                yield f"{name} = {source}"
            case GeneratorStates():
                made = f"{program!r}, {value.count}, {str(value.device)!r}"
                yield f"{name} = standalone.generator_states({made})"
            case Lazy():
                other = _file(program, value.direction)
                yield f"{name} = standalone.Sibling(__file__, {other!r})"
            case ModuleType():
                scope.imports.add(f"import {value.__name__} as {name}")
            case fx.GraphModule():
                yield from _graph(name, value, names, program, order, scope)
            case _:
                source = _object(value, name, scope)
                if source != name:
                    yield f"{name} = {source}"


def _graph(
    name: str,
    gm: fx.GraphModule,
    names: Mapping[str, object],
    program: str,
    order: int,
    scope: _Scope,
) -> Iterator[str]:
    """A graph that an operation takes as an argument, as a function; what else it uses first."""
    writer = Writer(globals=dict(names))
    for known in names:
        writer.reserve(known)
    inputs = [writer.name(identifier(node.name)) for node in body.placeholders(gm)]
    (output,) = gm.graph.find_nodes(op="output")
    results = range(len(output.args[0]))
    with writer.block(f"def {name}({', '.join(inputs)}):"):
        values = body.emit(writer, gm, inputs, needed=results, own=set(inputs))
        writer.line(f"return {tuple_of(values)}")
    new = {key: value for key, value in writer.globals.items() if key not in names}
    yield from _bindings(new, writer.sources, program, order, scope)
    yield from ("", "", writer.text, "")


def _object(value: object, name: str, scope: _Scope) -> str:
    """An expression for `value`; imports that it needs are noted, and what has to be saved."""
    written = literal(value) or _literal_of_torch(value)
    if written is not None:
        return written
    found = _importable(value, name)
    if found is not None:
        module, qualified = found
        if module == "__main__":
            return _of_script(qualified)
        if module == "torch":
            return f"torch.{qualified}"
        first, _, rest = qualified.partition(".")
        if first == name or rest:
            scope.imports.add(f"from {module} import {first}")
            return qualified
        scope.imports.add(f"from {module} import {first} as {name}")
        return name
    if _can_be_saved(value):
        scope.saved[name] = value
        return f"{_CONSTANTS}[{name!r}]"
    return f"standalone.Missing({name!r}, {_kind(value)!r})"


def _kind(value: object) -> str:
    what = getattr(value, "__qualname__", None) if callable(value) else None
    return f"the function {what}" if what else f"a {type(value).__qualname__}"


def _literal_of_torch(value: object) -> str | None:
    match value:
        case torch.dtype() | torch.layout() | torch.memory_format():
            return str(value)
        case torch.device():
            return f"torch.device({str(value)!r})"
        case torch.Size():
            return f"torch.Size({list(value)!r})"
        case float() if type(value) is float:
            return f"float({str(value)!r})"
        case complex() if type(value) is complex:
            return f"complex({str(value)!r})"
        case _:
            return operations.path(value)


def _importable(value: object, wanted: str) -> tuple[str, str] | None:
    """(module, name) under which `value` is found again: torch's public name, ours, its own."""
    if not callable(value):
        return None
    called = str(getattr(value, "__name__", ""))
    if not called.startswith("_") and getattr(torch, called, None) is value:
        return "torch", called
    for module in sorted(m for m in sys.modules if m.startswith("straightline.")):
        held = vars(sys.modules[module]).items()
        names = [name for name, other in held if other is value and not name.startswith("_")]
        if names:
            return module, wanted if wanted in names else names[0]
    home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(home, str) or not isinstance(own, str) or home not in sys.modules:
        return None
    found: object = sys.modules[home]
    for part in own.split("."):
        found = getattr(found, part, None)
    return (home, own) if found is value else None


def _of_script(qualified: str) -> str:
    """An object of the script that was run; it stays where it is and is imported from there."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None:
        return f"standalone.Missing({qualified!r}, 'defined at a prompt')"
    return f"standalone.from_file({str(Path(path).resolve())!r}, {qualified!r})"


def _can_be_saved(value: object) -> bool:
    try:
        torch.save(value, io.BytesIO())
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError, NotImplementedError):
        return False
    return True
