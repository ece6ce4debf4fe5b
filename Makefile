# The two that matter: `make demo` and `make test`. Both set everything up first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(CURDIR)/demo
# Whole files to a worker, in their own order: by their number of tests the longest would come last.
# One that dies ends the run: with another in its place xdist may hang.
TWO := -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0
# Kernels' threads do not wait for work with their cores in hand: others have some.
WORKING := TVM_THREAD_POOL_SPIN_COUNT=0 $(BIN)/python
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Hundreds of processes begin in a run of the tests: they read what one of them has compiled.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test long fast torture lint format bench lock clean

setup: $(VENV)/.installed

$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@command -v ld >/dev/null || { echo "the linker ld is needed: install binutils"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes -r requirements.lock
	$(PIP) --no-build-isolation --no-deps -e .
	@touch $@

# A real network, a real search: about four minutes on two cores.
demo: setup
	@mkdir -p $(DEMO)
	$(BIN)/tunefarm zoo squeezenet -o $(DEMO)/squeezenet.onnx
	TUNEFARM_HOME=$(DEMO)/home $(BIN)/tunefarm submit $(DEMO)/squeezenet.onnx \
	  --targets llvm --trials 400 --budget 5m

# What needs no quiet machine first, two files at a time; then whole jobs and what is timed.
test: setup
	$(WORKING) -m pytest $(TWO) -m "not (ray or alone or long)"
	$(BIN)/python -m pytest -m "(ray or alone) and not long"

# What takes too long for every change: whole jobs of rarer kinds, networks on a GPU of paper.
long: setup
	$(WORKING) -m pytest $(TWO) -m "long and not (ray or alone)"
	$(BIN)/python -m pytest -m "long and (ray or alone)"

# The tests that need neither the compiler nor Ray, nor much time.
fast: setup
	$(BIN)/python -m pytest $(TWO) -m "not (tvm or ray or long or slow)"

# Faults by the thousand; what came of them is in torture.json. Hours.
torture: setup
	$(BIN)/python -m pytest -o addopts="--strict-markers" tests/torture

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Kernels and whole networks against the reference tuner (hours; interrupted, they go on where they
# stood), the hardware model, what earlier jobs teach, then whole jobs beside ONNX Runtime.
bench: setup
	$(BIN)/python benchmarks/compare.py kernels.json
	$(BIN)/python benchmarks/both.py both.json
	$(BIN)/python benchmarks/hardware_model.py points.json
	$(BIN)/python benchmarks/transfer.py transfer.json
	$(BIN)/python benchmarks/networks.py networks.json --plot networks.png

# Needs uv (pip install uv). The lock names no index: it installs from whichever pip is told.
lock:
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --no-annotate -o requirements.lock

clean:
	rm -rf $(VENV) $(DEMO) build *.egg-info
