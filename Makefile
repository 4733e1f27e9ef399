# Names, not logic: every target sets up what it needs and calls one command.
PYTHON ?= python3
PY := .venv/bin/python
BENCH := $(PY) run_bench.py
SET ?=

.DEFAULT_GOAL := help
.PHONY: help install install-mpi bench-gloo bench-nccl bench-mpi coverage equivalence report plots compare ab list doctor diagnose test test-gpu lint check schema docs pictures prove prove-quick prove-ab prove-ddp bench-self clean bench-ddp

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# --no-compile, then one import of what is used: compiling all of torch takes as long as installing it, and
# without compiled files (some environments forbid writing them later) every start would take twice as long.
PIP := $(PY) -m pip install --quiet --no-compile --disable-pip-version-check
COMPILE := PYTHONDONTWRITEBYTECODE= $(PY) -c

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "python3-venv is missing: apt install python3-venv (Debian, Ubuntu)" >&2; exit 2; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 2; }

.venv/.installed: requirements.txt | .venv/bin/python
	@echo "installing what CollBench needs into .venv (once)"
	@$(PIP) -r requirements.txt
	@$(COMPILE) 'import bench.cli.run, bench.cli.compare, bench.config, bench.rank.preload, bench.launch.doctor, bench.report.plots.comparison'
	@touch $@

.venv/.installed-mpi: requirements-mpi.txt .venv/.installed
	@echo "installing mpi4py and Open MPI into .venv (once)"
	@$(PIP) -r requirements-mpi.txt
	@touch $@

.venv/.installed-dev: requirements-dev.txt requirements-mpi.txt .venv/.installed
	@echo "installing what the tests need into .venv (once)"
	@$(PIP) -r requirements-dev.txt
	@$(COMPILE) 'import pytest, hypothesis, scipy.stats'
	@touch $@

install: .venv/.installed  ## Create .venv with the pinned packages

install-mpi: .venv/.installed-mpi  ## Add mpi4py and Open MPI, which need no system package

bench-gloo: .venv/.installed  ## Measure all-reduce on the CPU: table, report, plots (under a minute)
	@$(BENCH) run configs/gloo.yaml $(SET)

bench-nccl: .venv/.installed  ## The same on NVIDIA GPUs, one a rank
	@$(BENCH) run configs/nccl.yaml $(SET)

bench-mpi: .venv/.installed-mpi  ## gloo against MPI, and which of them is faster at which size
	@$(BENCH) run configs/mpi.yaml $(SET)
	@$(BENCH) compare --across backend=gloo,mpi

bench-ddp: .venv/.installed  ## What gradient synchronisation costs a training step, and the best buckets
	@$(BENCH) run configs/ddp-buckets.yaml $(SET)
	@$(BENCH) run configs/ddp.yaml $(SET)

cs336: .venv/.installed  ## The tables of CS336, assignment 2: all-reduce, then data-parallel training
	@$(BENCH) run configs/cs336.yaml $(SET)
	@$(BENCH) report cs336 --format cs336
	@$(BENCH) run configs/ddp-cs336.yaml || { test $$? -eq 3 && $(BENCH) run configs/ddp.yaml; }

coverage: .venv/.installed  ## What runs at all? Every operation, dtype and reduce op once; writes docs/coverage.md
	@$(BENCH) run configs/everything.yaml --no-plots $(SET) >/dev/null || test $$? -eq 1
	@$(BENCH) report everything --format coverage > docs/coverage.md

equivalence: .venv/.installed  ## Does data-parallel training train the same model? Table and loss curves
	@$(BENCH) equivalence

report: .venv/.installed  ## Rebuild the report of a run: RUN=name, or the newest
	@$(BENCH) report $(RUN)

plots: .venv/.installed  ## Draw the plots of a run: RUN=name, or the newest
	@$(BENCH) plots $(RUN)

compare: .venv/.installed  ## Did it change? A=before B=after
	@$(if $(and $(A),$(B)),$(BENCH) compare $(A) $(B),echo "make compare A=before B=after (names: make list)" >&2; exit 2)

ab: .venv/.installed  ## Is B slower than A? A=before.yaml B=after.yaml, measured in turn (SET="--b-env X=Y" and others)
	@$(if $(A),$(BENCH) ab $(A) $(B) $(SET),echo "make ab A=before.yaml B=after.yaml" >&2; exit 2)

diagnose: .venv/.installed  ## Who is late or slow? RUN=name, or the newest
	@$(BENCH) diagnose $(RUN)

list: .venv/.installed  ## List the runs
	@$(BENCH) list

doctor: .venv/.installed  ## What can this machine measure, and what stands in the way?
	@$(BENCH) doctor

# Two processes, because half of the time is waiting for ranks; no more, because ranks want the cores. One file stays in
# one process: its tests share a fork server.
test: .venv/.installed-dev  ## Run the tests
	@$(PY) -m pytest tests --numprocesses 2 --dist loadfile

test-gpu: .venv/.installed-dev  ## Run the tests that need a GPU
	@$(PY) -m pytest tests -m gpu -rs

lint: .venv/.installed-dev  ## Check style and types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

check: lint test  ## Everything a change must pass; the README's commands are among the tests

schema: .venv/.installed  ## Write the JSON Schema that editors complete the YAML with
	@$(BENCH) schema > configs/schema.json
	@$(BENCH) schema training > configs/training-schema.json

docs: .venv/.installed-dev  ## Write docs/architecture.md, and mark what was proved of older code
	@$(PY) tests/architecture_page.py
	@PYTHONPATH=. $(PY) tests/configuration_page.py
	@PYTHONPATH=.:tests $(PY) -m proof --pages

pictures: .venv/.installed-dev  ## Draw the pictures of README and docs/ again, from the runs in docs/example/
	@PYTHONPATH=.:tests $(PY) tests/example_pictures.py

prove: .venv/.installed-dev  ## Are the numbers right? Known links, planted faults and changes; writes docs/accuracy.md
	@PYTHONPATH=.:tests $(PY) -m proof

prove-quick: .venv/.installed-dev  ## The same with fewer repetitions
	@PYTHONPATH=.:tests $(PY) -m proof --quick

prove-ab: .venv/.installed-dev  ## Are two sides told apart? Planted changes under ab, up to 75 minutes; writes docs/ab-accuracy.md
	@PYTHONPATH=.:tests $(PY) -m proof sides

prove-ddp: .venv/.installed-dev  ## Are the training benchmark's numbers right? Writes docs/training-accuracy.md
	@PYTHONPATH=.:tests $(PY) -m proof gradients

bench-self: .venv/.installed-dev  ## Measure what the suite itself costs, against its targets
	@PYTHONPATH=. $(PY) tests/bench_self.py

clean:  ## Remove caches and .venv; never results or plots
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
	@find bench tests -name __pycache__ -prune -exec rm -rf {} +
