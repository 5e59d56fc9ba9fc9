# make demo and make test do everything by themselves from a bare clone.
# The system's Python before others on PATH, if it has what is needed; else the error below says what is missing.
PYTHON ?= $(or $(shell for python in /usr/bin/python3.11 python3.11 python3; do \
  $$python -c 'import ctypes, ensurepip; ctypes.CDLL("libpython3.11.so.1.0")' 2>/dev/null && command -v $$python && break; \
  done), \
  $(firstword $(shell command -v python3.11 python3)))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Only the files with such tests, since looking through all of them takes longer than these do.
ALONE = $(shell grep -rl --include='*.py' 'mark\.alone' tests)

# Where Triton's python backend finds the library that it embeds; some Pythons are built without.
define LIBRARY_CHECK
import os, sys
from sysconfig import get_config_var as get
places = [get("LIBDIR"), get("LIBPL"), sys.base_prefix + "/lib", f"/usr/lib/{get('MULTIARCH')}"]
name = get("INSTSONAME") or ""
sys.exit(not (".so" in name and any(os.path.isfile(f"{place}/{name}") for place in places)))
endef
export LIBRARY_CHECK

.PHONY: help setup demo catalogue test suite compiled test-fast test-all coverage test-orchestrators tools check sync-client format docs release bench soak lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

setup: $(STAMP) ## make .venv from the pinned requirements

# pip keeps one core busy, so two of them install, large packages (torch, transformers) first.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || \
	  { echo "The pinned requirements are for Python 3.11, which is not on PATH; run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c "$$LIBRARY_CHECK" || \
	  { echo "$(PYTHON) has no shared library (libpython3.11.so.1.0), which Triton needs; run apt install libpython3.11," \
	    "or make PYTHON=/path/to/one that was built with --enable-shared" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "$(VENV) could not be made; run apt install python3.11-venv" >&2; exit 1; }
	@echo "Installing the pinned requirements into $(VENV); this takes a few minutes the first time."
	@bar=off; test ! -t 1 || bar=on; pip="$(BIN)/pip --disable-pip-version-check install --progress-bar $$bar"; \
	  grep -v '^#' requirements.lock | sort --reverse | xargs --max-procs 2 --max-args 40 $$pip --no-deps --no-compile && \
	  $$pip --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup ## fetch a small real model, compile it, serve it, ask it questions, put load on it, stop
	@$(BIN)/inflight demo --out .cache/demo

catalogue: setup ## describe 2,000 made-up products of a SQLite table by a batch job, with the bill at the end
	@$(BIN)/python docs/examples/catalogue.py --out .cache/catalogue

# The tests start interpreters by the hundred, and each would compile what the one before it has compiled. Most of them
# wait most of their time, so a third worker finds room on two cores.
test test-all: export PYTHONDONTWRITEBYTECODE =
test: setup ## lint, types, import rules, and every test but the slow ones
	$(MAKE) --jobs 2 suite check
	$(BIN)/pytest -m "not slow and alone" $(ALONE) --durations 5

suite: tools compiled
	$(BIN)/pytest -m "not slow and not alone" --numprocesses 3 --dist worksteal --durations 20

compiled: setup # in a new checkout, one process compiles the tests' modules before three would at once
	@$(BIN)/pytest --collect-only --quiet > /dev/null || true

# The runtime also runs in Triton's GPU container, which has Python 3.12 and numpy 2.
PYTHON312 ?= $(shell for python in python3.12 $(HOME)/.pyenv/versions/3.12.*/bin/python; do \
  $$python -c 'import ensurepip' 2>/dev/null && echo $$python && break; done)
RUNTIME := .cache/python3.12
test-fast: export PYTHONDONTWRITEBYTECODE =
test-fast: setup $(if $(PYTHON312),$(RUNTIME)/.installed) ## the inner loop: unit tests and the fake engine, and the runtime's on Python 3.12 where there is one
	$(BIN)/pytest --fast -m "not slow and not alone" --numprocesses 3 --dist worksteal --durations 20
	@$(if $(PYTHON312),set -x; PYTHONPATH=. $(RUNTIME)/bin/python -m pytest --fast -m "not slow and not alone" --numprocesses 3 tests/runtime tests/text, \
	  echo "No Python 3.12 was found, so those of the runtime and of text ran on 3.11 alone; name one with make test-fast PYTHON312=PATH")

coverage: setup ## which lines of the product the inner loop's tests run, as a table and in .cache/coverage
	$(BIN)/pytest --fast -m "not slow and not alone" --numprocesses 3 --dist worksteal \
	  --cov --cov-report term:skip-covered --cov-report html:.cache/coverage

$(RUNTIME)/.installed: tests/runtime/python3.12.txt
	$(PYTHON312) -m venv $(RUNTIME)
	$(RUNTIME)/bin/pip --disable-pip-version-check --quiet install --requirement $<
	@touch $@

test-all: check browser ## every test
	$(BIN)/pytest -m "not alone" --numprocesses 3 --dist worksteal --timeout 900 --hypothesis-profile thorough
	$(BIN)/pytest -m alone --timeout 900 $(ALONE)

# Each in an environment of its own, of versions known to work together.
ORCHESTRATORS := prefect airflow
test-orchestrators: setup $(ORCHESTRATORS:%=.cache/orchestrators/%/.installed) ## run the Prefect flow and the Airflow DAG of docs/examples for real
	$(BIN)/pytest tests/orchestrators

.cache/orchestrators/%/.installed: tests/orchestrators/%.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip --disable-pip-version-check --quiet install --no-deps --requirement $<
	@touch $@

tools: setup ## install Chromium and espeak-ng for tests of pages and speech: the machine's, or Debian's packages
	@$(BIN)/python -m tests.fixtures.browser
	@$(BIN)/python -m tests.fixtures.speech

check: setup ## ruff, mypy, import-linter, hadolint, and whether the blocking client is up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/check_words.py --python
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/unasync.py --check
	find docker -name '*Dockerfile*' 2>/dev/null | xargs --no-run-if-empty $(BIN)/hadolint

sync-client: setup ## generate the blocking client from the asyncio client
	$(BIN)/python scripts/unasync.py

format: setup ## apply ruff's fixes and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup ## build the documentation site into .cache/site, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Into an environment with nothing else in it, as a user would install it.
RELEASE := .cache/release
release: setup ## build wheel and sdist into dist, check them, and install the wheel into an empty environment
	rm -rf dist $(RELEASE)
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip --disable-pip-version-check --quiet install dist/*.whl
	cd $(RELEASE) && bin/python -P -c "import inflight, inflight_client; inflight_client.Client" && bin/inflight --version

bench: setup ## all benchmarks, with a page of results in benchmarks/RESULTS.md at the end
	$(BIN)/python -m benchmarks

soak: setup ## 15 minutes of twice the load that the server serves, with clients that disconnect
	$(BIN)/python -m benchmarks.soak --minutes 15

# What optimum-intel asks for and nothing here imports; torchvision has to be built for the very torch.
UNUSED := torchvision pillow openvino-tokenizers
lock: ## regenerate requirements.lock: what pip chooses today for all extras
	$(PYTHON) -m venv .cache/lock-venv
	.cache/lock-venv/bin/pip install --disable-pip-version-check --progress-bar off '.[build,serve,audio,speech,otlp,s3,load,batch,evaluate,postgresql,queues,ray,docs,dev]'
	{ echo "# Versions known to work together, for Python 3.11 on x86-64 Linux; written by \`make lock\`."; \
	  .cache/lock-venv/bin/pip freeze --exclude inflight $(UNUSED:%=--exclude %) | sed 's/+cpu$$//'; } > requirements.lock
	rm -rf .cache/lock-venv

clean: ## remove what the targets above made
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache
