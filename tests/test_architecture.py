"""The drawing of the house, held true: who may import whom, and where torch's private names stand.

Rooms are packages and modules directly under `straightline`. Dependencies point downward only:
a module may import from its own room and from what the table names for the longest prefix of its
own name, and nothing else.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "straightline"

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": (),
    "config": ("errors",),
    # The contract is where the stages meet, origins the names and lines that all of them show; they
    # know nobody.
    "capture.contract": (),
    "capture.written": (),
    "capture.origins": (),
    "torch_private": ("capture.contract", "capture.written", "errors"),
    "capture": ("errors", "torch_private"),
    "runtime": ("capture.contract", "capture.origins", "errors", "torch_private"),
    # The compiler of kernels: its stages meet in the loop IR, and all but the first know no torch.
    "ir": (),
    "lower": ("errors", "ir", "torch_private"),
    "schedule": ("ir",),
    "codegen": ("ir",),
    "launch": ("codegen", "ir", "torch_private.allocation"),
    "kernels": (
        "capture",
        "codegen",
        "config",
        "errors",
        "ir",
        "launch",
        "lower",
        "schedule",
        "switches",
        "torch_private",
    ),
    # What is switched off, and the public way to do so.
    "switches": ("torch_private.dynamo",),
    "backends": ("codegen.llvm.host", "errors", "lower.rules", "switches", "torch_private"),
    # Stages return records; only the pipeline hands them to report, which knows their type.
    "report": ("__version__", "config", "errors", "torch_private.gate"),
    "report.explain": ("kernels.record",),
    "report.trace": ("report.log", "runtime.programs", "torch_private.artifacts"),
    "report.dump": (
        "capture.origins",
        "runtime",
        "torch_private.operations",
        "torch_private.symbols",
    ),
    "fallback": ("capture.origins", "config", "report", "torch_private"),
    "pipeline": (
        *("backends", "capture", "config", "errors", "fallback", "kernels", "report", "runtime"),
        *("switches", "torch_private"),
    ),
    "compiled": ("errors", "kernels.record", "report.explain", "torch_private"),
    "api": (
        *("compiled", "config", "errors", "fallback", "kernels.record", "pipeline"),
        "torch_private",
    ),
    "demo": ("__version__", "api", "report", "runtime", "torch_private"),
    "cli": ("__version__", "config", "demo", "report"),
    "__init__": ("api", "backends", "config", "report.doctor"),
    "__main__": ("cli",),
}
PRIVATE_ROOM = "torch_private"
# Rooms without torch, so that their tests and fuzzers run in milliseconds.
WITHOUT_TORCH = ("ir", "schedule", "codegen")
# llvmlite appears where machine code is made and entered.
WITH_LLVM = ("codegen.llvm", "launch")


def modules() -> dict[str, Path]:
    """Every module by its name below `straightline`."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        found[name] = path
    return found


MODULES = modules()


def rule(module: str) -> str:
    """The row of the table that holds for `module`."""
    parts = module.split(".")
    prefixes = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next(prefix for prefix in prefixes if prefix in MAY_IMPORT)


def below(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def own_imports(module: str, source: str) -> Iterator[str]:
    """What `module` imports from the package, by names below `straightline`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(origin), level=0):
                names = [f"{origin}.{alias.name}" for alias in node.names]
            case ast.ImportFrom():
                raise AssertionError(f"{module}:{node.lineno} imports relatively")
            case _:
                continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "straightline" and rest:
                yield rest


def forbidden_imports(module: str, source: str) -> list[str]:
    row = rule(module)
    allowed = (row, *MAY_IMPORT[row])
    return [
        name
        for name in own_imports(module, source)
        if not any(below(name, each) for each in allowed)
    ]


_PRIVATE = re.compile(r"_[^_]")
_DOTTED_PRIVATE = re.compile(r"torch(\.\w+)*\._[a-zA-Z]\w*(\.\w+)*")


def is_private(dotted: str) -> bool:
    """Whether a dotted name is torch's own business.

    Operators are not: `torch.ops.aten._softmax` is the vocabulary of every graph.
    """
    root, *rest = dotted.split(".")
    if root == "functorch":
        return True
    if rest[:1] == ["ops"] and not (len(rest) > 1 and _PRIVATE.match(rest[1])):
        return False
    return root == "torch" and any(_PRIVATE.match(part) for part in rest)


def private_torch_names(source: str) -> list[str]:
    """`line: name` of each use of a name private to torch: imports, attributes, names in text."""
    tree = ast.parse(source)
    bound: dict[str, str] = {}
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    found.append((node.lineno, alias.name))
                    if alias.asname:
                        bound[alias.asname] = alias.name
                    else:
                        root = alias.name.partition(".")[0]
                        bound[root] = root
            case ast.ImportFrom(module=str(origin)):
                for alias in node.names:
                    found.append((node.lineno, f"{origin}.{alias.name}"))
                    bound[alias.asname or alias.name] = f"{origin}.{alias.name}"
    for node in ast.walk(tree):
        match node:
            case ast.Attribute():
                found.append((node.lineno, _dotted(node, bound)))
            case ast.Call(
                func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), *_]
            ):
                found.append((node.lineno, f"{_dotted(owner, bound)}.{name}"))
            case ast.Constant(value=str(text)) if _DOTTED_PRIVATE.fullmatch(text):
                found.append((node.lineno, text))
    return [f"{line}: {name}" for line, name in sorted(set(found)) if is_private(name)]


def _dotted(node: ast.expr, bound: dict[str, str]) -> str:
    match node:
        case ast.Attribute(value=value, attr=attr):
            return f"{_dotted(value, bound)}.{attr}"
        case ast.Name(id=name):
            return bound.get(name, "")
        case _:
            return ""


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downward(module):
    assert forbidden_imports(module, MODULES[module].read_text()) == []


@pytest.mark.parametrize("module", [name for name in MODULES if not below(name, PRIVATE_ROOM)])
def test_private_names_of_torch_stand_in_one_room(module):
    assert private_torch_names(MODULES[module].read_text()) == []


def outside_imports(source: str) -> set[str]:
    """The packages other than ours and Python's own that a module imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                names |= {alias.name.partition(".")[0] for alias in node.names}
            case ast.ImportFrom(module=str(origin)):
                names.add(origin.partition(".")[0])
    return names - sys.stdlib_module_names - {"straightline"}


@pytest.mark.parametrize("module", MODULES)
def test_rooms_without_torch_import_none_and_llvm_stays_in_its_place(module):
    found = outside_imports(MODULES[module].read_text())
    if any(below(module, room) for room in WITHOUT_TORCH):
        assert "torch" not in found
    if not any(below(module, room) for room in WITH_LLVM):
        assert "llvmlite" not in found


def test_every_room_is_in_the_table_and_the_table_names_no_other():
    rooms = {name.partition(".")[0] for name in MODULES}
    assert rooms == {row.partition(".")[0] for row in MAY_IMPORT}


def test_the_table_has_no_cycle():
    """Between rooms; a module with a row of its own counts as one."""
    rows = {row: [rule(a) for a in allowed if _is_module(a)] for row, allowed in MAY_IMPORT.items()}
    done: set[str] = set()

    def visit(row: str, path: tuple[str, ...]) -> None:
        assert row not in path, " -> ".join((*path, row))
        if row not in done:
            for lower in rows[row]:
                visit(lower, (*path, row))
            done.add(row)

    for row in rows:
        visit(row, ())


def _is_module(name: str) -> bool:
    return name.partition(".")[0] in {row.partition(".")[0] for row in MAY_IMPORT}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("runtime.forward", "from straightline.report import log"),
        ("runtime.forward", "def f():\n    import straightline.pipeline"),
        ("runtime.steps.alias", "from straightline.capture.joint import capture"),
        ("capture.contract", "from straightline import errors"),
        ("config", "from straightline.report.fallbacks import counts"),
    ],
)
def test_a_wrong_import_is_found(module, source):
    assert len(forbidden_imports(module, source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "import torch.utils._pytree as pytree",
        "from torch import _C",
        "from torch.utils._pytree import tree_map",
        "from functorch.compile import config",
        "import torch\ntorch._C.thing()",
        "import torch as t\nt.Tensor._make_subclass",
        "from torch import nn\nnn.functional._verify",
        "import torch\ngetattr(torch, '_C')",
        "import importlib\nimportlib.import_module('torch._dynamo.config')",
    ],
)
def test_a_private_name_is_found(source):
    assert private_torch_names(source)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.ops.aten._softmax.default",
        "import torch\ntorch.__version__",
        "from torch.autograd import Function",
        "def f(self):\n    return self._torch",
    ],
)
def test_a_public_name_is_not(source):
    assert private_torch_names(source) == []


def loaded_by(statement: str) -> set[str]:
    """The modules that `statement` loads in a fresh process after `import torch`."""
    program = (
        "import torch, sys, json\n"
        "before = set(sys.modules)\n"
        f"{statement}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def test_importing_the_package_loads_one_module():
    assert loaded_by("import straightline") == {"straightline"}


def test_importing_the_package_does_not_need_torch():
    program = "import sys, straightline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


_IMPORT_EACH_ALONE = """
import os, sys, torch
failed = 0
modules = sys.argv[1:]
while modules:  # two at a time
    batch, modules = modules[:2], modules[2:]
    children = []
    for module in batch:
        child = os.fork()
        if child == 0:
            __import__(module)
            os._exit(0)
        children.append(child)
    failed += sum(os.waitpid(child, 0)[1] != 0 for child in children)
sys.exit(failed)
"""


def test_each_module_can_be_imported_first():
    """torch's own modules import one another; which of them comes first is for ours to say.

    Those that name them are tried, and those through which they are reached.
    """
    circular = ("torch._dynamo", "torch._functorch")
    reading = [
        name
        for name, path in MODULES.items()
        if any(line.split(": ")[1].startswith(circular) for line in _private_imports(path))
    ]
    names = [f"straightline.{name}" for name in [*reading, "runtime.programs", "report.dump"]]
    assert len(names) > 10
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_EACH_ALONE, *names],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _private_imports(path: Path) -> list[str]:
    return private_torch_names(path.read_text()) if "records" not in path.parts else []


def test_options_load_nothing_of_torch():
    loaded = loaded_by("import straightline\nstraightline.Config()\nstraightline.options()")
    assert {name for name in loaded if name.partition(".")[0] != "straightline"} <= {"difflib"}


def test_the_public_names_are_there():
    import straightline

    for name in straightline.__all__:
        assert getattr(straightline, name) is not None
    assert set(straightline.__all__) <= set(dir(straightline))
    with pytest.raises(AttributeError, match="'nothing'"):
        straightline.nothing  # noqa: B018 - reading it is the test
