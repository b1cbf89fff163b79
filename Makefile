# Every habit of a developer is one target; `make help` lists them. Python >= 3.10 is all they need:
# Go and a C compiler come from PyPI into .venv when this machine has none.

VENV ?= .venv
PYTEST_ARGS ?= -m "not bench"
BENCH_ARGS ?=
FUZZTIME ?= 20s
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
BUILD := PYTHONPATH=pybind $(PY) -m loaderx_build
GO := $(BUILD) --exec go
RECENT := -c 'import sys; sys.exit(sys.version_info < (3, 10))'

.DEFAULT_GOAL := help
.PHONY: help run test test-go test-python lint race crash soak fuzz bench build native wheel clean
.DELETE_ON_ERROR:

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run: build ## The main job on real images: convert, read batches, train a small model
	$(PY) examples/quickstart.py

test: test-go test-python ## All tests, Go's with the race detector (first installs torch and jax, 6 GB)

test-go: $(VENV)/.base
	$(GO) test -race ./...

test-python: $(VENV)/.test build
	$(PY) -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.lint ## gofmt, go mod tidy, go vet, staticcheck, ruff
	@unformatted=$$($(BUILD) --exec gofmt -l gopkg pybind) && \
	if [ -n "$$unformatted" ]; then echo "gofmt -w is needed for:" $$unformatted; exit 1; fi
	$(GO) mod tidy -diff
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

race: $(VENV)/.base ## Go tests under the race detector, never from the cache
	$(GO) test -race -count=1 ./...

crash: $(VENV)/.base ## Kill writers of stores and tables hundreds of times, and cut the power everywhere (minutes)
	ZRECORD_CRASH=200 $(GO) test -count=1 -timeout 60m -v -run '^(TestKill|TestPowerCut)$$' ./gopkg/zrecord
	ROWTABLE_CRASH=1000 $(GO) test -count=1 -timeout 60m -v -run '^TestPackKill$$' ./gopkg/rowtable

soak: $(VENV)/.test build ## Read while appending for a minute under the race detector, and interrupt every kind of loader
	ZRECORD_SOAK=60s $(GO) test -race -count=1 -v -run '^TestSoak$$' ./gopkg/zrecord
	LOADER_STORMS=all $(PY) -m pytest tests/test_loader_interrupts.py

fuzz: $(VENV)/.base ## Every Go fuzz test for FUZZTIME each (20s; the long form is FUZZTIME=10m)
	@grep -rl '^func Fuzz' --include='*_test.go' gopkg pybind | while read -r file; do \
	  for name in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$$file"); do \
	    echo "$$(dirname "$$file") $$name"; \
	    $(GO) test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x "./$$(dirname "$$file")" </dev/null || exit 1; \
	  done; \
	done

bench: $(VENV)/.bench build ## Go benchmarks, then side by side with peers (BENCH_ARGS="sampler --quick")
	$(GO) test -run '^$$' -bench . -benchtime 0.3s ./...
	$(PY) -m tools.bench $(BENCH_ARGS)

build: $(VENV)/.base ## The extension in place; nothing to do when no Go file changed
	$(BUILD) --inplace

native: $(VENV)/.base ## Row tables for C and C++: the library, its header and an example into build/
	$(BUILD) --native

wheel: $(VENV)/.base ## sdist and wheel into dist/, the wheel for every glibc from 2.17 on
	zig=$$($(BUILD) --print zig-requirement) && $(PIP) install --quiet build $$zig
	zig=$$($(BUILD) --print zig) && CC="$$zig" $(PY) -m build --no-isolation

clean: ## Remove everything that was built, and the environment
	rm -rf build dist .venv .pytest_cache .ruff_cache *.egg-info loaderx/_native*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment: .base runs the project, the others add to it. A stamp is newer than
# pyproject.toml when what that file asks for has been installed.
$(PY):
	@for python in python3 python3.13 python3.12 python3.11 python3.10 python3.14; do \
	  if $$python $(RECENT) 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "error: Python 3.10 or newer is missing: install it from https://python.org."; exit 1; fi; \
	$$found -m venv $(VENV) || { echo "error: venv is missing: install python3-venv."; rm -rf $(VENV); exit 1; }

$(VENV)/.base: pyproject.toml setup.py | $(PY)
	@echo "setting up $(VENV) and building the engine: about three minutes the first time, if Go is not installed"
	needs=$$($(BUILD) --print requirements) && $(PIP) install --quiet "setuptools>=77" $$needs
	$(PIP) install --quiet --no-build-isolation --editable ".[examples]"
	@touch $@

$(VENV)/.test: $(VENV)/.base
	@echo "installing what the tests need: torch, jax and others, about 6 GB unless they are there"
	needs=$$($(BUILD) --print test-requirements) && $(PIP) install --quiet --no-build-isolation --editable ".[test]" $$needs
	@touch $@

$(VENV)/.lint: $(VENV)/.base
	$(PIP) install --quiet --no-build-isolation --editable ".[lint]"
	@touch $@

$(VENV)/.bench: $(VENV)/.base
	$(PIP) install --quiet --no-build-isolation --editable ".[bench]"
	@touch $@
