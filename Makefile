# `make demo` and `make test` need Python 3.11 or newer and git; the rest they install into .venv.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
WORKERS ?= 2
KILLS ?= 200
SEED ?= 1

.PHONY: demo test lint check unit daemon-tests crash soak bench clean

demo: .venv/base
	$(BIN)/thalia demo

test: lint unit

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

unit: .venv/dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup tests

# All tests of the command line, each through a daemon of its own; `make test` runs a part of them both ways.
daemon-tests: .venv/dev
	THALIA_TEST_DAEMON=on $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup tests/cli

# All crash points and faults, KILLS random kills, a tenth of them of parts of a daemon: hours. `make test` runs a seeded
# part of each.
crash: .venv/dev
	report=$$(mktemp) && trap "rm -f $$report" EXIT && \
	THALIA_TEST_KILLS=$(KILLS) THALIA_TEST_SEED=$(SEED) THALIA_TEST_REPORT=$$report \
		$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup tests/chaos && \
	$(BIN)/python -m tests.chaos.daemon_arena $$report

# 20,000 steps in one session with a kill a minute: what grows with its length.
soak: .venv/dev
	$(BIN)/python -m benchmarks.soak

# Not under load: each benchmark runs its peer or floor in the same run and prints ratios.
bench: .venv/dev
	for name in eventlog appends commands git models step start resume daemon damage crash fanout background; do echo "== $$name"; $(BIN)/python -m benchmarks.$$name || exit 1; done

clean:
	rm -rf .venv .pytest_cache .ruff_cache

.venv/base: pyproject.toml bin/thalia
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found; install it, or set PYTHON=/path/to/python3.11."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/dev: .venv/base pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,local]'
	touch $@
