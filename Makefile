# demo, test, check, docs: nothing else.
# Each makes the environment that it needs first, in $(VENV), from pyproject.toml and constraints.txt.

PYTHON ?= python3
VENV ?= .venv
BUILD ?= build
# Two workers on two cores or fewer, else one for each core.
WORKERS ?= $(shell $(PYTHON) -c "import os; print('auto' if (os.cpu_count() or 1) > 2 else 2)")
PYTEST_ARGS ?=

BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check docs

demo: $(VENV)/installed
	mkdir -p $(BUILD)/demo
	$(BIN)/custom-autograd check examples/gallery
	$(BIN)/python examples/language_model/train.py --output $(BUILD)/demo

# One thread for each worker: the workers share the cores among themselves.
test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --cache-dir $(BUILD)/import_linter

docs: $(VENV)/installed-docs
	$(BIN)/sphinx-build -W --keep-going -b html docs $(BUILD)/docs

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e ".[lint]"
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(INSTALL) -e ".[docs]"
	touch $@
