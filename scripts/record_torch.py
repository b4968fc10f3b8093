"""Write the record of the installed torch: every private torch name that straightline uses.

    python scripts/record_torch.py            write records/v<major>_<minor>.py
    python scripts/record_torch.py --check    exit 1, saying why, if that file is not as it would be

The names are those of the sources in `src/straightline/torch_private`, read and not listed by hand:
imports, attribute chains on them, and settings patched in a config module. Dataclasses and enums
that those names hand back are followed, because a field that torch adds to one of them is a duty
that straightline has not heard of.
"""

import argparse
import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import torch

from straightline.torch_private.records.shape import (
    Record,
    Shape,
    describe,
    instance_attributes,
    kind_of,
)

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "straightline.torch_private"
SOURCES = ROOT / "src" / "straightline" / "torch_private"
RECORDS = SOURCES / "records"


# -- Which names ---------------------------------------------------------------------------------


def used_names(sources: Path) -> tuple[set[str], set[str]]:
    """Dotted private torch names that the files under `sources` use, and all attributes read."""
    trees = {_module_name(path, sources): ast.parse(path.read_text()) for path in _files(sources)}
    bindings = {module: _bindings(module, tree) for module, tree in trees.items()}
    # A name bound in one of the files and imported from it by another is still torch's name.
    exports = {
        f"{m}.{local}": path for m, bound in bindings.items() for local, path in bound.items()
    }
    names: set[str] = set()
    attributes: set[str] = set()
    for module, tree in trees.items():
        names |= {_follow(path, exports) for path in bindings[module].values()}
        names |= {_follow(path, exports) for path in _imported_modules(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                attributes.add(node.attr)
            for path in _paths_in(node, bindings[module]):
                names.add(_follow(path, exports))
    return {name for name in map(_public_tail_cut, names) if is_private(name)}, attributes


def is_private(path: str) -> bool:
    """Is this torch's, and below something with a leading underscore?

    Operators are the vocabulary of every graph, `torch.ops.aten._to_copy` too.
    """
    first, *rest = path.split(".")
    if rest[:1] == ["ops"] and len(rest) > 1 and not rest[1].startswith("_"):
        return False
    return first == "torch" and any(x.startswith("_") and not _is_dunder(x) for x in rest)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _public_tail_cut(path: str) -> str:
    """`torch._C.f.__name__` is about Python's side of `torch._C.f`."""
    parts = path.split(".")
    cut = next((i for i, part in enumerate(parts) if _is_dunder(part)), len(parts))
    return ".".join(parts[:cut])


def _files(sources: Path) -> Iterator[Path]:
    return (path for path in sorted(sources.rglob("*.py")) if path.parent.name != "records")


def _module_name(path: Path, sources: Path) -> str:
    parts = [PACKAGE, *path.relative_to(sources).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _bindings(module: str, tree: ast.Module) -> dict[str, str]:
    """Local name -> dotted path, for imports and for plain assignments of dotted paths."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    root = alias.name.partition(".")[0]
                    bound[alias.asname or root] = alias.name if alias.asname else root
            case ast.ImportFrom(names=aliases):
                source = _absolute(node, module)
                for alias in aliases:
                    bound[alias.asname or alias.name] = f"{source}.{alias.name}"
    for node in ast.walk(tree):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=local)], value=value)
                | ast.AnnAssign(target=ast.Name(id=local), value=ast.Attribute() as value)
            ) if local not in bound and (path := _dotted(value, bound)):
                bound[local] = path
    return bound


def _absolute(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    parents = module.split(".") if module == PACKAGE else module.split(".")[:-1]
    base = parents[: len(parents) - (node.level - 1)]
    return ".".join([*base, *([node.module] if node.module else [])])


def _imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _paths_in(node: ast.AST, bound: dict[str, str]) -> Iterator[str]:
    match node:
        case ast.Attribute():
            if path := _dotted(node, bound):
                yield path
        # config.patch(cse=False), config.patch("cse", False), config.patch({"cse": False})
        case ast.Call(func=ast.Attribute(value=config, attr="patch"), args=args, keywords=keywords):
            if path := _dotted(config, bound):
                yield from (f"{path}.{keyword.arg}" for keyword in keywords if keyword.arg)
                yield from (f"{path}.{setting}" for setting in _literal_settings(args))
        case ast.Call(
            func=ast.Name(id="getattr" | "hasattr"),
            args=[owner, ast.Constant(value=str(name)), *_],
        ):
            if path := _dotted(owner, bound):
                yield f"{path}.{name}"


def _literal_settings(args: list[ast.expr]) -> Iterator[str]:
    match args:
        case [ast.Dict(keys=keys)]:
            yield from (str(key.value) for key in keys if isinstance(key, ast.Constant))
        case [ast.Constant(value=str(setting)), _]:
            yield setting


def _dotted(node: ast.expr | None, bound: dict[str, str]) -> str | None:
    match node:
        case ast.Name(id=local):
            return bound.get(local)
        case ast.Attribute(value=owner, attr=attr):
            path = _dotted(owner, bound)
            return path and f"{path}.{attr}"
        case _:
            return None


def _follow(path: str, exports: dict[str, str]) -> str:
    """Replace a leading `straightline.torch_private.names.X` by what X is bound to there."""
    parts = path.split(".")
    for size in range(len(parts), 0, -1):
        target = exports.get(".".join(parts[:size]))
        if target is not None:
            return _follow(".".join([target, *parts[size:]]), exports)
    return path


# -- What they are -------------------------------------------------------------------------------


def make_record(names: Iterable[str], attributes: set[str]) -> Record:
    """Look at each name, and at the dataclasses and enums that it leads to, in this torch."""
    record: Record = {}
    pending = sorted(names)
    seen: set[str] = set()
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        module, chain = _locate(path)
        shapes = record.setdefault(module.__name__, {})
        value: object = module
        for size, part in enumerate(chain, start=1):
            owner, value = value, getattr(value, part)
            if kind_of(owner) == "enum" or _is_opaque(owner):
                break  # members belong to the enum's own entry; values are looked at no further
            shapes[".".join(chain[:size])] = _shape(value, attributes)
            pending.extend(_leads_to(value))
    return {name: dict(sorted(record[name].items())) for name in sorted(record)}


def _is_opaque(owner: object) -> bool:
    return kind_of(owner) in ("value", "function", "builtin")


def _locate(path: str) -> tuple[ModuleType, list[str]]:
    parts = path.split(".")
    for size in range(len(parts), 0, -1):
        try:
            return importlib.import_module(".".join(parts[:size])), parts[size:]
        except ImportError:
            continue
    raise LookupError(f"torch has no {path}")


def _shape(value: object, attributes: set[str]) -> Shape:
    if not isinstance(value, type) or kind_of(value) == "enum":
        return describe(value)
    torch_made = {
        name for base in value.__mro__ if is_private(base.__module__) for name in vars(base)
    }
    set_up = instance_attributes(value) - {name for base in value.__mro__ for name in vars(base)}
    own = {x for x in torch_made | set_up if x in attributes and not _is_dunder(x)}
    return describe(value, sorted(own - set(describe(value).parts)))


def _leads_to(value: object) -> Iterator[str]:
    """Private dataclasses and enums named in a dataclass's fields or in what a function returns."""
    match kind_of(value):
        case "dataclass":
            annotations = [field.type for field in fields(value)]  # type: ignore[arg-type]
            home: object = sys.modules[value.__module__]
        case "function":
            function = inspect.unwrap(value)  # type: ignore[arg-type]
            annotations = [getattr(function, "__annotations__", {}).get("return")]
            home = sys.modules[function.__module__]
        case _:
            return
    text = " ".join(x if isinstance(x, str) else inspect.formatannotation(x) for x in annotations)
    for identifier in sorted(set(re.findall(r"\w+", text))):
        found = vars(home).get(identifier)
        if isinstance(found, type) and kind_of(found) != "class" and is_private(found.__module__):
            yield f"{found.__module__}.{found.__qualname__}"


# -- The file ------------------------------------------------------------------------------------


def minor_of(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def render(record: Record, version: str) -> str:
    major, minor = minor_of(version)
    lines = [
        f'"""torch {major}.{minor}, recorded from {version} by scripts/record_torch.py."""',
        "",
        "from straightline.torch_private.records.shape import Record, Shape",
        "",
        "RECORD: Record = {",
    ]
    for module, shapes in record.items():
        if not shapes:
            lines.append(f'    "{module}": {{}},')
            continue
        lines.append(f'    "{module}": {{')
        for name, shape in shapes.items():
            lines += _entry(name, shape)
        lines.append("    },")
    return "\n".join([*lines, "}", ""])


def _entry(name: str, shape: Shape) -> Iterator[str]:
    if not shape.parts and not shape.attributes:
        yield f'        "{name}": Shape("{shape.kind}"),'
        return
    yield f'        "{name}": Shape('
    yield f'            "{shape.kind}",'
    yield from _strings("parts", shape.parts)
    yield from _strings("attributes", shape.attributes)
    yield "        ),"


def _strings(keyword: str, strings: tuple[str, ...]) -> Iterator[str]:
    """One string a line: the difference between two minors then reads line by line."""
    match strings:
        case ():
            return
        case (string,):
            yield f'            {keyword}=("{string}",),'
        case _:
            yield f"            {keyword}=("
            yield from (f'                "{string}",' for string in strings)
            yield "            ),"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    version = str(torch.__version__).partition("+")[0]
    target = RECORDS / "v{}_{}.py".format(*minor_of(version))
    text = render(make_record(*used_names(SOURCES)), version)
    if not arguments.check:
        target.write_text(text)
    elif not target.exists() or target.read_text() != text:
        sys.exit(f"{target.relative_to(ROOT)} is stale: run python scripts/record_torch.py")


if __name__ == "__main__":
    main()
