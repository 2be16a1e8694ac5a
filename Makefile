# Work on the project. `make check` is what a change must pass; .ci/run does the same in a new environment.
PYTHON ?= python

.PHONY: check smoke format types test slow gpu gpu-emulated clients neighbours bench protos stubs docs ci release simulate faults fuzz

check: ## style, types, fast tests
	ruff format --check .
	ruff check .
	$(MAKE) types
	$(PYTHON) -m pytest tests/unit tests/golden -W error

SMOKE := tests/unit/tensor/test_tensor.py tests/unit/ops/test_declarations.py \
	tests/unit/graph/test_graph_training.py tests/unit/boxing/test_route.py \
	tests/unit/scheduler/jobs/test_job_table.py
smoke: ## does it work at all? A file of each storey, in about 20 seconds
	$(PYTHON) -m pytest -q $(SMOKE)

format: ## put every file into the house style
	ruff format .
	ruff check --fix .

types: ## mypy, strict, on the package
	$(PYTHON) -m mypy

test: ## all tests that need neither long nor a GPU, real processes included
	$(PYTHON) -m pytest

slow: ## tests that take longer than CI allows
	$(PYTHON) -m pytest -m slow

SEEDS ?= 10000
simulate: ## whole clusters in virtual time with faults, SEEDS of them
	$(PYTHON) -m tests.faults.simulation --seeds $(SEEDS)

PROOFS ?= 50
INPUTS ?= 2000000
JOBS ?= 1000
faults: ## 240 cells of faults on a real cluster, PROOFS resumes, INPUTS of fuzz, JOBS of soak, load; about an hour
	$(PYTHON) -m campaigns.matrix
	$(PYTHON) -m campaigns.detection
	$(PYTHON) -m campaigns.resume --proofs $(PROOFS)
	$(PYTHON) -m campaigns.outside
	$(PYTHON) -m campaigns.fuzz --inputs $(INPUTS)
	$(PYTHON) -m campaigns.load
	$(PYTHON) -m campaigns.soak --jobs $(JOBS)
	$(PYTHON) -m campaigns.network
	$(PYTHON) -m campaigns.rpc
	$(PYTHON) -m campaigns.resources

FUZZ_SECONDS ?= 200
fuzz: ## new random programs beside PyTorch: eager and graphs, global tensors on two ranks; ten minutes
	$(PYTHON) -m tests.fuzz --programs 1000000 --seconds $(FUZZ_SECONDS) --seed $$(date +%s)
	$(PYTHON) -m tests.fuzz.loader --programs 2000
	$(PYTHON) -m tests.fuzz.files --programs 2000

gpu: ## tests and short benchmarks that need a CUDA device, in under ten minutes; skipped without one
	timeout 330 $(PYTHON) -m pytest -m gpu tests/gpu -rs || test $$? -eq 5  # 5: all skipped
	timeout 30 $(PYTHON) benchmarks/gpu_kernels.py
	timeout 60 $(PYTHON) benchmarks/gpu_training.py --models launch_bound --sides eager,graph,torch,torch_graphs
	timeout 80 $(PYTHON) benchmarks/gpu_training.py --models gpt2 --sides graph,torch
	timeout 80 $(PYTHON) benchmarks/nccl.py --sizes 65536,16777216,268435456 --rounds 10

EMULATED ?= build/emulated
gpu-emulated: ## tests/gpu on an emulated CUDA device (Linux, x86-64, g++; no GPU): values, never speed; five minutes at first
	test -x $(EMULATED)/bin/python || $(PYTHON) -m venv $(EMULATED)
	$(EMULATED)/bin/python -m pip install -q 'torch==2.13.0' -e '.[test]'
	tests/cuda_emulation/build.sh $(EMULATED)
	tests/cuda_emulation/run.sh $(EMULATED) python -m pytest -m gpu tests/gpu -n 2 -rs
	EMU_DEVICES=2 tests/cuda_emulation/run.sh $(EMULATED) python -m pytest -m gpu tests/gpu/test_gpu_ranks.py tests/gpu/test_two_gpus.py -rs

clients: ## packages from the index that use the library, unchanged, beside PyTorch; writes docs/CLIENTS.md (ONLY=a,b AGAIN=1 FRESH=1)
	$(PYTHON) -m tests.clients --only '$(ONLY)' $(if $(AGAIN),--again) $(if $(FRESH),--fresh)

neighbours: ## Prometheus, Slurm, Ray, ... beside a cluster; installs them (Debian: as root); half an hour; writes docs/DEPLOY.md (ONLY=a,b AGAIN=1)
	$(PYTHON) -m tests.neighbours --only '$(ONLY)' $(if $(AGAIN),--again)

bench: ## every program of benchmarks/ that measures
	for program in $$(grep -l __main__ benchmarks/*.py); do $(PYTHON) $$program || exit 1; done

protos: ## regenerate protos/*_pb2* (needs grpcio-tools)
	$(PYTHON) protos/generate.py

stubs: ## rewrite the type stubs from the public table
	$(PYTHON) docs/stubs.py

docs: ## the site in build/docs (pip install -e '.[docs]'); tutorials are run, warnings are errors
	$(PYTHON) -m sphinx -q -b html -j 2 -W --keep-going docs build/docs
	@echo "the site is build/docs/index.html"

ci: ## what CI runs, in a new virtual environment
	.ci/run

release: ## build the wheel, check it, use it as the README says, tag the commit; nothing is sent
	PYTHON=$(PYTHON) .ci/release
