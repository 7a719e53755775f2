# make demo   find wrong labels in a real data set, in three minutes with installing
# make test   the whole test suite
# make quick  the tests that are not marked slow, in about two minutes
# make site   the documentation, into site/
# make dist   the wheel and the sdist, into dist/, and the software bill of materials, into sbom/
# make fuzz   ten thousand damaged files of each format
# make faults full disks, limits of the system, and kills of audits, corrections, the review server and workers; takes minutes
# make tools-check   Label Studio and FiftyOne in environments of their own (runs/tools), with an import and a round trip
# Each target makes its own virtual environment first. Nothing else needs to be installed but Python >= 3.10.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= auto

.PHONY: demo test quick fuzz faults lint format bench docs site dist clean wheel-test tools-check

demo: $(VENV)/.base
	$(BIN)/compensate demo

test: $(VENV)/.test
	OMP_NUM_THREADS=1 SCIPY_ARRAY_API=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup

quick: $(VENV)/.test
	OMP_NUM_THREADS=1 SCIPY_ARRAY_API=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup -m "not slow" tests

lint: $(VENV)/.lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/bandit -q -c pyproject.toml -r src

# FUZZ damaged files of each format that is read; the counts go to results/fuzz.json.
FUZZ ?= 10000
fuzz: $(VENV)/.test
	OMP_NUM_THREADS=1 nice -n 10 $(BIN)/python tests/reliability/test_fuzz_readers.py $(FUZZ) results/fuzz.json

# FAULTS kills of each command, before each of its first changes of a file.
FAULTS ?= 30
faults: $(VENV)/.test
	FAULTS=$(FAULTS) OMP_NUM_THREADS=1 SCIPY_ARRAY_API=1 $(BIN)/python -m pytest -q tests/reliability/test_many_kills.py \
		tests/reliability/test_faults.py tests/training/test_checkpoints.py \
		tests/auditing/test_run_folder.py tests/auditing/test_review_server.py tests/auditing/test_pieces.py \
		-k "many_kills or reliability or kill or full or cut or idleness or interrupted"

format: $(VENV)/.lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

docs: $(VENV)/.base
	$(BIN)/compensate methods --markdown docs/methods.md
	$(BIN)/python -m experiments taxonomy --html docs/taxonomy-grid.html
	$(BIN)/python -m experiments.pages results docs/results.md
	$(BIN)/python -m benchmarks.pages docs/performance.md
	$(BIN)/python -m experiments figure --markdown docs/figures.md
	$(BIN)/python -m experiments gallery

site: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The wheel alone, installed by its name in environments outside of this folder, and the time of its first minute.
wheel-test: $(VENV)/.release
	$(BIN)/python tests/packaging/try_wheel.py $(RESULTS)

TOOLS ?= runs/tools
tools-check: $(VENV)/.test
	$(BIN)/python tests/packaging/try_tools.py $(TOOLS)

# The bill of materials lists what an installation with encoders brings, in the CycloneDX format.
dist: $(VENV)/.release
	rm -rf dist sbom
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv sbom/venv
	sbom/venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --find-links dist "compensate[encoders]"
	sbom/venv/bin/python -m pip uninstall --quiet --yes pip
	$(BIN)/cyclonedx-py environment sbom/venv/bin/python --output-reproducible --validate --output-file sbom/compensate.cdx.json

clean:
	rm -rf $(VENV) build dist sbom .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[plots]"
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[test]"
	touch $@

$(VENV)/.lint: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[test,lint]"
	touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[docs]"
	touch $@

$(VENV)/.release: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) "build>=1.2" "twine>=6.1" "cyclonedx-bom>=6"
	touch $@
