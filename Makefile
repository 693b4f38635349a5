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

.PHONY: demo test fuzz test-vision static check wheel docs bench bench-gpu clean help

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

demo: $(INSTRUMENT) ## train on digits with true and random labels, measure all five families, write two pages
	$(BIN)/theodolite demo

# The tests' tensors are small: a second thread per operation would only wait for the first.
# Matrix units (AMX) that a virtual machine announces and does not have end bfloat16 tests at once.
# Many tests start processes: modules are compiled once, also where the environment forbids it.
test: export OMP_NUM_THREADS = 1
test: export PYTHONDONTWRITEBYTECODE =
test: export ONEDNN_MAX_CPU_ISA = AVX512_CORE_BF16
test: $(READY) ## the whole test suite with doctests
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

fuzz: export OMP_NUM_THREADS = 1
fuzz: $(READY) ## damaged records, odd command lines and odd data, drawn from SEED for SECONDS
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),600) --seed $(or $(SEED),0)

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

$(BENCH)/.ready: benchmarks/requirements.txt benchmarks/peers.txt pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet --constraint constraints.txt --editable . --editable papers -r benchmarks/requirements.txt
	$(BENCH)/bin/pip install --quiet --no-deps -r benchmarks/peers.txt
	touch $@

bench: $(BENCH)/.ready ## ratios against peers and against the floor, in an environment of its own
	$(BENCH)/bin/python -m benchmarks $(SIZE)

bench-gpu: $(BENCH)/.ready ## the table of a GPU, beside a plain pass and peers, into benchmarks/README.md
	$(BENCH)/bin/pip install --quiet --constraint constraints.txt torchvision
	$(BENCH)/bin/python -m benchmarks.gpu --device cuda --write

# The main environment and the tools of the site. Pages of the ledger are written from the records,
# tutorials are executed (or taken from stored outputs where their data are missing).
# With --quiet no warning would be counted, so --strict would let dead links pass.
$(DOCS)/.ready: $(READY) docs/requirements.txt
	$(PYTHON) -m venv $(DOCS)
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		> $$($(DOCS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/main-environment.pth
	$(DOCS)/bin/pip install --quiet --no-compile --constraint constraints.txt -r docs/requirements.txt
	touch $@

docs: export NO_MKDOCS_2_WARNING = 1
docs: $(DOCS)/.ready ## the documentation site with tutorials and ledger, in site/index.html
	$(BIN)/theodolite study ledger --site docs/ledger
	$(DOCS)/bin/python docs/tutorials/build.py
	$(DOCS)/bin/python -m mkdocs build --strict

clean: ## remove environments and caches
	rm -rf $(VENV) $(BENCH) $(CLEAN) $(VISION) $(DOCS) dist site docs/ledger .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
