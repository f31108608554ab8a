# `make help` lists the targets. All logic is in tools/testbed (Python, standard library only).
PYTHON ?= python3
RUN_DIR ?= .run
MANIFESTS ?= examples
VENV := .venv/bin
TESTBED := PYTHONPATH=tools PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m testbed

.PHONY: help env packages run down test lint unit integration bench gen python

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

python:
	@command -v $(PYTHON) >/dev/null || { apt-get update -q && apt-get install -q -y --no-install-recommends python3; }

env: python ## Make .venv with .venv/bin/pykubelet, exactly as uv.lock says
	@$(TESTBED) env

packages: python
	@$(TESTBED) packages

run: python ## Start a node on examples/ and show its pods until Ctrl-C (root)
	@$(TESTBED) run --folder $(RUN_DIR) --manifests $(MANIFESTS)

down: python ## Remove everything that `make run` made (root)
	@$(TESTBED) down --folder $(RUN_DIR)

test: packages lint ## Lint, types, architecture, all tests with real containers (root)
	$(VENV)/pytest

lint: env ## Style, types and the architecture's contracts
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	$(VENV)/mypy
	$(VENV)/lint-imports

unit: env ## The tests that need neither root nor containers
	$(VENV)/pytest -m "not integration"

integration: packages env ## The tests with real containers (root)
	$(VENV)/pytest -m integration

bench: packages env ## Speed and cost, against the floor of raw runtime calls (root)
	$(VENV)/python -m bench

gen: env ## Generate the API structs and the protobuf modules again
	$(VENV)/python tools/gen_api.py
	$(VENV)/python tools/gen_proto.py
