# Two commands set everything up on a fresh machine: `make demo` and `make test`.
.DEFAULT_GOAL := help
.PHONY: help install demo serve test long nightly faults test-slurm test-slurm-newer test-kubernetes test-browser test-api mutate crash soak recovery trajectories matrix check format docs bench clean
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# Only the language and the standard library of Python 3.10: to read torch's types again takes most of a minute.
OLDEST := --config-file= --python-version 3.10 --check-untyped-defs --no-site-packages --ignore-missing-imports
OLDEST += --disable-error-code=union-attr --disable-error-code=arg-type

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV): torch and the rest, a minute or two."
	@$(PIP) -e '.[all]'
	@touch $@

$(VENV)/.tools: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV): torch, the rest and what the tests need, two minutes or three."
	@$(PIP) --quiet -e '.[all,dev]'
	@touch $(VENV)/.installed $@

install: $(VENV)/.installed ## into .venv: torch and the rest, a minute or two

demo: $(VENV)/.installed ## train through three kill -9 and finish (KEEP=1 leaves the service up)
	@$(BIN)/python -m deploy.dev.demo

serve: $(VENV)/.installed ## start the service with the embedded defaults
	@$(BIN)/orchestrator serve

test: $(VENV)/.tools ## the tests; what needs a missing service skips by name unless CI=true
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal -m 'not long' --ignore-glob='*/long/*' --ignore-glob='*/live/*'

long: $(VENV)/.tools ## tests of rare things that take minutes (ARGS="-m smoke": the few that CI runs)
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal -m long --ignore-glob='*/live/*' $(ARGS)

nightly: $(VENV)/.tools ## every suite in full, for hours, into docs/nightly.md (as root; ARGS="crash soak": these)
	@.ci/nightly $(ARGS)

faults: $(VENV)/.tools ## every fault on every kind of cluster, at default settings: the tables of docs/failures.md (as root)
	@$(BIN)/python -m pytest -q -n 3 --dist loadfile tests/faults $(ARGS)

test-slurm: $(VENV)/.tools ## a real Slurm of several nodes on this machine, killed in every way (as root; ARGS="-m smoke")
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/slurm/live $(ARGS)

RELEASE ?= forky
SLURM := slurm-wlm slurmdbd slurmrestd slurm-wlm-jwt-plugin mariadb-server-core mariadb-client-core iproute2 nftables
test-slurm-newer: $(VENV)/.tools ## the same with the Slurm of a newer Debian (package debootstrap; RELEASE=forky)
	@$(BIN)/python -m deploy.dev.debian $(RELEASE) --packages $(SLURM) -- \
	  $(CURDIR)/$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/slurm/live $(ARGS)

test-kubernetes: $(VENV)/.tools ## jobs on the cluster of KUBECONFIG (ARGS="--image IMAGE --host-path PATH"; ARGS=--help)
	@$(BIN)/python -m pytest -q tests/kubernetes/live $(ARGS)

test-browser: $(VENV)/.tools ## the pages of a real service in Debian's Chromium (apt install chromium)
	@$(BIN)/python -m pytest -q tests/browser/live

test-api: $(VENV)/.tools ## every operation as callers of each role, by Schemathesis (ARGS="--examples 200", ARGS=--help)
	@$(BIN)/python -m pytest -v -s tests/api/live $(ARGS)

mutate: $(VENV)/.tools ## take each guard and each policy rule out in turn: some test must notice (ARGS="--only rules")
	@$(BIN)/python -m deploy.dev.mutate $(ARGS)

crash: $(VENV)/.tools ## kill and stop the service at every crash point (ARGS="--sample 60" for some of them)
	@$(BIN)/python -m deploy.dev.crash_points $(ARGS)

soak: $(VENV)/.tools ## train under a hundred random faults (ARGS=--short: a dozen)
	@$(BIN)/python -m deploy.dev.soak $(ARGS)

recovery: $(VENV)/.tools ## kill workers and time their return, beside torchrun (ARGS="--kills 1000 --launchers ours")
	@$(BIN)/python -m benchmarks.recovery $(ARGS)

trajectories: $(VENV)/.tools ## the same loss curve on any ranks (ARGS="--trials fp32" for the quick half)
	@$(BIN)/python -m pytest -v -rP tests/trainer/long/test_trajectories.py --whole $(ARGS)

matrix: $(VENV)/.tools ## lowest, pinned and newest Python, torch and all else, into docs/compatibility.md (ARGS=--smoke)
	@$(BIN)/python -m deploy.dev.matrix $(ARGS)

check: $(VENV)/.tools ## format, lint, types, imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/mypy $(OLDEST) --package trainer # it runs in users' images
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m deploy.dev.naming

format: $(VENV)/.tools ## format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(VENV)/.tools ## the documentation as a site, into build/site; broken links fail
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

bench: $(VENV)/.tools ## every benchmark, into docs/benchmarks.md (ARGS="--only startup", ARGS=--quick, ARGS=--help)
	@$(BIN)/python -m benchmarks $(ARGS)

clean: ## remove what was made here
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
