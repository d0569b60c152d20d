# `make` prints the targets. Each one builds .venv first when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ROWS ?= 1000000
ROUNDS ?= 5
SENDS ?= 20000
LETTERS ?= 50000

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-long test-bench test-system check ci lint types contracts migrations lock bench-purge bench-tenfold bench-send bench-replay bench-import bench-own docs clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "pushops needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": say make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(VENV)/.ready ## build .venv from the lock file

demo: setup ## purge 300,000 tombstones beside live traffic, then send to 20,000 through an outage, and show it
	@$(BIN)/python -m pushops.demo

test: setup ## run the tests that the wheels alone can run, but for the long ones (under five minutes)
	$(BIN)/pytest -q -n 2 -m "not long" tests/fault tests/flow tests/db tests/unit

test-long: setup ## run the long ones: workers killed, servers restarted, whole stories (five minutes more)
	$(BIN)/pytest -q -n 2 -m long tests/fault tests/flow

test-fast: setup ## run the tests without a worker or a broker
	$(BIN)/pytest -q -n 2 tests/unit tests/db

test-bench: setup ## run every benchmark at a size that says nothing, so that none rots
	$(BIN)/pytest -q tests/bench

test-system: setup ## run what needs Debian packages, installing them (root)
	PYTEST=$(BIN)/pytest tests/system/run

lint: setup ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## mypy, strict
	$(BIN)/mypy

contracts: setup ## import-linter: imports go one way down
	$(BIN)/lint-imports

migrations: setup ## squawk on the SQL of every migration
	@sql=$$($(BIN)/pushops migrate --sql) && printf '%s\n' "$$sql" | $(BIN)/squawk --stdin-filepath migrations.sql

check: lint types contracts migrations test ## everything that must pass before a commit lands

ci: check test-system ## what CI runs (root, for Debian packages)

bench-purge: setup ## measure the purge against what one would write oneself (ROWS=1000000 ROUNDS=5)
	@$(BIN)/python -m bench.purge --rows $(ROWS) --rounds $(ROUNDS)

bench-tenfold: setup ## measure what ten times the rows do to the rate and to the dispatcher's memory
	@$(BIN)/python -m bench.tenfold

bench-send: ROUNDS = 3
bench-send: setup ## measure sending against what one would send with oneself (SENDS=20000 ROUNDS=3)
	@$(BIN)/python -m bench.send --sends $(SENDS) --rounds $(ROUNDS)

bench-replay: ROUNDS = 3
bench-replay: setup ## measure replaying dead letters against sending, triage, and a paced drain (LETTERS=50000 ROUNDS=3)
	@$(BIN)/python -m bench.replay --letters $(LETTERS) --rounds $(ROUNDS)

bench-import: ROUNDS = 3
bench-import: setup ## measure an import against a plain COPY and index build of what it stored (ROWS=1000000 ROUNDS=3)
	@$(BIN)/python -m bench.importing --rows $(ROWS) --rounds $(ROUNDS)

bench-own: ROUNDS = 3
bench-own: setup ## measure tables of one's own: swept, retired by partition, imported (ROWS=1000000 ROUNDS=3)
	@$(BIN)/python -m bench.own --rows $(ROWS) --rounds $(ROUNDS)

docs: setup ## print the pages that come from the code
	$(BIN)/python -c 'from pushops.events.catalog import as_markdown; print(as_markdown(), end="")' > docs/events.md
	$(BIN)/python -c 'from pushops.subscriptions.lifecycle import document; print(document(), end="")' > docs/lifecycle.md
	$(BIN)/python -c 'from pushops.delivery.classify import load_table, wording; print(wording.as_markdown(load_table()), end="")' > docs/answers.md

lock: setup ## pin every dependency again, with hashes
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate --output-file requirements.lock pyproject.toml

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info
