# Two commands suffice: `make demo` trains a model, `make test` runs the tests.
PYTHON    ?= python3
VENV      ?= .venv
VLLM_VENV ?= .venv-vllm
BIN       := $(VENV)/bin

.PHONY: demo install test test-slow test-vllm gpu-smoke check fmt wheel clean

demo: install
	$(BIN)/grpo train recipes/dapo.yaml

install: $(VENV)/.installed

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

# vLLM pins many libraries, so it has an environment of its own.
test-vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/python -m pytest tests/vllm

# On a CUDA machine, in the environment that is there: at most five minutes.
gpu-smoke:
	$(PYTHON) benchmarks/gpu_smoke.py

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
	rm -rf $(VENV) $(VLLM_VENV) dist

$(VLLM_VENV)/.installed: pyproject.toml constraints.txt .ci/install-vllm
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	sh .ci/install-vllm $(VLLM_VENV)/bin/python
	touch $@

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
