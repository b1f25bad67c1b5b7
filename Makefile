# Every target makes its virtual environment first, once: that needs Python and a network to PyPI.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
READY := .venv/ready
TOOLS := .venv/tools
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: test demo generate format bench clean

test: $(TOOLS)  ## linters, type checkers and tests; ARGS="-k mxfp4" chooses
	$(BIN)/python -m pytest $(ARGS)

demo: $(READY)  ## which kernels would run where and why, and a layer on this machine
	$(BIN)/python examples/demo.py $(ARGS)

generate: $(READY)  ## compile schemes/ into generated/
	$(BIN)/qscheme generate

format: $(TOOLS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(TOOLS)  ## what a bound function costs on the host
	$(BIN)/python benchmarks/host.py $(ARGS)

clean:
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "qscheme needs Python 3.10 or later: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	@echo "Installing torch into .venv; the first time takes some minutes."
	$(INSTALL) pip
	$(INSTALL) --build-constraint constraints.txt --editable . numpy
	@touch $@

# Triton's interpreter computes in AMD's FP8 formats from 3.9 on, whatever triton a build of torch asks for.
$(TOOLS): $(READY)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the tests need Python 3.11 or later: make clean; make PYTHON=python3.12 test")'
	@echo "Installing AITER, Triton and the tools."
	$(INSTALL) --group dev
	$(INSTALL) --no-deps --group interpreter
	@touch $@
