# Every target sets up what it needs; `make help` lists them.
PYTHON ?= python3
STATE ?= .state
VENV := .venv
# What Debian and Ubuntu call the part of Python that makes virtual environments.
VENV_PACKAGE := $(or $(filter python3.%,$(notdir $(PYTHON))),python3)-venv
UV := $(VENV)/bin/uv
RUN := $(VENV)/bin/python -m
STAMP := $(VENV)/.synced
RUN_STAMP := $(VENV)/.synced-run
DEPLOY_STAMP := $(VENV)/.synced-deploy
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/$(VENV)
# Where it is set, every process compiles all that it imports: each start costs twice as much.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help scrub kubelet-demo test lint measure lint-deploy image image-pins test-image test-observability test-pages bench bench-scale bench-pods chaos fuzz simulate search e2e e2e-chart gpu-check demo-nvidia stress-stores stress-archive proto format docs clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 30

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fleetscrub needs Python 3.11 or newer; say which with: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make a virtual environment: install the package $(VENV_PACKAGE)" \
	  "(apt install $(VENV_PACKAGE)), then run make again" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement deploy/uv.txt

$(STAMP): pyproject.toml uv.lock | $(UV)
	$(UV) sync --frozen --quiet --python $(VENV)/bin/python
	@touch $@ $(RUN_STAMP)

# What runs the product needs no compiler and no test tools: a third of the download.
$(RUN_STAMP): pyproject.toml uv.lock | $(UV)
	$(UV) sync --frozen --quiet --no-dev --inexact --python $(VENV)/bin/python
	@touch $@

# Helm's engine is large and renders only: nothing else needs it.
$(DEPLOY_STAMP): $(STAMP) pyproject.toml uv.lock
	$(UV) sync --frozen --quiet --inexact --group deploy --python $(VENV)/bin/python
	@touch $@

scrub: $(RUN_STAMP) ## scrub a simulated fleet of 2 nodes x 8 devices on a local Ray
	$(VENV)/bin/fleet scrub --simulate 2x8 --memory 64MiB --state $(STATE)

kubelet-demo: $(RUN_STAMP) ## run pods through the real node plugin on simulated devices (DIR=, PROFILE=)
	$(RUN) tests.lab.kubelet $(if $(DIR),--dir '$(DIR)') $(if $(PROFILE),--profile '$(PROFILE)')

# The storm takes longest: begun first, it has the other tests of Ray beside it.
test: $(STAMP) ## run the tests
	$(RUN) pytest -q -m "not ray and not chart and not image and not observability and not pages" -n 2 --dist loadfile
	$(RUN) pytest -q -m "ray and not observability and not pages" -n 2 --dist loadfile --no-loadscope-reorder \
	  tests/chaos/test_storm.py $$(grep -rl --include="test_*.py" "mark\.ray" tests)

lint: $(STAMP) ## style, types, the import law and the shape in figures
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(VENV)/bin/lint-imports
	$(RUN) tests.measure

lint-deploy: $(DEPLOY_STAMP) ## render the chart by Helm's own engine and check every object of it
	$(RUN) pytest -q -m chart tests/deploy/chart

image: $(DEPLOY_STAMP) ## build the image without a container engine, as root (IMAGE=NAME:TAG, SOURCE=, MIRROR=)
	@program=$$($(RUN) tests.debian mmdebstrap) && $(RUN) deploy.image.build --mmdebstrap "$$program" \
	  $(if $(IMAGE),--name '$(IMAGE)') $(if $(SOURCE),--source '$(SOURCE)') $(if $(MIRROR),--mirror '$(MIRROR)')

image-pins: $(DEPLOY_STAMP) ## take today's versions of Debian's packages for the image (MIRROR=)
	@program=$$($(RUN) tests.debian mmdebstrap) && $(RUN) deploy.image.build --pins --mmdebstrap "$$program" \
	  $(if $(MIRROR),--mirror '$(MIRROR)')

test-image: $(DEPLOY_STAMP) ## build the image twice and look into it, as root (LONG=1: anew, and a Ray head in it)
	$(RUN) pytest -q -rs -m "image$(if $(LONG),, and not slow)" tests/deploy/image

test-observability: $(STAMP) ## a real Prometheus scrapes a simulated fleet; every alert fires (Debian's package)
	$(RUN) pytest -q -rs -m observability tests/observability

test-pages: $(STAMP) ## reports and the Ray dashboard in a headless browser (Debian's chromium)
	$(RUN) pytest -q -rs -m pages tests/pages

bench: $(STAMP) ## measure wipes, the campaign, the leases, prepare and unprepare
	$(RUN) tests.lab.bench
	$(RUN) tests.lab.bench.kubelet --json $(STATE)/bench-kubelet.json
	$(RUN) tests.lab.bench.evidence
	$(RUN) tests.performance.reconciling
	$(RUN) tests.performance.staying

bench-scale: $(STAMP) ## campaigns over 12,500 nodes, leases, quarantines, Ray's own cost (NODES, STRUCK =n)
	$(RUN) tests.scale.campaign --nodes $(or $(NODES),125 1250 12500) --crash --breaker
	$(RUN) tests.scale.leases --store sqlite --drivers 1 4 16 --batch 1 8 100
	$(RUN) tests.scale.quarantine --nodes $(or $(STRUCK),200)
	$(RUN) tests.scale.actors --nodes 2 8 16 32

bench-pods: $(DEPLOY_STAMP) ## pods on a real cluster beside a plugin that does nothing (FLEET_E2E_KUBECONFIG, _KUBELET_ROOT, _CDI_DIR)
	@for name in KUBECONFIG KUBELET_ROOT CDI_DIR; do eval "test -n \"\$$FLEET_E2E_$$name\"" || \
	  { echo "set FLEET_E2E_$$name: make bench-pods runs against a cluster of yours" >&2; exit 2; }; done
	$(RUN) tests.lab.bench.pods

fuzz: $(STAMP) ## whatever arrives from outside, changed in every way (EXAMPLES=n, SURFACE=name)
	$(RUN) tests.fuzz --examples $(or $(EXAMPLES),2000) $(if $(SURFACE),--surface $(SURFACE))

chaos: $(STAMP) ## kill processes at seeded moments (SEEDS, KUBELET, REAL, KUBELET_REAL =n), or a storm (MINUTES=n)
ifdef MINUTES
	$(RUN) tests.chaos.storm --minutes $(MINUTES) --seed $(or $(SEED),1) --log $(or $(LOG),$(STATE)/storm.jsonl)
else
	$(RUN) tests.chaos.run --plain $(or $(SEEDS),300) --kubelet $(or $(KUBELET),300) \
	  --ray $(or $(REAL),20) --kubelet-ray $(or $(KUBELET_REAL),10)
endif

simulate: $(STAMP) ## seeded faults between coordinator, scheduler, API and nodes (SEEDS, PROCESSES =n)
	$(RUN) tests.twin --seeds $(or $(SEEDS),2000) --processes $(or $(PROCESSES),2)

search: $(STAMP) ## every state of the protocol's model within its bounds (DEEP=1: minutes)
	$(RUN) tests.simulation.search $(if $(DEEP),--deep) --table

# $(call demanded,e2e,NAME ...): end with 2 for a variable or a program that is not there.
demanded = @for name in $(2); do eval "test -n \"\$$FLEET_E2E_$$name\"" || \
  { echo "set FLEET_E2E_$$name: make $(1) runs against a cluster of yours (tests/e2e/place.py, tests/e2e_chart/site.py)" >&2; exit 2; }; done

# Two runs: the plugin under test of the first serves until its end, and a node has one.
e2e: $(DEPLOY_STAMP) ## the suite against a real cluster (FLEET_E2E_KUBECONFIG, _KUBELET_ROOT, _CDI_DIR)
	$(call demanded,$@,KUBECONFIG KUBELET_ROOT CDI_DIR)
	$(RUN) pytest -q -m e2e tests/e2e
	$(RUN) pytest -q -m e2e tests/stories tests/contracts

e2e-chart: $(STAMP) ## an operator's night with the chart on a new cluster (variables: tests/e2e_chart/site.py)
	$(call demanded,$@,KUBECONFIG KUBELET_ROOT CDI_DIR CONTAINERD ARCHIVE NEW STOP START)
	@for name in helm kubectl ctr; do command -v $$name >/dev/null || \
	  { echo "$$name is not on the path: make e2e-chart needs it" >&2; exit 2; }; done
	$(RUN) pytest -q tests/e2e_chart --junitxml=$(STATE)/e2e-chart.xml

gpu-check: $(STAMP) ## check this machine's NVIDIA GPUs (takes all of their memory; writes gpu-check.json)
	PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(RUN) pytest -q -c tests/gpu/pytest.ini tests/gpu

demo-nvidia: $(STAMP) ## the NVIDIA back end end to end on stand-in drivers: scrub, prove, slices
	$(RUN) tests.drivers.demo

stress-stores: $(STAMP) ## leases under stress: processes, lost answers, restores (N=operations)
	$(RUN) tests.stress_stores $(if $(N),--operations $(N))

stress-archive: $(STAMP) ## evidence to a bucket that fails, copied by a node that is killed (N=, KILLS=)
	$(RUN) tests.stress_archive --certificates $(or $(N),200) --kills $(or $(KILLS),8)

proto: $(STAMP) ## regenerate the gRPC messages and stubs
	$(RUN) tests.protocols

measure: $(STAMP) ## the shape of the product in figures, beside their limits
	$(RUN) tests.measure

format: $(STAMP) ## format the code
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

docs: $(DEPLOY_STAMP) ## regenerate references, diagrams, the chart's schema and the plain manifests
	$(RUN) tests.docs
	$(RUN) tests.deploy.chart.values_schema
	$(RUN) tests.deploy.chart.plain

clean: ## remove the environment and the demo state
	rm -rf $(VENV) $(STATE)
