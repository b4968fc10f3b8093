"""The version gate sees every kind of change in torch's private side, names it, never raises."""

import dataclasses
import enum
import functools
import importlib
import importlib.util
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._functorch import aot_autograd
from torch._functorch._aot_autograd import schemas

from straightline.torch_private import gate
from straightline.torch_private.records.shape import Record, Shape, describe

ROOT = Path(__file__).resolve().parents[2]


def _load_script() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(
        "record_torch", ROOT / "scripts" / "record_torch.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


record_torch = _load_script()


@pytest.fixture(autouse=True)
def fresh_check() -> Iterator[None]:
    gate.check.cache_clear()
    yield
    gate.check.cache_clear()


def _installed_record() -> Record:
    record = gate.load_record(torch.__version__)
    assert record is not None
    return record


def _the_only_difference() -> str:
    report = gate.check()
    assert not report.ok
    [difference] = report.differences
    return difference


# -- The installed torch -------------------------------------------------------------------------


def test_the_installed_torch_is_as_recorded() -> None:
    report = gate.check()
    assert report.differences == ()
    assert report.ok
    assert report.torch_version == torch.__version__
    assert report.summary() == f"torch {torch.__version__} is as recorded"


def test_the_report_is_made_once_per_process() -> None:
    assert gate.check() is gate.check()


def test_the_record_is_what_the_sources_use() -> None:
    """Nothing used is unrecorded, and nothing recorded is unused."""
    used = record_torch.make_record(*record_torch.used_names(record_torch.SOURCES))
    assert _flat(_installed_record()) == _flat(used), "run python scripts/record_torch.py"


def _flat(record: Record) -> dict[str, Shape]:
    modules = {module: Shape("module") for module in record}
    return modules | {
        f"{m}.{n}": shape for m, names in record.items() for n, shape in names.items()
    }


def test_a_check_loads_no_part_of_inductor() -> None:
    program = """if True:
        import sys
        import torch._dynamo.backends.debugging, torch._functorch.aot_autograd
        before = set(sys.modules)
        from straightline.torch_private import gate
        assert gate.check().ok
        print(*(m for m in set(sys.modules) - before if m.startswith("torch._inductor")))
    """
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


# -- Versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.99.0", "2.1", "13.2.0", "2.12.1+cu128", "2.14.0a0+git1"])
def test_a_minor_without_record_is_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert _the_only_difference().startswith(f"no record for torch {version} (recorded minors: ")


@pytest.mark.parametrize("version", ["", "unknown", "2", None])
def test_a_version_that_is_none(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert "no record for torch" in _the_only_difference()


def test_a_torch_without_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "__version__")
    assert "AttributeError" in _the_only_difference()


@pytest.mark.parametrize("patch_level", ["2.13.0", "2.13.7", "2.13.0+cu130", "2.13.1a0+git2"])
def test_all_builds_of_a_minor_share_its_record(patch_level: str) -> None:
    assert gate.load_record(patch_level) == gate.load_record("2.13")
    assert gate.load_record(patch_level) is not None


# -- Every recorded name -------------------------------------------------------------------------


def test_every_recorded_name_is_missed_when_it_goes() -> None:
    for module_name, names in _installed_record().items():
        for name in names:
            *classes, last = name.split(".")
            with pytest.MonkeyPatch.context() as patch:
                module = importlib.import_module(module_name)
                if classes:
                    patch.delattr(functools.reduce(getattr, classes, module), last)
                else:
                    patch.setitem(sys.modules, module_name, _Without(module, last))
                gate.check.cache_clear()
                assert f"{module_name}.{name} is missing" in gate.check().differences


class _Without(types.ModuleType):
    """A module less one name. (Config modules do not let their names be deleted.)"""

    def __init__(self, module: types.ModuleType, gone: str) -> None:
        super().__init__(module.__name__)
        self._real, self._gone = module, gone

    def __getattr__(self, name: str) -> object:
        if name == self._gone:
            raise AttributeError(name)
        return getattr(self._real, name)


def test_every_recorded_module_is_missed_when_it_goes() -> None:
    for module_name in _installed_record():
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, module_name, None)
            gate.check.cache_clear()
            found = gate.check().differences
            assert any(x.startswith(f"{module_name} cannot be imported: Mod") for x in found)


# -- Each kind of change -------------------------------------------------------------------------


def test_a_new_dataclass_field(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = dataclasses.make_dataclass(
        "Changed", [("foo", int, 0)], bases=(schemas.ViewAndMutationMeta,)
    )
    monkeypatch.setattr(schemas, "ViewAndMutationMeta", changed)
    assert _the_only_difference() == (
        "torch._functorch._aot_autograd.schemas.ViewAndMutationMeta has a new field 'foo'"
    )


def test_a_dataclass_field_that_went(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [f.name for f in dataclasses.fields(schemas.OutputAliasInfo) if f.name != "base_idx"]
    changed = dataclasses.make_dataclass("OutputAliasInfo", kept)
    monkeypatch.setattr(schemas, "OutputAliasInfo", changed)
    assert _the_only_difference() == (
        "torch._functorch._aot_autograd.schemas.OutputAliasInfo has no field 'base_idx' any more"
    )


def test_a_new_enum_member(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [*schemas.OutputType.__members__, "alias_of_the_moon"]
    monkeypatch.setattr(schemas, "OutputType", enum.Enum("OutputType", members))
    assert _the_only_difference() == (
        "torch._functorch._aot_autograd.schemas.OutputType has a new member 'alias_of_the_moon'"
    )


def test_a_changed_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_aot_state(stack: object, flat_fn: object, *, fast: bool = True) -> None: ...

    monkeypatch.setattr(aot_autograd, "create_aot_state", create_aot_state)
    assert _the_only_difference() == (
        "torch._functorch.aot_autograd.create_aot_state takes (stack, flat_fn, *, fast=...), and "
        "took (stack, flat_fn, fake_flat_args, flat_args_descs, aot_config, fake_mode, shape_env)"
    )


def test_another_kind_of_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aot_autograd, "create_aot_state", object())
    assert _the_only_difference() == (
        "torch._functorch.aot_autograd.create_aot_state is a plain value, and was a Python function"
    )


def test_a_module_that_fails_while_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def find_spec(name: str, path: object, target: object = None) -> None:
            if name == "torch._functorch.aot_autograd":
                raise RuntimeError("a broken\nbuild")

    monkeypatch.delitem(sys.modules, "torch._functorch.aot_autograd")
    monkeypatch.setattr(sys, "meta_path", [Broken, *sys.meta_path])
    assert _the_only_difference() == (
        "torch._functorch.aot_autograd cannot be imported: RuntimeError: a broken build"
    )


def test_a_module_that_fails_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            if name == "create_aot_state":
                raise RuntimeError("not today")
            return getattr(aot_autograd, name)

    monkeypatch.setitem(
        sys.modules, "torch._functorch.aot_autograd", Broken("torch._functorch.aot_autograd")
    )
    assert _the_only_difference() == (
        "torch._functorch.aot_autograd.create_aot_state cannot be read: RuntimeError: not today"
    )


def test_a_function_that_cannot_be_inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_aot_state() -> None: ...

    create_aot_state.__signature__ = 3  # type: ignore[attr-defined]
    monkeypatch.setattr(aot_autograd, "create_aot_state", create_aot_state)
    assert _the_only_difference().startswith(
        "torch._functorch.aot_autograd.create_aot_state cannot be inspected: TypeError: "
    )


def test_an_attribute_that_went(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed:
        def __init__(self) -> None:
            self.set_up = 1

    module = types.ModuleType("torch._made_up")
    monkeypatch.setattr(module, "Context", Changed, raising=False)
    monkeypatch.setitem(sys.modules, "torch._made_up", module)
    record = {"torch._made_up": {"Context": Shape("class", attributes=("set_up", "gone"))}}
    assert list(gate.differences(record)) == [
        "torch._made_up.Context has no attribute 'gone' any more"
    ]


def test_a_summary_is_short() -> None:
    report = gate.GateReport("2.13.0", tuple(f"torch._x{i} is missing" for i in range(9)))
    assert report.summary() == (
        "torch 2.13.0 is not as recorded: torch._x0 is missing; torch._x1 is missing; "
        "torch._x2 is missing; and 6 more"
    )


# -- What a shape holds --------------------------------------------------------------------------


def _every_kind_of_parameter(a, /, b, c=1, *args, d, e=2, **kwargs): ...


def _only_positional(a, b=1, /): ...


def _only_keywords(*, a, b=1): ...


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (_every_kind_of_parameter, ("a", "/", "b", "c=", "*args", "d", "e=", "**kwargs")),
        (_only_positional, ("a", "b=", "/")),
        (_only_keywords, ("*", "a", "b=")),
        (lambda: None, ()),
    ],
)
def test_a_signature_in_parts(function: object, parts: tuple[str, ...]) -> None:
    assert describe(function) == Shape("function", parts)


def test_pybind_functions_tell_their_parameters_in_their_documentation() -> None:
    shape = describe(torch._C._functionalization.apply_view_meta_sequence)
    assert shape == Shape("builtin", ("arg0", "arg1"))


# -- Which names are used ------------------------------------------------------------------------


def _used(tmp_path: Path, **files: str) -> set[str]:
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    names: set[str] = record_torch.used_names(tmp_path)[0]
    return names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from torch._a import b as c", {"torch._a.b"}),
        ("import torch._a.b as ab\nab.c(1)", {"torch._a.b", "torch._a.b.c"}),
        ("import torch._a", {"torch._a"}),
        ("import torch\ntorch._C._f()", {"torch._C", "torch._C._f"}),
        ("import torch\ntorch.fx._lazy.x", {"torch.fx._lazy", "torch.fx._lazy.x"}),
        ("def f():\n    from torch import _a\n    return _a.b", {"torch._a", "torch._a.b"}),
        ("import torch\nf = torch._C._f\nf.g", {"torch._C", "torch._C._f", "torch._C._f.g"}),
        ("import torch\ntorch.nn.Linear, torch.__version__, torch.nn.__doc__", set()),
        ("from torch._a import f\nf.__name__", {"torch._a.f"}),
        ("import numpy._core as c\nc.x", set()),
        ("from torch._a import b\ngetattr(b, 'c')", {"torch._a.b", "torch._a.b.c"}),
        (
            "from torch._a import config\nconfig.patch({'e': 1})\nconfig.patch('f', 1)",
            {"torch._a.config." + x for x in ("patch", "e", "f")} | {"torch._a.config"},
        ),
        (
            "from torch._a import config\nwith config.patch(cse=False): pass",
            {"torch._a.config." + x for x in ("patch", "cse")} | {"torch._a.config"},
        ),
    ],
)
def test_names_are_derived_from_the_source(tmp_path: Path, text: str, names: set[str]) -> None:
    assert _used(tmp_path, names=text) == names


@pytest.mark.parametrize(
    "importing",
    [
        "from straightline.torch_private.names import b",
        "from .names import b",
        "from straightline.torch_private import names\nb = names.b",
    ],
)
def test_names_are_followed_from_file_to_file(tmp_path: Path, importing: str) -> None:
    used = _used(tmp_path, names="from torch._a import b", stages=f"{importing}\nb.c")
    assert used == {"torch._a.b", "torch._a.b.c"}


def test_what_a_function_returns_is_recorded_too() -> None:
    record = record_torch.make_record({"torch._functorch.aot_autograd.create_aot_state"}, set())
    reached = record["torch._functorch._aot_autograd.schemas"]
    assert {"AOTState", "ViewAndMutationMeta", "OutputAliasInfo", "OutputType"} <= set(reached)


def test_attributes_of_instances_are_recorded_where_read() -> None:
    path = "torch._functorch._aot_autograd.schemas.ViewAndMutationMeta"
    record = record_torch.make_record({path}, {"num_outputs", "output_info", "shape", "append"})
    shape = record["torch._functorch._aot_autograd.schemas"]["ViewAndMutationMeta"]
    assert "output_info" in shape.parts
    assert shape.attributes == ("num_outputs",)


def test_a_written_record_reads_back_as_itself() -> None:
    record = _installed_record()
    namespace: dict[str, Record] = {}
    exec(record_torch.render(record, "2.13.0"), namespace)
    assert namespace["RECORD"] == record
