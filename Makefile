# `make` prints the targets. All that they need is set up by themselves, in .venv and target.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# maturin and the installed binary are called by name; pyo3 would look for a python of its own choice.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
export UV_PYTHON := $(CURDIR)/$(BIN)/python
# Without it each of N ranks compiles torch anew where PYTHONDONTWRITEBYTECODE is set.
export UV_COMPILE_BYTECODE := 1
unexport PYTHONPATH PYTHONHOME

SOURCES := Cargo.toml Cargo.lock pyproject.toml tools/build_backend.py \
  $(shell find rust -name '*.rs' -path '*/src/*' -o -name Cargo.toml)

.PHONY: help demo test test-all check format notices dev bench wheel clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo $(VENV)/.built ## train a model on 4 ranks, lose one, resume
	$(BIN)/python examples/demo.py

test: dev ## run every test that a change must pass
	@if command -v cargo-nextest >/dev/null; then set -x; \
	  cargo nextest run --locked --workspace --exclude nativelaunch-py $(NEXTEST_ARGS); \
	else echo "cargo-nextest is not installed: the Rust tests run one at a time by cargo test"; set -x; \
	  cargo test --locked --workspace --exclude nativelaunch-py --all-targets -- --test-threads 1 $(CARGO_TEST_ARGS); \
	fi
	cargo test --locked --workspace --exclude nativelaunch-py --doc
	$(BIN)/pytest $(PYTEST_ARGS)

test-all: NEXTEST_ARGS += --run-ignored all
test-all: CARGO_TEST_ARGS += --include-ignored
test-all: PYTEST_ARGS += -m "slow or not slow"
test-all: test ## run the slow tests too, and break the state machine to see them fail
	$(BIN)/python tools/mutate_job.py

check: dev ## run formatters, linters and type checkers
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest nativelaunch._core
	$(BIN)/typos
	@if command -v cargo-deny >/dev/null; then set -x; cargo deny --locked check bans licenses sources; \
	else echo "cargo-deny is not installed: tests/packaging/test_dependencies.py looks at crates and licences"; fi

format: $(VENV)/.dev ## rewrite the sources as the formatters want them
	cargo fmt --all
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

notices: ## write THIRD-PARTY anew, from the crates that are linked
	$(PYTHON) tools/third_party.py

dev: $(VENV)/.dev $(VENV)/.built ## set up .venv with all tools, and build into it

bench: dev ## measure against torchrun
	$(BIN)/python benches/run.py $(BENCH_ARGS)

wheel: $(VENV)/.dev ## build sdist and wheel into dist
	MATURIN_PEP517_ARGS="--compatibility pypi" CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-$(CURDIR)/target} \
	  $(BIN)/python -m build --no-isolation --outdir dist

clean: ## remove what was built; .venv stays
	rm -rf target dist .mypy_cache .pytest_cache .ruff_cache python/nativelaunch/*.so $(VENV)/.built
	find python tests examples benches tools -name __pycache__ -exec rm -rf {} +

# The stamps below say what .venv holds.

$(VENV)/.uv:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Python 3.10 or later is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@touch $@

$(VENV)/.demo: pyproject.toml | $(VENV)/.uv
	$(BIN)/uv pip install --group demo
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.uv
	$(BIN)/uv pip install --group dev
	@touch $@ $(VENV)/.demo

$(VENV)/.built: $(SOURCES) | $(VENV)/.demo
	@command -v cargo >/dev/null || { echo "cargo is missing: install a Rust toolchain, 1.85 or later"; exit 1; }
	$(BIN)/python -m pip install --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@
