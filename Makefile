# Fairlane. CONTRIBUTING.md lists the targets.
#
#   run              a gateway to try (PORT=, 8080)
#   test             what every change must pass; nightly: all tests on all servers
#   check            format, lint, types, imports, words, sizes and the documentation; docs: its site in build/site
#   fuzz             long random tests
#   records          kills gateways and Redis while tasks are recorded (TASKS=)
#   chains, batches  the same while chains run (KILLS=), and while a batch runs (LINES=, KILLS=)
#   hostile, drill   attacks a gateway (REQUESTS=, SEED=); breaks a model's servers (CALLS=)
#   windows          measures what a target of strict rate limits gets (SECONDS=)
#   audit            known vulnerabilities of packages, and an SBOM
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: run test nightly fuzz records chains hostile drill windows batches audit check docs bench fairness fairness-live screenshots lock install install-dev clean

run: install
	$(BIN)/fairlane demo $(if $(PORT),--port $(PORT))

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Fairlane needs Python 3.11 or newer; $(PYTHON) is %d.%d. Name another one: make PYTHON=python3.13" % sys.version_info[:2])'
	@# where this fails half-way (Debian without python3-venv) the next run starts from scratch
	$(PYTHON) -m venv $(VENV) || { rm -f $@; exit 1; }

# First what is locked, each file checked against its hash, the tool that builds included; then ourselves, with nothing else.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python

$(VENV)/.installed: pyproject.toml requirements.lock | $(VENV)/bin/python
	$(PIP) --require-hashes -r requirements.lock
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml requirements-dev.lock | $(VENV)/bin/python
	sed -n '/^uv==/,/[^\]$$/p' requirements-dev.lock | $(PIP) --require-hashes -r /dev/stdin
	@# uv takes a tenth of pip's time, and knows nothing of pip's own settings: where packages come from elsewhere, pip installs them
	$(UV) --require-hashes -r requirements-dev.lock || $(PIP) --require-hashes -r requirements-dev.lock
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@ $(VENV)/.installed

# Tests start many processes, which would compile the same sources repeatedly: compiled files are kept.
test nightly fuzz records chains hostile drill windows batches: export PYTHONDONTWRITEBYTECODE =

test: install-dev
	sh tests/install-tools
	$(BIN)/python -m pytest -n 6 --dist worksteal

nightly: install-dev
	sh tests/install-tools
	$(BIN)/python -m pytest -n 6 --dist worksteal --nightly
	$(MAKE) --no-print-directory fuzz

fuzz: install-dev
	FAIRLANE_LONG=1 $(BIN)/python -m pytest --nightly tests/contract/store/test_grant_order.py tests/contract/store/test_scheduler_machine.py \
	  tests/contract/store/test_windows_machine.py tests/properties/test_worker_pick.py tests/integration/test_document.py

records: install-dev
	FAIRLANE_LONG=1 FAIRLANE_TASKS=$(or $(TASKS),100000) $(BIN)/python -m pytest --nightly tests/integration/records/test_every_task_once.py

batches: install-dev
	FAIRLANE_LONG=1 FAIRLANE_LINES=$(or $(LINES),50000) FAIRLANE_KILLS=$(or $(KILLS),10) \
	  $(BIN)/python -m pytest -s --nightly tests/integration/batches/test_batch_kills.py

chains: install-dev
	FAIRLANE_LONG=1 FAIRLANE_KILLS=$(or $(KILLS),500) $(BIN)/python -m pytest -s --nightly tests/integration/kills/chains

hostile: install-dev
	sh tests/install-tools
	FAIRLANE_REQUESTS=$(or $(REQUESTS),200000) FAIRLANE_SEED=$(or $(SEED),9) $(BIN)/python -m pytest -s --nightly tests/hostile

drill: install-dev
	sh tests/install-tools
	FAIRLANE_CALLS=$(or $(CALLS),400) $(BIN)/python -m pytest -s --nightly tests/drill

windows: install-dev
	FAIRLANE_SECONDS=$(or $(SECONDS),60) $(BIN)/python -m pytest -s --nightly tests/windows

# build/sbom.json lists the packages of the image (CycloneDX); then known weaknesses of them, and of the pages' vendored JavaScript.
audit: build/audit/bin/pip-audit
	build/audit/bin/cyclonedx-py requirements --output-reproducible -o build/sbom.json requirements-image.lock
	build/audit/bin/pip-audit --disable-pip -r requirements-image.lock --require-hashes
	cp web/static/vendor/package.json build/audit/
	cd build/audit && npm install --package-lock-only --ignore-scripts --silent && npm audit

build/audit/bin/pip-audit:
	$(PYTHON) -m venv build/audit
	build/audit/bin/pip install --quiet cyclonedx-bom==7.5.0 pip-audit==2.10.1

check: install-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m checks.words
	$(BIN)/python -m checks.ratchet
	$(BIN)/python -m checks.site
	$(BIN)/python -m checks.pages

docs: install-dev
	$(BIN)/python -m checks.site

bench: install-dev
	$(BIN)/python -m bench

screenshots: install-dev
	sh tests/install-tools
	$(BIN)/python -m tests.screenshots

fairness: install-dev
	$(BIN)/python -m bench.fairness

fairness-live: install-dev
	$(BIN)/python -m bench.fairness.live

# What runs, what the image holds (the extra `otel` too), and with what tests need: files that agree. Versions stay as they are where
# they still fit.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --group build --no-header --no-annotate \
  --no-emit-index-url --no-emit-find-links pyproject.toml

lock: install-dev
	$(LOCK) --all-extras -o requirements-dev.lock
	$(LOCK) -c requirements-dev.lock -o requirements.lock
	$(LOCK) -c requirements-dev.lock --extra otel --extra s3 -o requirements-image.lock

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
