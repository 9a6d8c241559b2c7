# Fairlane. `make run` starts a gateway to try, `make test` runs the tests, `make fuzz` the long random ones, `make check` what CI runs besides.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: run test quick fuzz check bench fairness fairness-live screenshots lock install install-dev clean

run: install
	$(BIN)/fairlane demo

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml requirements.lock | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml requirements.lock | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]'
	touch $@ $(VENV)/.installed

# Tests start many processes, which would compile the same sources again and again.
test quick fuzz: export PYTHONDONTWRITEBYTECODE =

test: install-dev
	sh tests/install-tools
	$(BIN)/python -m pytest -n 4 --dist loadfile

quick: install-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow'

fuzz: install-dev
	FAIRLANE_LONG=1 $(BIN)/python -m pytest tests/properties/test_grant_order.py tests/properties/test_scheduler_machine.py

check: install-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: install-dev
	$(BIN)/python -m bench

screenshots: install-dev
	sh tests/install-tools
	$(BIN)/python -m tests.screenshots

fairness: install-dev
	$(BIN)/python -m bench.fairness

fairness-live: install-dev
	$(BIN)/python -m bench.fairness.live

lock: install-dev
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
