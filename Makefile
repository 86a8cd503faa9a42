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
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	mkdir -p $(BUILD)/demo
	$(BIN)/custom-autograd check examples/gallery -j 2 --html $(BUILD)/demo/gallery.html
	$(BIN)/python benchmarks/measure_gallery.py rms_norm rope flash_attention --without compiled --seconds 1 --out $(BUILD)/demo
	$(BIN)/python examples/language_model/train.py --output $(BUILD)/demo

# One thread for each worker: the workers share the cores among themselves.
test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --cache-dir $(BUILD)/import_linter

docs: $(VENV)/installed $(BUILD)/gallery-checks.json
	$(BIN)/python docs/build.py $(BUILD)/docs --checks $(BUILD)/gallery-checks.json

# What every check says of the gallery: its pages show it. Verified anew after any change of the gallery or the package.
$(BUILD)/gallery-checks.json: $(VENV)/installed $(shell find examples/gallery custom_autograd -type f -not -path '*/__pycache__/*')
	mkdir -p $(BUILD)
	$(BIN)/custom-autograd check examples/gallery -j 2 --quiet --json $@

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e ".[lint]"
	touch $@
