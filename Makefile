# Names, not logic: every target sets up what it needs and calls one command.
PYTHON ?= python3
PY := .venv/bin/python
BENCH := $(PY) run_bench.py
SET ?=
# Without an NVIDIA GPU, torch comes from this index of CPU builds: pip's own brings CUDA along, gigabytes.
TORCH_INDEX ?= $(if $(wildcard /dev/nvidiactl),,https://download.pytorch.org/whl/cpu)
# SYSTEM=1: upon the torch that $(PYTHON) has, as in a container image or a cluster's module. Its NCCL is then measured.
SYSTEM ?=

.DEFAULT_GOAL := help
.PHONY: help install install-mpi bench-gloo bench-nccl bench-mpi gloo-stalls bench-ddp cs336 ab replay gate report plots compare \
  diagnose list doctor equivalence check lint site test test-all test-gpu gpu-check virtual-gpu test-virtual-gpu docs pictures prove prove-quick prove-weekly \
  bench-self versions clean

help:  ## Show this list
	@awk '/^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z0-9-]+:.*##/ { split($$0, part, ":.*## "); printf "  make %-12s %s\n", part[1], part[2] }' $(MAKEFILE_LIST)

# --no-compile, then one import of what is used: compiling all of torch takes as long as installing it, and
# without compiled files (some environments forbid writing them later) every start would take twice as long.
PIP := $(PY) -m pip install --quiet --no-compile --disable-pip-version-check
COMPILE := PYTHONDONTWRITEBYTECODE= $(PY) -c

CPU_TORCH = echo "taking torch from $(TORCH_INDEX) (CPU builds for machines without an NVIDIA GPU)"; \
  $(PIP) --quiet --retries 1 --timeout 5 --index-url $(TORCH_INDEX) $$(grep ^torch requirements.txt) || \
  echo "no torch for this machine from $(TORCH_INDEX): pip's own follows (6 GB where it brings CUDA)"

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "python3-venv is missing: apt install python3-venv (Debian, Ubuntu)" >&2; exit 2; }
	@$(if $(SYSTEM),$(PYTHON) -c 'import torch' || { echo "SYSTEM=1: $(PYTHON) has no torch: load its module or leave SYSTEM out" >&2; exit 2; })
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 2; }
	@$(if $(SYSTEM),$(PYTHON) -c 'import site; print(*site.getsitepackages(), sep="\n")' > $$(echo .venv/lib/python3*/site-packages)/system.pth)

.venv/.installed: requirements.txt | .venv/bin/python
	@echo "installing what CollBench needs into .venv (once)"
	@$(if $(SYSTEM),,$(if $(TORCH_INDEX),$(CPU_TORCH)))
	@grep $(if $(SYSTEM),-v '^torch\|^setuptools',.) requirements.txt > .venv/requirements.txt
	@$(PIP) -r .venv/requirements.txt
	@$(PIP) --no-deps -e .
	@$(COMPILE) 'import collbench.cli.run, collbench.cli.compare, collbench.config.models, collbench.rank.preload, collbench.launch.doctor, collbench.report.plots.comparison'
	@PYTHONDONTWRITEBYTECODE= $(PY) -m compileall -q bench run_bench.py
	@touch $@

.venv/.installed-mpi: requirements-mpi.txt .venv/.installed
	@echo "installing mpi4py and Open MPI into .venv (once)"
	@$(PIP) -r requirements-mpi.txt
	@touch $@

.venv/.installed-dev: requirements-dev.txt requirements-mpi.txt .venv/.installed
	@echo "installing what the tests need into .venv (once)"
	@grep -v ^-r requirements-dev.txt > .venv/requirements-dev.txt  # not torch again: with SYSTEM=1 it is another one
	@$(PIP) -r requirements-mpi.txt -r .venv/requirements-dev.txt
	@$(COMPILE) 'import pytest, hypothesis, scipy.stats, torch._dynamo, torch.profiler'
	@touch $@

# MPICH, Intel MPI and Ray, for the tests of launchers. Two have a mpiexec, so each is in a folder of its own.
.venv-launchers/.installed: | .venv/.installed
	@echo "installing MPICH, Intel MPI and Ray into .venv-launchers (once)"
	@$(PIP) --ignore-installed --prefix .venv-launchers/mpich mpich
	@$(PIP) --ignore-installed --prefix .venv-launchers/impi impi-rt
	@$(PIP) --prefix .venv-launchers/ray 'ray[train]>=2.40'
	@touch $@

##@ Begin
install: .venv/.installed  ## Create .venv with the pinned packages and the command collbench

doctor: .venv/.installed  ## What can this machine measure, and what prevents the rest?
	@$(BENCH) doctor

##@ Measure (SET="--set key=value" changes a setting)
bench-gloo: .venv/.installed  ## All-reduce on the CPU: table, report, plots (about 50 s)
	@$(BENCH) run configs/gloo.yaml $(SET)

bench-nccl: .venv/.installed  ## The same on NVIDIA GPUs, one a rank
	@$(BENCH) run configs/nccl.yaml $(SET)

install-mpi: .venv/.installed-mpi  ## Add mpi4py and Open MPI, which need no system package

bench-mpi: .venv/.installed-mpi  ## gloo against MPI, and which of them is faster at which size
	@$(BENCH) run configs/mpi.yaml $(SET)
	@$(BENCH) compare --across backend=gloo,mpi

gloo-stalls: .venv/.installed  ## Does gloo stall here, and what does SCHED_BATCH change? (within a minute; docs/studies/gloo-stalls.md)
	@$(BENCH) ab configs/gloo-stalls.yaml --b scheduling=[batch] --each --budget 50s || test $$? -eq 3

bench-ddp: .venv/.installed  ## What gradient synchronisation costs a training step on the CPU, and the best buckets (4 to 5 min)
	@echo "on the CPU with gloo; on NVIDIA GPUs: collbench run ddp-nccl, then collbench advise --from ddp-nccl"
	@$(BENCH) run configs/ddp-buckets.yaml $(SET)
	@$(BENCH) run configs/ddp.yaml $(SET)
	@$(BENCH) advise --from ddp

# The assignment's own model and buckets, where there are two GPUs.
CS336_MODEL := --set name=ddp-cs336 --set 'backends=[nccl]' --set timeout=5min --set 'training.models=[xl-2025]' \
  --set training.batch=2 --set training.sequence=256 --set training.rounds=8 --set training.steps=5 \
  --set training.memory=false \
  --set 'training.strategies=[naive, flat, overlap_param, {overlap_bucket: {cap: [1MB, 10MB, 100MB, 1000MB]}}]'

cs336: .venv/.installed  ## The tables of CS336, assignment 2: all-reduce, training, memory (4 min; 6 to 15 on a busy machine)
	@$(BENCH) run configs/cs336.yaml $(SET)
	@$(BENCH) run configs/ddp-cs336-small.yaml
	@$(BENCH) plan configs/ddp-cs336-small.yaml $(CS336_MODEL) > /dev/null 2>&1; status=$$?; \
	  if [ $$status -eq 3 ]; then echo "The assignment's own model was left out: it needs two GPUs."; \
	  else $(BENCH) run configs/ddp-cs336-small.yaml $(CS336_MODEL); fi
	@echo "What to write about the tables: the end of docs/training.md"

ab: .venv/.installed  ## Is B slower than A? A=before.yaml B=after.yaml, measured in turn
	@$(if $(A),$(BENCH) ab $(A) $(B) $(SET),echo "make ab A=before.yaml B=after.yaml" >&2; exit 2)

replay: .venv/.installed  ## What would a recorded job's communication cost here? TRACE=trace.json
	@$(if $(TRACE),$(BENCH) replay $(TRACE) $(SET),echo "make replay TRACE=trace.json" >&2; exit 2)

gate: .venv/.installed  ## Is every node good enough? CONFIG=nccl; start it in all processes of a job
	@$(BENCH) gate $(or $(CONFIG),nccl) $(SET)

equivalence: .venv/.installed  ## Does data-parallel training train the same model? Table and loss curves
	@$(BENCH) equivalence

##@ Look (RUN=name; the newest if left out)
report: .venv/.installed  ## Print a run's tables, and write its report again
	@$(BENCH) report $(RUN)

plots: .venv/.installed  ## Draw a run's plots
	@$(BENCH) report $(RUN) --plots

diagnose: .venv/.installed  ## Which rank, node or link is late or slow?
	@$(BENCH) diagnose $(RUN)

compare: .venv/.installed  ## Did it change? A=before B=after
	@$(if $(and $(A),$(B)),$(BENCH) compare $(A) $(B),echo "make compare A=before B=after (names: make list)" >&2; exit 2)

list: .venv/.installed  ## List the runs
	@$(BENCH) list

##@ Develop
check: lint test-all  ## Everything a change must pass; the README's commands are among the tests

lint: .venv/.installed-dev  ## Check style, types and the budgets of lines
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -m tools.rooms
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

site: .venv/.installed-dev  ## Build the site of docs/ into build/site; a dead link is an error
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

# Three processes, because a third of the time is waiting for ranks; no more, because ranks want the cores. Each has a
# fork server that its tests share; the one that is done first takes over tests of the others. Compiled files are kept:
# compiling the tests takes 10 s in each process.
PYTEST := PYTHONDONTWRITEBYTECODE= $(PY) -m pytest tests --numprocesses 3 --dist worksteal

test: .venv/.installed-dev  ## Run the tests that take seconds (about 3 min)
	@$(PYTEST) -m "not slow"

test-all: test  ## Then those that take longer: kills, joined jobs, whole trainings, every example (about 15 min in all)
	@$(PYTEST) -m slow

test-gpu: .venv/.installed-dev  ## Run the tests that need a GPU
	@$(PY) -m pytest tests -m gpu -rs

gpu-check: .venv/.installed-dev  ## Ten minutes on a GPU: what is expected beside what is measured; results/gpu-check.md
	@$(PY) -m tools.gpu_check

# A CUDA build of torch, 5 GB, in an environment of its own; what lies below it is stood in for (proof/virtual_gpu/).
.venv-cuda/.installed: requirements.txt proof/virtual_gpu/requirements.txt
	@command -v g++ > /dev/null || { echo "virtual GPUs need g++ (apt install g++)" >&2; exit 2; }
	@test $$(df --output=avail -k . | tail -1) -gt 7000000 || { echo "virtual GPUs need 7 GB of disk" >&2; exit 2; }
	@echo "installing a CUDA build of torch into .venv-cuda (once)"
	@$(PYTHON) -m venv .venv-cuda
	@grep -v '^torch\|^setuptools' requirements.txt > .venv-cuda/requirements.txt  # torch says which setuptools it needs
	@grep "^pytest\|^hypothesis" requirements-dev.txt >> .venv-cuda/requirements.txt  # gpu-check runs the tests on a GPU
	@.venv-cuda/bin/python -m pip install --quiet --no-compile --disable-pip-version-check \
	  -r .venv-cuda/requirements.txt -r proof/virtual_gpu/requirements.txt
	@touch $@

virtual-gpu: .venv-cuda/.installed  ## Build virtual GPUs: torch's CUDA code runs without a GPU, times follow a rule
	@.venv-cuda/bin/python -m proof.virtual_gpu.build .venv-cuda

test-virtual-gpu: virtual-gpu .venv/.installed-dev  ## Compare what is reported on virtual GPUs with the rule (7 min; QUICK=1: 3)
	@$(PY) -m pytest proof/virtual_gpu -q --numprocesses 2 --dist worksteal $(if $(QUICK),-m "not slow")

docs: .venv/.installed-dev  ## Make the generated pages again, and mark what was proved of older code
	@$(PY) -m tools.configuration_page
	@$(PY) -m proof --pages

pictures: .venv/.installed-dev  ## Draw the pictures of README and docs/ again, from the runs in docs/example/
	@$(PY) -m tools.example_pictures

# An environment of its own. Some of these packages have no wheel for a newer Python than 3.11.
.venv-oldest/.installed: tools/oldest.txt pyproject.toml requirements-dev.txt
	@echo "installing the oldest supported packages into .venv-oldest (once)"
	@$(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --only-binary :all: \
	  --constraint tools/oldest.txt --editable '.[mpi]' $$(grep "^pytest\|^hypothesis\|^prometheus" requirements-dev.txt)
	@touch $@

versions: .venv-oldest/.installed  ## Do the fast tests pass with the oldest packages? Downloads gigabytes (PYTHON=python3.11)
	@.venv-oldest/bin/python -m pytest tests --numprocesses 2 --dist worksteal -m "not slow"

##@ Prove (nothing else may run meanwhile)
prove: .venv/.installed-dev  ## Are the numbers right? All claims, or CLAIMS="rates overhead" (about 40 min, with virtual GPUs); proof/accuracy.md
	@$(PY) -m proof $(if $(CLAIMS),--only $(CLAIMS))

prove-weekly: .venv/.installed-dev  ## The claims that take too long for each change: tries of ab, real tables of tune (110 min)
	@$(PY) -m proof --weekly

prove-quick: .venv/.installed-dev  ## The same with fewer trials, to see that it works (5 min); keeps nothing
	@$(PY) -m proof --quick $(if $(CLAIMS),--only $(CLAIMS))

bench-self: .venv/.installed-dev  ## Measure what the suite itself costs, against its targets (11 min)
	@$(PY) -m tools.bench_self

clean:  ## Remove caches and .venv; never results or plots
	@rm -rf .venv .venv-launchers .venv-oldest .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
	@find bench proof tests tools -name __pycache__ -prune -exec rm -rf {} +
