# Two commands from a bare Debian or Ubuntu with python3: `make run` does the main job, `make test` passes the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: run test lint reports clean

run: $(VENV)/installed
	$(BIN)/python -m harness run suites/moe.yaml suites/dense.yaml --mode both --out out

test: $(VENV)/installed-test
	$(BIN)/python -m pytest

lint: $(VENV)/installed-test
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

reports: $(VENV)/installed
	$(BIN)/python -m harness run suites/all.yaml --mode both --out reports --no-gate

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { echo "python3 cannot make virtual environments here: install it with 'apt-get install python3-venv'" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/installed: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/python -m pip install --quiet -e ".[test]"
	@touch $@

clean:
	rm -rf $(VENV) out build dist
