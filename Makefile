# Two commands: `make lab` opens the course, `make test` checks all of it. Each sets itself up first, and starts at once when that is done.
# PYTHON=python3.12 chooses another interpreter.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; sys.exit(not (3,11) <= sys.version_info < (3,14))' 2>/dev/null && echo $(p))))

.DEFAULT_GOAL := help
.PHONY: help lab book test test-all lint unit ray notebooks bench picture exercises screens screenshots format clean

help:
	@echo "make lab    set up and open the course in JupyterLab"
	@echo "make book   set up and build the course as pages to read and play with"
	@echo "make test   set up and run all checks and tests"
	@echo "make bench  set up and measure: every figure beside its peer"
	@echo "make clean  remove what the others made"

lab: $(VENV)/.lab
	@$(BIN)/lockstep lab $(LAB_ARGS)

# Lessons that have not changed since the last time are not run again.
book: $(VENV)/.book
	@$(BIN)/python notebooks/book/build.py $(BOOK_ARGS)

test: $(VENV)/.test
	@$(BIN)/python -m tests.times lint unit ray notebooks

# All cases of all tests, and the notebooks twice in a row: what the first run leaves behind must not disturb the second.
test-all: $(VENV)/.test
	@NIGHTLY=1 $(BIN)/python -m tests.times lint unit ray notebooks notebooks

lint: $(VENV)/.test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# Most tests wait for emulated devices more than they compute. PYTEST_ARGS=FILE runs that file in one process.
PYTEST_ARGS ?= -n 3 --ignore=tests/ray
unit: $(VENV)/.test
	@$(BIN)/python -m pytest -p tests.times $(PYTEST_ARGS)

# One process, as all tests use one cluster, and three nodes are dear.
RAY_ARGS ?= --timeout 400 tests/ray
ray: $(VENV)/.test
	@$(BIN)/python -m pytest -p tests.times $(RAY_ARGS)

# A notebook waits for emulated devices as well.
NOTEBOOKS_ARGS ?= -n 2 --dist loadfile notebooks solutions
notebooks: $(VENV)/.test
	@$(BIN)/python -m pytest -p tests.times -p no:cacheprovider --nbval-lax --nbval-current-env --nbval-cell-timeout=120 $(NOTEBOOKS_ARGS)

bench: $(VENV)/.test
	@$(BIN)/python -m tests.benchmarks $(BENCH_ARGS)
	@$(BIN)/lockstep claims --seeds 20

# The pictures of README.md and notebooks/reference/, from runs that happen now.
picture: $(VENV)/.test
	@rm -rf .picture-run
	@$(BIN)/lockstep run multi_worker_mirrored --steps 60 --device-ms 20 --slow worker:3=4 --run-dir .picture-run --json >/dev/null
	@$(BIN)/lockstep picture .picture-run --first 30 --steps 5 --out notebooks/pictures/straggler.svg \
		--title "Four TensorFlow workers, one of them four times slower"
	@rm -rf .picture-run
	@$(BIN)/lockstep stage ring hierarchical --workers 8 --hosts 2 --link 200 --real --round 3 --out notebooks/pictures/all_reduce.svg
	@$(BIN)/python -m tests.browser.recording

# The exercises, from the solutions; nbgrader takes the answers out.
exercises: $(VENV)/.test
	@$(BIN)/lockstep exercises

# What learners read, as it is now, into tests/unit/screens/: look at the difference.
screens: $(VENV)/.test
	@rm -f tests/unit/screens/*.txt
	@NIGHTLY=1 LOCKSTEP_SCREENS=write $(BIN)/python -m pytest -q -n 3 $$(grep -rl --include='test_*.py' 'tests.screens import' tests)

# Every widget, light and dark, into screenshots/.
screenshots: $(VENV)/.test
	@$(BIN)/python -m tests.browser.screenshots

format: $(VENV)/.test
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis bench-results screenshots _book *.egg-info

$(VENV)/bin/python:
	@[ -n "$(PYTHON)" ] || { echo "Lockstep needs Python 3.11, 3.12 or 3.13; none was found. Debian and Ubuntu: sudo apt install python3 python3-venv. macOS: brew install python@3.12."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment. Debian and Ubuntu: sudo apt install python3-venv."; exit 1; }

# `.lab`, `.book` and `.test` say which set-up has been done, and with which pyproject.toml.
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --quiet
FAILED = { echo "The installation failed; its last lines above say at which package. A package that must be compiled needs a compiler and Python's headers (Debian and Ubuntu: sudo apt install build-essential python3-dev); a broken download only another try."; exit 1; }

$(VENV)/.lab: pyproject.toml | $(VENV)/bin/python
	@echo "Installing TensorFlow, PyTorch and JupyterLab into $(VENV): a few minutes, once."
	@$(INSTALL) -e . || $(FAILED)
	@touch $@

$(VENV)/.book: pyproject.toml $(VENV)/.lab
	@$(INSTALL) -e '.[book]' || $(FAILED)
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.lab
	@$(INSTALL) -e '.[test,ray,book]' || $(FAILED)
	@touch $@
