"""Options: the names, the values, the order of precedence, the errors, the page."""

import contextlib
import dataclasses
import pickle
import threading
from pathlib import Path

import pytest
import torch

import straightline
from straightline import config
from straightline.config import Config, options_page, resolve, resolve_mode
from straightline.errors import OptionError, StraightlineError

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in config.NAMES:
        monkeypatch.delenv(f"STRAIGHTLINE_{name.upper()}", raising=False)


def test_without_anything_the_defaults_are_in_force():
    assert resolve(None) == Config() == Config(double_backward="auto", dump=None, fallback="warn")


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().dump = "elsewhere"  # type: ignore[misc]


def test_argument_before_context_before_environment_before_default(monkeypatch):
    monkeypatch.setenv("STRAIGHTLINE_DUMP", "environment")
    monkeypatch.setenv("STRAIGHTLINE_FALLBACK", "error")
    assert resolve(None) == Config(dump="environment", fallback="error")
    with straightline.options(dump="context"):
        assert resolve({}) == Config(dump="context", fallback="error")
        assert resolve({"dump": "argument"}) == Config(dump="argument", fallback="error")
        assert resolve({"dump": None}) == Config(fallback="error")


def test_an_empty_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv("STRAIGHTLINE_FALLBACK", "")
    assert resolve(None) == Config()


def test_contexts_nest_and_end_even_with_an_exception():
    with straightline.options(dump="outer", fallback="error"):
        with straightline.options(dump="inner"):
            assert resolve(None) == Config(dump="inner", fallback="error")
        with contextlib.suppress(KeyError), straightline.options(dump="inner"):
            raise KeyError
        assert resolve(None) == Config(dump="outer", fallback="error")
    assert resolve(None) == Config()


def test_a_context_belongs_to_its_thread():
    seen: list[Config] = []
    with straightline.options(dump="here"):
        thread = threading.Thread(target=lambda: seen.append(resolve(None)))
        thread.start()
        thread.join()
    assert seen == [Config()]


def test_an_unknown_option_lists_the_known_ones_and_the_nearest():
    with pytest.raises(OptionError) as caught:
        resolve({"double_backwards": "auto"})
    message = str(caught.value)
    assert "'double_backwards'" in message
    assert "did you mean 'double_backward'?" in message
    assert all(name in message for name in config.NAMES)


def test_an_option_like_no_other_gets_no_suggestion():
    with pytest.raises(OptionError) as caught:
        resolve({"zzz": 1})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("fallback", "loud", "'warn' or 'error'"),
        ("fallback", None, "'warn' or 'error'"),
        ("double_backward", True, "'auto' or 'save'"),
        ("dump", 3, "a string or None"),
        ("check", 1, "True or False"),
        ("fusion_limit", True, "a number or None"),
    ],
)
@pytest.mark.parametrize(
    ("give", "origin"),
    [
        (lambda name, value: resolve({name: value}), "an argument"),
        (lambda name, value: Config(**{name: value}), "a field of Config"),
        (
            lambda name, value: straightline.options(**{name: value}).__enter__(),
            "straightline.options",
        ),
    ],
)
def test_a_value_that_is_not_allowed_is_named_with_its_origin(name, value, allowed, give, origin):
    with pytest.raises(OptionError) as caught:
        give(name, value)
    message = str(caught.value)
    assert f"option {name!r} cannot be {value!r} (given as {origin})" in message
    assert f"use {allowed}" in message


def test_a_wrong_variable_is_named(monkeypatch):
    monkeypatch.setenv("STRAIGHTLINE_FALLBACK", "loud")
    with pytest.raises(OptionError, match="the environment, as STRAIGHTLINE_FALLBACK"):
        resolve(None)


def test_variables_that_name_no_option_are_found():
    environ = {
        "STRAIGHTLINE_FALBACK": "error",
        "STRAIGHTLINE_DUMP": "x",
        "STRAIGHTLINE_TEST_BACKEND": "aot_eager",
        "HOME": "/",
    }
    assert config.unknown_variables(environ) == {
        "STRAIGHTLINE_FALBACK": "; did you mean 'STRAIGHTLINE_FALLBACK'?"
    }


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead"])
def test_modes_that_are_accepted(mode):
    resolve_mode(mode)


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs", "lite"])
def test_modes_that_are_refused_by_name(mode):
    with pytest.raises(OptionError, match=f"does not take mode='{mode}'"):
        resolve_mode(mode)


def test_a_mode_nobody_knows():
    with pytest.raises(OptionError, match="unknown mode 'fast'"):
        resolve_mode("fast")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"options": {"fallbak": "error"}}, r"unknown option 'fallbak'; did you mean 'fallback'\?"),
        ({"options": {"fallback": "loud"}}, "option 'fallback' cannot be 'loud'"),
        ({"mode": "max-autotune"}, "does not take mode='max-autotune'"),
    ],
)
def test_torch_compile_says_what_is_wrong(given, said):
    compiled = torch.compile(lambda x: x + 1, backend="straightline", **given)
    with pytest.raises(RuntimeError, match=said) as caught:
        compiled(torch.ones(2))
    assert isinstance(caught.value.inner_exception, OptionError)


def test_torch_compile_takes_a_mode_and_options():
    x = torch.ones(2)
    for given in ({"mode": "reduce-overhead"}, {"options": {"fallback": "error"}}):
        compiled = torch.compile(lambda x: x + 1, backend="straightline", fullgraph=True, **given)
        torch.testing.assert_close(compiled(x), x + 1)


@pytest.mark.parametrize("values", [{"fallbak": "error"}, {"fallback": "loud"}])
def test_our_own_compile_says_it_at_once(values):
    with pytest.raises(OptionError):
        straightline.compile(lambda x: x + 1, **values)
    with pytest.raises(OptionError):
        straightline.compile(**values)


@pytest.mark.parametrize("target", [3, "f", [len]])
def test_what_cannot_be_called_cannot_be_compiled(target):
    with pytest.raises(OptionError, match="takes a function or a module") as caught:
        straightline.compile(target)
    assert repr(target) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("on", True), ("TRUE", True), ("0", False), ("no", False), ("", False)],
)
def test_the_environment_says_on_or_off(monkeypatch, text, value):
    monkeypatch.setenv("STRAIGHTLINE_CHECK", text)
    assert resolve({}).check is value


def test_what_is_neither_on_nor_off_is_an_error(monkeypatch):
    monkeypatch.setenv("STRAIGHTLINE_CHECK", "2")
    with pytest.raises(OptionError, match=r"as STRAIGHTLINE_CHECK.*\n.*use True or False"):
        resolve({})


def test_options_count_when_compiling(tmp_path):
    compiled = straightline.compile(lambda x: x + 1)
    with straightline.options(dump=str(tmp_path)):
        compiled(torch.ones(2))
    assert list(tmp_path.iterdir())


def test_every_mode_of_torch_is_decided():
    from torch._inductor import list_mode_options

    assert set(list_mode_options()) == set(config._MODES)


def test_every_option_is_documented():
    for option in dataclasses.fields(Config):
        assert len(option.metadata["help"]) > 20
        assert f"## `{option.name}`" in options_page()


def test_the_options_page_is_current():
    page = (ROOT / "docs" / "options.md").read_text()
    assert page == options_page(), "run `make pages`"


def test_the_command_prints_the_page(capsys):
    from straightline.cli import main

    assert main(["options"]) == 0
    assert capsys.readouterr().out == options_page()


def test_an_error_says_what_where_and_what_to_do():
    error = StraightlineError("it broke", where="model.py:12", todo="mend it")
    assert str(error) == "it broke\n  at model.py:12\n  what to do: mend it"
    assert str(StraightlineError("it broke")) == "it broke"


def test_an_error_survives_pickling():
    error = pickle.loads(pickle.dumps(OptionError("it broke", where="model.py:12", todo="mend it")))
    assert (error.what, error.where, error.todo) == ("it broke", "model.py:12", "mend it")
    assert str(error) == "it broke\n  at model.py:12\n  what to do: mend it"
    assert isinstance(error, ValueError)
