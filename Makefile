# Every target sets up what it needs on a machine that has Python 3.11 (or newer) and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTRUMENT := $(VENV)/.instrument
LABORATORY := $(VENV)/.laboratory
READY := $(VENV)/.ready
BENCH := .venv-bench
CLEAN := .venv-wheel
VISION := .venv-vision
DOCS := .venv-docs

.PHONY: demo test test-vision static check wheel docs bench bench-gpu clean help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

# Python compiles a file when it imports it: compiling the 25,000 files of all packages takes a minute.
$(INSTRUMENT): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable .
	touch $@

$(LABORATORY): $(INSTRUMENT) papers/pyproject.toml
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable papers
	touch $@

$(READY): $(LABORATORY)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(INSTRUMENT) ## train on digits with true and shuffled labels, watch all five families, write a page
	$(BIN)/theodolite demo

# The tests' tensors are small: a second thread per operation would only wait for the first.
test: export OMP_NUM_THREADS = 1
test: $(READY) ## the whole test suite with doctests, then the messages without the shape checker
	$(BIN)/python -m pytest -q -n 2 --dist worksteal
	$(BIN)/python -m pytest -q -o addopts="--import-mode=importlib --strict-markers" tests/messages papers/tests/messages

# The main environment and two packages more: torchvision beside a CPU build of torch would break others.
$(VISION)/.ready: $(READY)
	$(PYTHON) -m venv $(VISION)
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		> $$($(VISION)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/main-environment.pth
	$(VISION)/bin/pip install --quiet --constraint constraints.txt timm torchvision
	touch $@

test-vision: export OMP_NUM_THREADS = 1
test-vision: $(VISION)/.ready ## models of timm on the command line, in an environment of its own
	$(VISION)/bin/python -m pytest -q tests/vision

static: $(READY) ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

wheel: $(READY) ## build both distributions, install them in a clean environment and use them there
	rm -rf dist $(CLEAN)
	$(BIN)/python -m build --quiet --outdir dist .
	$(BIN)/python -m build --quiet --outdir dist papers
	$(PYTHON) -m venv $(CLEAN)
	$(CLEAN)/bin/pip install --quiet --constraint constraints.txt dist/theodolite-*.whl
	cd $(CLEAN) && bin/python ../docs/examples/five_measures.py
	cd $(CLEAN) && bin/theodolite study list 2>&1 | grep -q "pip install theodolite-papers"
	$(CLEAN)/bin/pip install --quiet --constraint constraints.txt dist/theodolite_papers-*.whl
	cd $(CLEAN) && bin/theodolite study run imani2022.fig4 --size smoke --results results

check: static test wheel ## everything a release needs

$(BENCH)/.ready: benchmarks/requirements.txt pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet --constraint constraints.txt --editable . --editable papers -r benchmarks/requirements.txt
	touch $@

bench: $(BENCH)/.ready ## ratios against peers and against the floor, in an environment of its own
	$(BENCH)/bin/python -m benchmarks

bench-gpu: $(BENCH)/.ready ## the table of a GPU, beside a plain pass and peers, into benchmarks/README.md
	$(BENCH)/bin/python -m benchmarks.gpu --device cuda --write

# The site reads docstrings without importing the package: an environment of its own is enough. The
# pages of the ledger are written from the records before it is built.
$(DOCS)/.ready: docs/requirements.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --no-compile -r docs/requirements.txt
	touch $@

docs: export NO_MKDOCS_2_WARNING = 1
docs: $(LABORATORY) $(DOCS)/.ready ## the documentation site with the ledger, in site/index.html
	$(BIN)/theodolite study ledger --site docs/ledger
	$(DOCS)/bin/mkdocs build --strict --quiet

clean: ## remove environments and caches
	rm -rf $(VENV) $(BENCH) $(CLEAN) $(VISION) $(DOCS) dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
