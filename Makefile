# Two commands suffice: `make demo` trains a model, `make test` runs the tests.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo install test test-slow check fmt wheel clean

demo: install
	$(BIN)/grpo train recipes/dapo.yaml

install: $(VENV)/.installed

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fmt: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(VENV)/.installed-dev
	$(BIN)/pip wheel --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) dist

$(VENV)/.torch:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	sh .ci/install-torch $(BIN)/python
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.torch pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.installed
