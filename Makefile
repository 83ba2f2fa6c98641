# Everything runs in one virtual environment that 'make' creates.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

# Threads that spin while they wait make two busy cores ten times slower.
export OMP_WAIT_POLICY := PASSIVE
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test check install clean

demo: install
	$(BIN)/driftlab demo --resume

test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	# torch first and alone: asked for by another package it may come as a build for accelerators, gigabytes larger.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,gguf,grpo]'
	touch $(READY)

clean:
	rm -rf $(VENV)
