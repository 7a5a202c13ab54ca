# `make train` and `make test` need no separate set-up. ARGS is passed on to the command:
#   make train ARGS="task=cheetah_run seed=3"
#   make test ARGS="-k replay"
ARGS ?=
PYTHON ?= python3
export PYTHON

PY := .venv/bin/python
READY := .venv/.ready
# An interpreter that was asked for is that of .venv, or nothing is done.
ifneq ($(origin PYTHON),file)
ifeq ($(filter clean,$(MAKECMDGOALS)),)
ifneq ($(wildcard $(PY)),)
VERSION := import sys; print('%d.%d' % sys.version_info[:2])
ifneq ($(shell $(PYTHON) -c "$(VERSION)"),$(shell $(PY) -c "$(VERSION)"))
$(error .venv has Python $(shell $(PY) -c "$(VERSION)"), not that of PYTHON=$(PYTHON): run `make clean` first)
endif
endif
endif
endif

# One thread per worker: otherwise parallel workers compete for the cores.
PYTEST = OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --maxprocesses 8 --dist worksteal
# Many of the slow tests wait for other processes: one worker more than there are cores.
slow: export PYTEST_XDIST_AUTO_NUM_WORKERS = $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))

# Without a GPU, use the cpu preset, unless ARGS chooses a preset, regime or agent, or resumes a run, which has its own.
CHOSEN = $(strip $(foreach key,preset= regime= agent= resume=,$(findstring $(key),$(ARGS))) $(filter --help -h,$(ARGS)))
PRESET = $(if $(CHOSEN),,$(shell nvidia-smi -L >/dev/null 2>&1 || echo preset=cpu))

.NOTPARALLEL:
.PHONY: help setup train test slow lint check soak site audit bench gpu lock clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(READY) ## create .venv with all dependencies; other targets do this when needed

$(READY): pyproject.toml requirements.lock tools/setup.sh
	@tools/setup.sh

train: $(READY) ## train on cartpole_balance_sparse; ARGS="task=cheetah_run seed=3" overrides any key
	$(PY) train.py $(PRESET) $(ARGS)

test: $(READY) ## run the fast tests
	$(PYTEST) -m "not slow" $(ARGS)

slow: $(READY) ## run the slow tests
	$(PYTEST) -m slow $(ARGS)

lint: $(READY) ## check style, types, spelling, documentation, security, installed packages
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m codespell_lib
	$(PY) -m mkdocs build
	$(PY) -m bandit -q -c pyproject.toml -r drqv2 benchmarks *.py
	@# labmaze has no wheel for Python >= 3.13, and is not used.
	out=$$($(PY) -m pip check) || { echo "$$out" | grep -q labmaze && ! echo "$$out" | grep -v labmaze; }

check: test lint slow ## run all tests and checks

soak: $(READY) ## stress test: 100 kills, 200 damaged files, memory over half an hour, twice; ARGS="--only kills"
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.soak $(ARGS)

site: $(READY) ## build the documentation site in build/site
	$(PY) -m mkdocs build

audit: ## check the locked packages for known vulnerabilities
	test -x .audit/bin/pip-audit || { $(PYTHON) -m venv .audit && .audit/bin/pip install -q pip-audit; }
	.audit/bin/pip-audit -r requirements.lock --no-deps --disable-pip

bench: $(READY) ## benchmark the learner, the replay, the environments and the loop
	$(PY) -m benchmarks $(ARGS)

# With WHEELS, a folder of wheels, no .venv is made: they are installed beside what $(PYTHON) has.
gpu: $(if $(WHEELS),,$(READY)) ## measure a machine with a GPU, within MINUTES=8; results in OUT=build/gpu
	$(if $(WHEELS),$(PYTHON),$(PY)) -m benchmarks.gpu $(ARGS)

lock: ## write the packages in .venv to requirements.lock (see CONTRIBUTING.md)
	@echo "# The tested set of packages, written by make lock from .venv. Without CUDA packages and local versions, so" > .lock
	@echo "# that it serves CPU and GPU. dm-control requires labmaze, which is not used here." >> .lock
	out=$$($(PY) -m pip freeze --all --exclude-editable) && echo "$$out" | grep -viE '^(nvidia-[^m]|cuda|triton)' | \
	    sed -E 's/\+[a-z0-9.]+$$//; s/^labmaze.*/& ; python_version < "3.13"/' >> .lock || { rm .lock; exit 1; }
	@mv .lock requirements.lock

clean: ## remove .venv, builds and caches, but not the runs
	rm -rf .venv .audit build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
