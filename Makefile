# make demo: the main job on the embedded data.   make test: the test suite.   Both set up everything they need.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
WORKERS ?= 2
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check
TORCH  := torch==2.13.0

.PHONY: help setup demo test check docs bench fuzz browser test-slow test-attack test-kills test-cluster test-reproduce test-cifar clean

help:  # this list
	@grep -E '^[a-z-]+:.*#' Makefile | sed -E 's/^([a-z-]+):[^#]*#/\1:/'

setup: $(STAMP)  # create .venv and install everything

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "arquant needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch (CPU), then everything else, into $(VENV): some minutes"
	@# the CPU build: from where pip looks, else from PyTorch's own index; PyPI's build for Linux brings CUDA along
	$(PIP) $(TORCH)+cpu 2>/dev/null || $(PIP) --index-url https://download.pytorch.org/whl/cpu $(TORCH) || $(PIP) $(TORCH)
	$(PIP) -c constraints.txt -e '.[dev]'
	touch $(STAMP)

test: $(STAMP)  # the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS)

check: $(STAMP)  # lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)  # the documentation site, in site/; every link checked, nothing fetched from another host
	$(PIP) -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "site/start.html; its search box needs a server: python -m http.server -d site"

demo: $(STAMP)  # the main job on the embedded images, some minutes
	$(BIN)/arquant demo --out runs/demo

bench: $(STAMP)  # certification against ART and a plain loop
	$(BIN)/python benchmarks/certify.py

fuzz: $(STAMP)  # more than 10,000 damaged files in all: 1,000 for each of the fuzz tests
	ARQUANT_FUZZ=1000 $(BIN)/python -m pytest -q -k fuzz

browser:  # Chromium and its driver for the tests of the report, where apt can install them; without it they are skipped
	@{ command -v chromium && command -v chromedriver; } > /dev/null || { timeout 600 apt-get -qq update && \
	timeout 600 apt-get -qq install -y --no-install-recommends chromium chromium-driver > /dev/null; } || \
	echo "no Chromium here: the tests of the report in a browser will be skipped"

test-slow: $(STAMP)  # whole networks through every engine, noise in bulk: some minutes
	$(BIN)/python -m pytest -m slow --ignore tests/certification/test_attack.py --ignore tests/searching/test_killed_search.py \
	--ignore tests/commands/test_reproduce.py --ignore tests/engines/test_cluster.py

test-attack: $(STAMP)  # attacks inside certified radii: 20 images, some minutes
	$(BIN)/python -m pytest -m slow tests/certification/test_attack.py

test-kills: $(STAMP)  # 100 random kills of a small search; the result must not change
	ARQUANT_KILLS=100 $(BIN)/python -m pytest -m slow tests/searching/test_killed_search.py

test-reproduce: $(STAMP)  # every table and figure of the paper at scale smoke: some five minutes
	$(BIN)/python -m pytest -m slow tests/commands/test_reproduce.py

test-cluster: $(STAMP)  # a Ray cluster of several nodes on this machine; nodes leave and join under load
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow tests/engines/test_cluster.py  # a node here has one place

test-cifar: $(STAMP)  # what needs the full CIFAR-10
	$(BIN)/arquant data cifar10
	$(BIN)/python -m pytest -m cifar

clean:  # remove .venv, runs and site
	rm -rf $(VENV) runs site
