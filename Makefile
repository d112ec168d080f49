# make demo and make test set up .venv by themselves; make help lists the rest.

PYTHON ?= $(shell python3.11 -c "" 2>/dev/null && echo python3.11 || echo python3)
PY := .venv/bin/python
QUIET ?= -qq
PIP := $(PY) -m pip $(QUIET) --disable-pip-version-check install -c constraints.txt
PYTEST_FLAGS ?= -q -n auto --dist worksteal
# Not with -q: then --strict passes what it should refuse.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
BROWSER := command -v chromium >/dev/null && command -v chromedriver >/dev/null

.PHONY: help venv demo test docs bench format clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

venv: .venv/.installed ## create .venv and install everything but the peers, once

.venv/.installed: pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; v = sys.version.split()[0]; sys.version_info < (3, 11) and sys.exit( \
	  f"pzobo needs Python 3.11 or newer, and $(PYTHON) is {v}. Try: make PYTHON=/path/to/python3.11")'
	@echo "setting up .venv (once, a few minutes)"
	@$(PY) -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear .venv
	@$(PIP) -e '.[bench,dev,docs]' || { echo "pip failed; to see why: make venv QUIET="; exit 1; }
	@touch $@

.venv/.peers: .venv/.installed
	@echo "installing the peers (once)"
	@$(PIP) -e '.[peers]'
	@touch $@

demo: venv ## which data should be trusted? a table, and a page with pictures (demo.html)
	@$(PY) -m pzobo.cli demo

test: venv ## lint, format, types, documentation and tests
	@$(BROWSER) || ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ] || { \
	  echo "installing chromium, for the tests in a browser (once)"; export DEBIAN_FRONTEND=noninteractive; \
	  { apt-get update -qq && apt-get install -y -qq chromium chromium-driver; } >/dev/null 2>&1 || true; }
	@echo "ruff check"  && $(PY) -m ruff check -q
	@echo "ruff format" && $(PY) -m ruff format -q --check
	@echo "mypy"        && $(PY) -m mypy --no-error-summary
	@echo "docs"        && { out=$$($(MKDOCS) 2>&1) || { printf '%s\n' "$$out"; exit 1; }; }
	@echo "pytest"; OMP_NUM_THREADS=1 $(PY) -m pytest $(PYTEST_FLAGS); code=$$?; $(BROWSER) || printf '%s\n' \
	  "not run: the tests of the report and of the documentation in a browser, since chromium or chromedriver is missing." \
	  "To run them: apt-get install chromium chromium-driver (as root), then make test."; exit $$code

docs: venv ## build the documentation into site/
	@$(MKDOCS)

bench: venv .venv/.peers ## speed and memory beside the peers
	@$(PY) -m benchmarks

format: venv ## format the code and apply safe fixes
	@$(PY) -m ruff check -q --fix
	@$(PY) -m ruff format -q

clean: ## remove .venv and everything generated
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
	@find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
