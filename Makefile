# Needs only make, python3 (3.11 or newer), and access to a package index.
PYTHON ?= python3
DEMO_ENV ?= .venv-demo
TEST_ENV ?= .venv-test
DOCS_ENV ?= .venv-docs
DOCS_OUT ?= docs/_build/html
DIST_ENV ?= .venv-dist
DIST ?= dist

# Python keeps what it compiles, whatever the caller has set: else each worker and each program that
# a test starts compiles all that it imports, four times as long as the start takes otherwise.
export PYTHONDONTWRITEBYTECODE :=

SOURCES := $(shell find virtualds virtualds_cli virtualds_server -name '*.py')

.PHONY: help demo mutants test test-all soak fuzz lint types docs docs-versions notebooks screenshots packages dist clean

help:
	@echo "make demo   build a small archive, scan it, read it back, draw it"
	@echo "make test   run the quick tests: about 5 minutes on two cores"
	@echo "make test-all   run all tests: about 16 minutes    make soak  try ten times as much (a night)"
	@echo "make lint   check style and format      make types  check types"
	@echo "make mutants   break the code in small ways, and count which breaks the tests find (an hour or more)"
	@echo "make fuzz   damage files of all kinds and read them (hours; can be interrupted)"
	@echo "make docs   build the pages, strictly    make clean  remove built files"
	@echo "make docs-versions   build the pages of every tag, each in a folder of its own"
	@echo "make dist   build the wheel and the source, and try both on every Python that is here"
	@echo "make notebooks   run the notebooks, and keep what they print and draw"
	@echo "make screenshots   draw the pictures of the page for the docs (needs chromium)"

demo: $(DEMO_ENV)/installed
	$(DEMO_ENV)/bin/virtualds demo

# What else pytest is told: make test ARGS='-k zarr'
ARGS ?=
# Each process begins with tests that lie together, so most servers and files are made in one of them.
PROCESSES := -n 2 --dist worksteal
test: $(TEST_ENV)/installed
	$(TEST_ENV)/bin/pytest $(PROCESSES) -m 'not full' $(ARGS)

test-all: $(TEST_ENV)/installed
	$(TEST_ENV)/bin/pytest $(PROCESSES) $(ARGS)

# So many times as many examples, seeds and rounds; and the cases and tests that take too long else.
EFFORT ?= 10
soak: $(TEST_ENV)/installed
	$(TEST_ENV)/bin/pytest $(PROCESSES) --effort $(EFFORT) --timeout 7200 $(ARGS)

# This folder keeps the findings and the progress, so the next run resumes.
FUZZ_STATE ?= fuzz-state
fuzz: $(TEST_ENV)/installed
	cd tests && ../$(TEST_ENV)/bin/python -m fuzz --state ../$(FUZZ_STATE) $(FUZZ)

# Packages whose code is broken, and options: make mutants MUTANTS='codecs --mutants 10'
MUTANTS ?=
mutants: $(TEST_ENV)/installed
	cd tests && ../$(TEST_ENV)/bin/python -m mutation --state ../mutation-state $(MUTANTS)

lint: $(TEST_ENV)/installed
	$(TEST_ENV)/bin/ruff check .
	$(TEST_ENV)/bin/ruff format --check .

types: $(TEST_ENV)/installed
	$(TEST_ENV)/bin/mypy

docs: $(DOCS_ENV)/installed
	$(DOCS_ENV)/bin/sphinx-build -W --keep-going -q -b html docs $(DOCS_OUT)

docs-versions:
	.ci/build-versions docs/_build/versions

# The wheel is built from the source, so it lacks what the source lacks.
packages: $(DIST_ENV)/installed
	rm -rf $(DIST)
	$(DIST_ENV)/bin/python -m build --no-isolation --outdir $(DIST) . > $(DIST_ENV)/log

PYTHONS ?= 3.11 3.12 3.13 3.14
dist: packages
	.ci/check-source $(DIST)/*.tar.gz
	.ci/try-packages "$(PYTHONS)" $(DIST)/*.whl $(DIST)/*.tar.gz

# The one about other tools needs Python 3.12, and an environment with '.[test,interop]':
# python tests/notebook_runs.py notebooks/from_other_tools.ipynb
NOTEBOOKS ?= $(filter-out notebooks/from_other_tools.ipynb,$(wildcard notebooks/*.ipynb))
notebooks: $(TEST_ENV)/installed
	$(TEST_ENV)/bin/python tests/notebook_runs.py $(NOTEBOOKS)

screenshots: $(TEST_ENV)/installed
	$(TEST_ENV)/bin/python docs/screenshots.py

clean:
	rm -rf $(DEMO_ENV) $(TEST_ENV) $(DOCS_ENV) $(DIST_ENV) $(DIST) docs/_build virtualds-demo $(FUZZ_STATE)

# The demo runs the built package, like a user, so it is built again when a source file changes.
$(DEMO_ENV)/installed: pyproject.toml $(SOURCES)
	$(PYTHON) -m venv $(DEMO_ENV)
	$(DEMO_ENV)/bin/python -m pip install --quiet --disable-pip-version-check '.[demo]'
	@touch $@

# The newest pip finds what fits in half the time of the one that Python 3.11 brings.
$(TEST_ENV)/installed: pyproject.toml
	$(PYTHON) -m venv --upgrade-deps $(TEST_ENV)
	$(TEST_ENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@

$(DOCS_ENV)/installed: pyproject.toml
	$(PYTHON) -m venv --upgrade-deps $(DOCS_ENV)
	$(DOCS_ENV)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[docs]'
	@touch $@

$(DIST_ENV)/installed:
	$(PYTHON) -m venv $(DIST_ENV)
	$(DIST_ENV)/bin/python -m pip install --quiet --disable-pip-version-check build hatchling
	@touch $@
