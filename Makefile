# `make train` and `make test` do all of their own set-up; the rest is beside them. ARGS goes to what is run:
#   make train ARGS="task=cheetah_run seed=3"
#   make test ARGS="-k replay"
ARGS ?=
PYTHON ?= python3
export PYTHON

PY := .venv/bin/python
READY := .venv/.ready
# One thread a worker: two workers on two cores would otherwise fight over them.
PYTEST = OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --maxprocesses 8 --dist worksteal

# Without a GPU the small preset is used, unless ARGS chooses one or goes on with a run that has its own.
CHOSEN = $(or $(findstring preset=,$(ARGS)),$(findstring resume=,$(ARGS)),$(filter --help -h,$(ARGS)))
PRESET = $(if $(CHOSEN),,$(shell nvidia-smi -L >/dev/null 2>&1 || echo preset=cpu))

.NOTPARALLEL:
.PHONY: help setup train test slow lint check soak site audit bench lock clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(READY) ## make .venv ready; what runs something does it first

$(READY): pyproject.toml requirements.lock tools/setup.sh
	@tools/setup.sh

train: $(READY) ## learn cartpole_balance_sparse; ARGS="task=cheetah_run seed=3" overrides anything
	$(PY) train.py $(PRESET) $(ARGS)

test: $(READY) ## the fast tier of the tests
	$(PYTEST) -m "not slow" $(ARGS)

slow: $(READY) ## the slow tier
	$(PYTEST) -m slow $(ARGS)

lint: $(READY) ## style, types, spelling, documentation, security, consistency of the installed packages
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m codespell_lib
	$(PY) -m mkdocs build -q
	$(PY) -m bandit -q -c pyproject.toml -r drqv2 benchmarks *.py
	$(PY) -m pip check || test "$$($(PY) -m pip check | grep -vc labmaze)" = 0 # no wheel for Python >= 3.13, and unused

check: test lint slow ## everything

soak: $(READY) ## a hundred kills, 200 damaged files, half an hour of watching a run's memory; ARGS="--only kills"
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.soak $(ARGS)

site: $(READY) ## the documentation as a site, in build/site
	$(PY) -m mkdocs build

audit: ## ask a public database for known faults of the locked packages
	test -x .audit/bin/pip-audit || { $(PYTHON) -m venv .audit && .audit/bin/pip install -q pip-audit; }
	.audit/bin/pip-audit -r requirements.lock --no-deps --disable-pip

bench: $(READY) ## measure the learner, the replay, the environments and the loop
	$(PY) -m benchmarks $(ARGS)

lock: ## write down what .venv holds as the tested set (CONTRIBUTING.md says when)
	@echo "# The set that the suite was last run with; written by make lock from .venv. No CUDA, no local versions:" > .lock
	@echo "# the same file serves CPU and GPU. dm-control asks for labmaze, which nothing here uses." >> .lock
	$(PY) -m pip freeze --all --exclude-editable | grep -viE '^(nvidia-[^m]|cuda|triton)' | \
	    sed -E 's/\+[a-z0-9.]+$$//; s/^labmaze.*/& ; python_version < "3.13"/' >> .lock
	@mv .lock requirements.lock

clean: ## remove .venv, builds and caches; runs stay
	rm -rf .venv .audit build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
