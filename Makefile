# Every target makes its virtual environment first: it needs Python 3.10 or later, and a network to PyPI once.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
READY := .venv/ready

.PHONY: test demo generate format bench clean

test: $(READY)  ## linters, type checkers and tests; ARGS="-k mxfp4" chooses
	$(BIN)/python -m pytest $(ARGS)

demo: $(READY)  ## which kernels would run where and why, and a layer on this machine
	$(BIN)/python examples/demo.py $(ARGS)

generate: $(READY)  ## compile schemes/ into generated/
	$(BIN)/qscheme generate

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## what a bound function costs on the host
	$(BIN)/python benchmarks/host.py $(ARGS)

clean:
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "qscheme needs Python 3.10 or later: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	@echo "Installing torch, AITER and the tools into .venv; the first time takes some minutes."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --build-constraint constraints.txt --group dev --editable .
	$(BIN)/python -m pip install --quiet --no-deps --group interpreter
	@touch $@
