# `make help` lists the targets. Their logic is in tools/; testbed and testvm use nothing but the standard library of Python.
PYTHON ?= python3
RUN_DIR ?= .run
CLUSTER_DIR ?= .run-cluster
STORAGE_DIR ?= .run-storage
MANIFESTS ?= examples
VENV := .venv/bin
# A file of tests stays on one worker: its tests may share an agent or a control plane. tests/conftest.py orders the files.
# Many tests wait for containers, so there are twice as many workers as the two cores of the smallest machine.
WORKERS ?= 4
PYTEST := $(VENV)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
TESTBED := PYTHONPATH=tools PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m testbed
VM_DIR ?= .vm
RUNTIMES_DIR ?= .runtimes
PACKAGER := PYTHONPATH=tools PYTHONDONTWRITEBYTECODE=1 $(VENV)/python -m packager
TESTVM := PYTHONPATH=tools PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m testvm --folder $(VM_DIR)

.PHONY: help env wheel deb image packages programs run run-cluster run-storage down test test-cluster test-crash test-takeover test-ten test-runtimes test-vm vm-shell lint format unit coverage integration bench bench-cluster docs gen python

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

python:
	@command -v $(PYTHON) >/dev/null || { apt-get update -q && apt-get install -q -y --no-install-recommends python3; }

env: python ## Make .venv with .venv/bin/pykubelet, with the versions of uv.lock
	@$(TESTBED) env

packages: python
	@$(TESTBED) packages

run: python ## Start a node on examples/ (MANIFESTS=) and show its pods until Ctrl-C; API=1 with the local API, for kubectl; RUNTIME=containerd, crio or docker, FLAGS= (root)
	@$(TESTBED) run --folder $(RUN_DIR) --manifests $(MANIFESTS) $(if $(API),--api) $(addprefix --runtime ,$(RUNTIME)) --flags="$(FLAGS)"

run-cluster: python ## Start a control plane and a node joined to it, until Ctrl-C (root; the first time builds for 5 minutes)
	@$(TESTBED) run-cluster --folder $(CLUSTER_DIR)

run-storage: python ## Start such a cluster with a CSI driver and a StatefulSet with claims, until Ctrl-C (root)
	@$(TESTBED) run-storage --folder $(STORAGE_DIR)

down: python ## Remove everything that `make run`, `run-cluster` and `run-storage` made (root)
	@$(TESTBED) down --folder $(RUN_DIR)
	@$(TESTBED) down --folder $(CLUSTER_DIR)
	@$(TESTBED) down --folder $(STORAGE_DIR)

test: packages lint ## Lint, types, architecture, all tests without and with real containers (root)
	$(PYTEST) -m "not cluster and not crash and not ten"

test-crash: packages env ## Kill the agent at every effect it has on the machine, run the largest pods, and live a month (root; long)
	$(PYTEST) --dist load -m crash

test-cluster: packages env programs ## The tests on a real control plane (root; the first time builds for 5 minutes)
	$(PYTEST) -m cluster

test-ten: packages env programs ## A cluster of ten nodes: rollout, drain, a dead node, a partition (root; 10 minutes)
	$(VENV)/pytest -m ten tests/ten

test-runtimes: packages env ## Tests that depend on the container runtime, on RUNTIMES="installed trixie forky docker FOLDER" (root)
	@$(TESTBED) test-runtimes --folder $(RUNTIMES_DIR) $(RUNTIMES)

test-takeover: packages env ## A hundred takeovers from the kubelet REFERENCE_KUBELET, and back; ten in a cluster of KUBEBUILDER_ASSETS (root; long)
	PYKUBELET_TAKEOVERS=$${PYKUBELET_TAKEOVERS:-100} $(VENV)/pytest -n0 tests/agent/test_takeover.py
	PYKUBELET_TAKEOVERS=$${PYKUBELET_CLUSTER_TAKEOVERS:-10} $(VENV)/pytest -n0 tests/cluster/test_takeover.py tests/cluster/test_takeover_claims.py

test-vm: python ## Tests in a virtual machine with systemd and cgroup v2 (root; PARTS="life groups" chooses, the first time builds)
	@$(TESTVM) run $(PARTS)

vm-shell: python ## The console of that machine, for looking around; Ctrl-A X ends it (root)
	@$(TESTVM) shell

programs: python
	@$(TESTBED) programs

lint: env ## Style, types and the architecture's contracts
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	$(VENV)/mypy
	$(VENV)/lint-imports

format: env ## Format the code, and mend what ruff can
	$(VENV)/ruff check --fix --exit-zero
	$(VENV)/ruff format

unit: env ## The tests without containers (root for a few)
	$(PYTEST) -m "not integration and not cluster and not ten and not crash"

# Coverage by branches; what decides and plans has to be covered nearly whole.
DECISIONS := */decide*.py,*/*plan*.py,*/placement/*.py,*/pykubelet_offline/*.py
coverage: env ## Branch coverage of `make unit`; fails when decisions are covered below 95 %
	$(PYTEST) -m "not integration and not cluster and not ten and not crash" --cov=src --cov-branch --cov-report=
	$(VENV)/coverage report --sort=cover --skip-covered | tail -n 40
	$(VENV)/coverage report --include="$(DECISIONS)" --fail-under=95

integration: packages env ## The tests with real containers (root)
	$(PYTEST) -m "integration and not crash"

bench: packages env ## Speed and cost, compared with raw CRI calls (root)
	$(VENV)/python -m bench

bench-cluster: packages env programs ## The same of a node in a cluster (root)
	$(VENV)/python -m bench --cluster

wheel: env ## Build dist/pykubelet-*.whl, for pip and uv
	@$(PACKAGER) wheel

deb: env ## Build dist/pykubelet_*.deb and dist/pykubelet-as-kubelet_*.deb for this Debian (root if tools are missing)
	@$(PACKAGER) deb

image: env ## Build dist/pykubelet-image-*.tar, a container image (root)
	@$(PACKAGER) image

docs: env ## Build the documentation site in .site/html, with reference pages generated from the code
	$(VENV)/uv sync -q --locked --group docs
	$(VENV)/python tools/gen_docs.py .site/pages
	$(VENV)/mkdocs build -q --strict -f mkdocs.yml

gen: env ## Generate the API structs, the protobuf modules and the tables of limits and feature gates again
	$(VENV)/python tools/gen_api.py
	$(VENV)/python tools/gen_proto.py
	$(VENV)/python tools/gen_limits.py
	$(VENV)/python tools/gen_gates.py
