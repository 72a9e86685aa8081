# simdformer: `make demo` and `make test` do all their set-up themselves. `make help` lists the rest.
#
# Everything lands in $(VENV) and build/. Extra arguments for pip (another package index, a directory of wheels) go into
# pip's own variables, PIP_FIND_LINKS for example; arguments for the build into BUILD_ARGS:
#   make demo BUILD_ARGS="-C cmake.define.xsimd_ROOT=$HOME/xsimd"

PYTHON ?= python3
VENV ?= .venv
BUILD_ARGS ?=
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$(( n < 4 ? n : 4 )))
PYTEST_ARGS ?=

BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
SOURCES := CMakeLists.txt pyproject.toml $(shell find cpp -name '*.?pp' 2>/dev/null)
CXX_FILES := $(filter %.hpp %.cpp,$(SOURCES))
DEBIAN_HEADERS := libxsimd-dev libxtensor-dev

.DELETE_ON_ERROR:
.PHONY: help demo test lint format notebooks build wheel clean

help:
	@echo "make demo       one attention step checked line by line, then a trained model that answers and writes"
	@echo "make test       every kernel on every instruction set of this machine against PyTorch"
	@echo "make lint       clang-format, ruff, mypy --strict, stubtest"
	@echo "make format     clang-format and ruff, in place"
	@echo "make notebooks  runs the notebooks again from their .py sources"
	@echo "make build      only the package, editable, in $(VENV)"
	@echo "make wheel      wheel and sdist in dist/"
	@echo "make clean      takes away $(VENV), build/ and dist/"

demo: $(STAMPS)/models
	$(BIN)/simdformer demo

# Processes side by side; the tests of one xdist_group (threads, builds) stay in one of them, one after the other.
test: $(STAMPS)/test
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(PYTEST_ARGS)

lint: $(STAMPS)/lint
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=python $(BIN)/python -m mypy.stubtest simdformer._core

format: $(STAMPS)/lint
	$(BIN)/clang-format -i $(CXX_FILES)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

notebooks: $(STAMPS)/test
	$(BIN)/python notebooks/execute.py

build: $(STAMPS)/models

wheel: $(STAMPS)/test
	$(BIN)/python -m build --no-isolation

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache

# ---- set-up -------------------------------------------------------------------------------------------------------

# One stamp for each set of extras: the package, editable, with what those extras need. Python files need no new
# installation, C++ files a build that compiles only what changed.
$(STAMPS)/%: $(SOURCES) | $(STAMPS)/tools
	@echo "building and installing into $(VENV); the first time this takes some minutes"
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[$*]" -C build-dir=build/editable $(BUILD_ARGS)
	@touch $@

$(STAMPS)/tools: | $(BIN)/python $(STAMPS)/headers
	$(BIN)/python -m pip install --quiet "scikit-build-core>=0.11" "pybind11>=3" "cmake>=3.18" "ninja>=1.11"
	@touch $@

# Debian keeps the machinery of pip in an environment (ensurepip) in a package of its own; pip can do without it.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "simdformer needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	  rm -rf $(VENV); \
	  echo "python3-venv is not installed; making $(VENV) with pip alone"; \
	  $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; \
	} || { \
	  rm -rf $(VENV); \
	  echo "No virtual environment could be made. On Debian or Ubuntu: sudo apt-get install python3-venv python3-pip"; \
	  exit 1; }

# The system's headers, when they are missing and we may install them. Where they cannot be installed the build looks
# for other ways and, when there is none, says what to do.
define missing_headers
printf '#include <xsimd/xsimd.hpp>\n#include <xtensor/xtensor_config.hpp>\n#include <xtl/xtl_config.hpp>\n' \
  | $${CXX:-c++} -std=c++17 -E -x c++ - >/dev/null 2>&1 || echo $(DEBIAN_HEADERS); \
$(BIN)/python -c 'import os, sysconfig; print("" if os.path.exists(sysconfig.get_path("include") + "/Python.h") \
else "python3-dev")'
endef

$(STAMPS)/headers: | $(BIN)/python
	@mkdir -p $(STAMPS)
	@command -v $${CXX:-c++} >/dev/null || { \
	  echo "No C++ compiler. On Debian or Ubuntu: sudo apt-get install g++"; exit 1; }
	@packages=$$(echo $$($(missing_headers))); \
	if [ -n "$$packages" ]; then \
	  if [ "$$(id -u)" = 0 ]; then may=""; else may="sudo -n"; fi; \
	  if command -v apt-get >/dev/null && { [ -z "$$may" ] || $$may true 2>/dev/null; }; then \
	    echo "installing $$packages"; \
	    $$may apt-get update -qq && \
	    $$may env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$packages >/dev/null \
	    || echo "That did not work. Install $$packages by hand, or see what the build finds."; \
	  else \
	    echo "Not installed: $$packages. On Debian or Ubuntu: sudo apt-get install $$packages"; \
	  fi; \
	fi
	@touch $@
