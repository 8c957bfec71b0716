# Every target needs nothing but Python 3.11 or newer and make; `make setup` is done by whichever comes first.

SHELL := /bin/bash
BIN := .venv/bin
STAMP := .venv/.madeira-installed

# The first that really runs: a pyenv shim may be on the path and still refuse.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	if "$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo "$$p"; break; fi; done)

.PHONY: help setup demo test lint format bench chaos lock clean

help:
	@echo "make demo    a night of payment orders, end to end, under two minutes"
	@echo "make test    all tests, on real servers that start by themselves"
	@echo "make lint    ruff, mypy, the arrow of imports"
	@echo "make bench   figures beside their references, under twenty minutes"
	@echo "make chaos   twenty kills, and the banks' ledgers still agree"
	@echo "make lock    requirements.lock anew from pyproject.toml"

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer (with venv) was not found on PATH; install it or run: make PYTHON=/path/to/python setup" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	$(BIN)/madeira demo

test: setup
	$(BIN)/python -m pytest $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python tests/bench/run.py

chaos: setup
	$(BIN)/python tests/chaos/run.py

# Needs no set-up beyond uv, which may also be given: make lock UV=uv
UV ?= $(BIN)/uv
lock:
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
		--no-header --no-annotate --extra dev --output-file requirements.lock pyproject.toml

# Stops the embedded servers; their data in var/ stays, whoever wants it gone deletes it by hand.
clean:
	@if test -x $(BIN)/python && test -d var; then $(BIN)/python -m madeira.embedded stop var; fi
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
