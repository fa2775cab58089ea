# Everything a developer runs. `make` alone lists it.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Spark starts many Pythons: without bytecode caches each of them compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed
ARGS ?=
# Each test process has servers and a Spark of its own. One more than the cores of a small machine, since tests also wait.
test: PROCESSES ?= 3
test-heavy: PROCESSES ?= 2
# At the end: the slowest tests, the reason of each skip, and last the tests that failed.
PYTEST = $(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations=10 -rsEf

.PHONY: help setup demo test test-heavy test-all check docs surface architecture mutants bench chaos services clean lock

help: ## List what there is
	@echo "Usage: make <target> [ARGS='...']"
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(STAMP) ## Make .venv with everything that is needed; does nothing when it is up to date
	@:

demo: setup ## Run the demo: events from a database transaction to a destination
	@$(BIN)/penstock demo $(ARGS)

test: setup ## Run the tests, three files at a time (ARGS='-k lease' for some of them, PROCESSES=0 for one at a time)
	@$(PYTEST) -m 'not crash and not slow' $(ARGS)
	@echo "Left out, and run by make test-all: process kills, clusters, chaos, programs that start Spark themselves."

test-heavy: setup ## Run what `make test` leaves out: process kills, clusters, chaos, programs that start Spark
	@$(PYTEST) -m 'crash or slow' $(ARGS)

test-all: test test-heavy ## Run all tests

check: setup ## Check style, types, the direction of imports, tidiness, links and prose
	@echo "ruff check";    $(BIN)/ruff check --quiet .
	@echo "ruff format";   $(BIN)/ruff format --check --quiet .
	@echo "mypy --strict"; $(BIN)/mypy --strict
	@echo "lint-imports";  $(BIN)/lint-imports --no-logo
	@echo "tidy, links, prose"; $(BIN)/python -m pytest tests/test_tidy.py tests/test_tree.py tests/test_links.py tests/test_prose.py tests/architecture
	@$(BIN)/python -m tests.test_tidy

docs: $(DOCS_STAMP) ## Build the documentation site in site/; a broken link fails the build
	@$(BIN)/python -m website

surface: setup ## Accept changes of what users can depend on: write the files in tests/surface/frozen anew
	@$(BIN)/python -m tests.surface

architecture: setup ## Write the picture of the imports in docs/internals/architecture.md anew
	@$(BIN)/python -m tests.architecture

mutants: setup ## Change the core in 200 places, one at a time, and list what no test notices (ARGS='--seed 2')
	@$(BIN)/python -m tests.support.mutants $(ARGS)

bench: setup ## Run the benchmarks (ARGS=relay, streams or objects; ARGS='relay --help' lists the options)
	@$(BIN)/python -m benchmarks $(ARGS)

chaos: setup ## Kill exactly-once streams at every step, and audit them (ARGS='--kills 20 --source queue --seed 1')
	@$(BIN)/python -m chaos $(ARGS)

services: setup ## Fetch the servers that the tests run against
	@for service in services/*; do "$$service"; done

clean: ## Remove .venv, caches and build output
	@rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

lock: $(DOCS_STAMP) ## Write the versions in .venv to constraints.txt
	@$(BIN)/python -m pip freeze --exclude-editable --exclude penstock --disable-pip-version-check > $(VENV)/frozen.txt
	@{ echo "# The versions that are tested together, written by: make lock"; \
	   sed -nE '/^[A-Za-z0-9._-]+==[^ ]+$$/p' $(VENV)/frozen.txt; } > constraints.txt
	@touch $(STAMP) $(DOCS_STAMP)
	@echo "constraints.txt: $$(grep -c == constraints.txt) packages"

# The first Python that is new enough and really runs (a version manager's may not), with `venv` in working order.
define FIND_PYTHON
find_python() { \
	for name in python3.13 python3.12 python3.11 python3; do \
		if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			recent=$$name; \
			if "$$name" -c 'import ensurepip, venv' 2>/dev/null; then python=$$name; return; fi; \
		fi; \
	done; \
}; \
recent=; python=; find_python; \
if [ -z "$$recent" ]; then echo "Penstock needs Python 3.11 or newer, and none was found: install one first" >&2; exit 1; fi; \
if [ -z "$$python" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	echo "Installing python3-venv, which $$recent lacks ..."; \
	{ apt-get -qq update && apt-get -qq install -y --no-install-recommends python3-venv; } >/dev/null; find_python; \
fi; \
if [ -z "$$python" ]; then echo "$$recent has no venv: sudo apt install python3-venv, then try again" >&2; exit 1; fi
endef

$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		$(FIND_PYTHON); \
		echo "Making $(VENV) with $$($$python --version) ..."; \
		rm -rf $(VENV); $$python -m venv $(VENV); \
	fi
	@echo "Installing Penstock and its development dependencies, about 1 GB with Spark: a minute or two ..."
	@started=$$SECONDS; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 -c constraints.txt -e '.[dev]'; \
	echo "Done in $$((SECONDS - started)) s."
	@touch $@

# Only `make docs` and `make lock` need these packages.
$(DOCS_STAMP): $(STAMP)
	@echo "Installing the documentation tools ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 -c constraints.txt -e '.[docs]'
	@touch $@
