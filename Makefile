PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One process more than there are cores, because tests of servers and of several processes wait; whoever is free takes
# tests from the others. Plain `pytest` runs them in order.
PARALLEL = --numprocesses $$($(BIN)/python -c 'import os; print(1 + (os.cpu_count() or 1))') --dist worksteal

.PHONY: setup demo test test-kernels test-gpu test-layer lint format figures docs dist clean

setup: $(VENV)/.installed

# torch first and by its pin: the version that is tested. Where there is no GPU, a CPU build of it is enough and far smaller.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "bnce needs Python 3.11 or newer, but $(PYTHON) is older. Name another one: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "Installing PyTorch and other packages into $(VENV). The first time, this can take several minutes."
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train]'
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

$(VENV)/.installed-dist: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dist]'
	touch $@

demo: setup
	$(BIN)/bnce experiment demo

# Or every program that a test starts would compile bnce again.
test: export PYTHONDONTWRITEBYTECODE :=
# The server's page is tested in a real browser, where there is one or one can be installed. BNCE_CHROMIUM=none hides it.
test: $(VENV)/.installed-test
	$(BIN)/python tests/browser.py
	$(MAKE) --jobs 2 --output-sync lint test-kernels
	$(BIN)/pytest $(PARALLEL)

# The kernels of a GPU, by Triton's interpreter.
test-kernels: $(VENV)/.installed-test
	TRITON_INTERPRET=1 $(BIN)/pytest --override-ini addopts=-q tests/kernels

# On a machine with a GPU, in whatever environment has PyTorch for it.
test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest --override-ini addopts=-q tests/kernels tests/gpu

# What users of the output layer alone need, with the oldest PyTorch that pyproject.toml lets them have.
LAYER := build/layer
LAYER_TORCH = $(shell sed -n 's/^layer = \["torch>=\(.*\)"\]$$/\1/p' pyproject.toml)
$(LAYER)/.installed: pyproject.toml
	$(PYTHON) -m venv $(LAYER)
	$(LAYER)/bin/pip install --quiet --disable-pip-version-check 'torch==$(LAYER_TORCH).*' \
		pytest pytest-timeout hypothesis --editable .
	touch $@

test-layer: $(LAYER)/.installed
	$(LAYER)/bin/python -m pytest tests/test_output_layer.py tests/losses tests/test_noise.py tests/test_rows.py \
		$(addprefix tests/optimisers/test_,row_optimizers.py rowwise.py exchange.py)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Take the CPU figures again, in 11 minutes on two idle cores, then write all figures of README and docs from
# benchmarks/results, and draw the plots of the paper's experiments. WIKI=DIR, with train-1, valid and test.txt.xz, also
# takes the simulated lists: 30 minutes more.
figures: $(VENV)/.installed-test
	rm -rf build/figures
	$(BIN)/python benchmarks/figures_cpu.py demo export vocab score serve --work build/figures
	$(if $(WIKI),$(BIN)/python benchmarks/figures_cpu.py nbest --work build/figures --wiki $(WIKI))
	$(BIN)/python benchmarks/publish.py
	$(BIN)/python benchmarks/figures.py

# The manual, in site/: open site/index.html. --strict stops at a link that leads nowhere; --quiet would switch that off.
# The variable silences an announcement of Material's.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# What is published, in dist/: the source distribution, and the wheel that is built from it. --no-isolation takes the
# setuptools of the environment, so nothing is downloaded. --strict stops at a page that an index could not show.
dist: $(VENV)/.installed-dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) demo site build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache
