# Every target sets up what it needs: Python 3.11 or newer and make are enough.

PYTHON ?= python3
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# The versions to install: constraints.txt, constraints-oldest.txt, or `none` for the newest ones.
CONSTRAINTS ?= constraints.txt
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	$(if $(filter none,$(CONSTRAINTS)),--upgrade,--constraint $(CONSTRAINTS))

# Most of the suite's time is compilation, so the next run finds what this one compiled.
PYTEST := JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.jax_cache \
	JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.03 \
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# The number of seconds that `make torture` attacks for.
SECONDS ?= 600

SPELLED := src docs tests tools benchmarks examples .github $(wildcard *.md)

.PHONY: demo test test-slow test-torch test-all torture scripts lint format docs wheel bench clean

demo: .venv/installed
	$(BIN)/nres demo

test: .venv/installed-test
	$(PYTEST) -m 'not scripts and not slow and not torch'

# Tests that need a cluster, kills, a browser or more than a few seconds.
test-slow: .venv/installed-test
	$(PYTEST) -m 'slow and not scripts'

# Exported optimizers in torch, which takes several gigabytes.
test-torch: .venv/installed-torch
	$(BIN)/python -m pytest -m torch

test-all: test test-slow scripts
	$(BIN)/python tests/torture --seconds 150 --tries 30 --out .torture

torture: .venv/installed-test
	$(BIN)/python tests/torture --seconds $(SECONDS)

lint: .venv/installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell $(SPELLED)
	$(BIN)/python tools/words.py

format: .venv/installed-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

scripts: .venv/installed-test
	$(BIN)/python -m pytest -n auto -m scripts

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Build the package, check it, and use it in an empty environment without the repository.
wheel: .venv/installed-wheel
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tools/check_wheel.py dist/*.whl --constraints $(CONSTRAINTS)

bench: .venv/installed-bench
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/simulators.py
	$(BIN)/python benchmarks/learned_optimizer.py
	$(BIN)/python benchmarks/meta_training.py
	$(BIN)/python benchmarks/large_models.py
	$(BIN)/python benchmarks/theory.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/actors.py
	$(BIN)/python benchmarks/cluster.py

clean:
	rm -rf .venv .jax_cache .torture dist site .mypy_cache .pytest_cache .ruff_cache

# Unlike the interpreter, this file has the same name on all systems.
.venv/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "nres needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv

# One stamp per set of packages, stale when a file that declares packages is newer.
.venv/installed: .venv/pyvenv.cfg pyproject.toml $(filter-out none,$(CONSTRAINTS))
	$(INSTALL) --editable .
	@touch $@

.venv/installed-test: .venv/installed
	$(INSTALL) --editable '.[test]'
	@touch $@

.venv/installed-torch: .venv/installed-test
	$(INSTALL) torch safetensors
	@touch $@

.venv/installed-lint: .venv/installed-test
	$(INSTALL) --editable '.[test,lint]'
	@touch $@

.venv/installed-docs: .venv/installed
	$(INSTALL) --editable '.[docs]'
	@touch $@

.venv/installed-wheel: .venv/installed
	$(INSTALL) --editable '.[wheel]'
	@touch $@

.venv/installed-bench: .venv/installed
	$(INSTALL) --editable '.[bench]'
	@touch $@
