# Two commands on a fresh machine: `make demo` and `make test`. Both may be repeated; the second
# time they find .venv as they left it. Needed beforehand: Python 3.11 or later and make.

PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test lint types docs pages clean

help:
	@echo "make demo    make .venv, install, compile a small model and show what runs"
	@echo "make test    the default test suite"
	@echo "make lint    ruff, make types: mypy, make docs: the code on the pages of docs/"
	@echo "make clean   remove .venv and all caches"

demo: $(VENV)/installed
	$(BIN)/python -m straightline demo

# A file's tests stay in one process: some share what they set up.  A process that dies fails the run.
test: $(VENV)/installed-dev
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --max-worker-restart 0

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy

docs: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q tests/test_docs.py

# Writes what is generated on the documentation's pages anew.
pages: $(VENV)/installed-dev
	$(BIN)/straightline options > docs/options.md
	$(BIN)/python scripts/pages.py --write

# The stamps keep the second run quick: pip is asked again only when what it was told has changed.
$(VENV)/installed: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "$(TORCH)" --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) "$(TORCH)" --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
