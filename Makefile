# simdformer: `make demo`, `make lab` and `make test` do all their set-up themselves. `make help` lists the rest.
#
# Everything lands in $(VENV) and build/. Extra arguments for pip (another package index, a directory of wheels) go into
# pip's own variables, PIP_FIND_LINKS for example; arguments for the build into BUILD_ARGS:
#   make demo BUILD_ARGS="-C cmake.define.xsimd_ROOT=$HOME/xsimd"

PYTHON ?= python3
VENV ?= .venv
BUILD_ARGS ?=
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$(( n < 4 ? n : 4 )))
PYTEST_ARGS ?=
LAB_ARGS ?=
CLANG ?= clang++
FUZZ_SECONDS ?= 600
FUZZ_ARGS ?=
# what `make sanitize` runs of tests/kernels/test_*.py, beside tests/fuzz/test_fuzz_arguments.py
SANITIZED_TESTS ?= activation arrays attention attention_backward attention_semantics backward dlpack gather linear mixture norms out refusals rope \
  softmax

# Builds of the same sources in several folders compile them once, where ccache is installed.
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache 2>/dev/null)
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1

BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
SOURCES := CMakeLists.txt pyproject.toml cpp/headers.cmake $(shell find cpp -name '*.?pp' 2>/dev/null)
CXX_FILES := $(filter %.hpp %.cpp,$(SOURCES)) $(wildcard tests/cpp/*.?pp)
DEBIAN_HEADERS := libxsimd-dev libxtensor-dev

# $(call build_tests,FOLDER,OPTIONS) and $(call run_tests,FOLDER): the program of tests/cpp. Here each source compiles by
# itself, so that none leans on what another one includes.
define build_tests
	PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B $(1) -G Ninja -DSIMDFORMER_TESTS=ON -DSIMDFORMER_MODULE=OFF -DSIMDFORMER_UNITY=OFF \
	  -DSIMDFORMER_WERROR=ON $(patsubst cmake.define.%,-D%,$(filter cmake.define.%,$(BUILD_ARGS))) $(2) >/dev/null
	$(BIN)/cmake --build $(1) --parallel $(JOBS)
endef
run_tests = $(BIN)/ctest --test-dir $(1) --output-on-failure --parallel $(JOBS)

.DELETE_ON_ERROR:
.PHONY: help demo lab test test-all test-core-types fuzz ctest sanitize sanitize-address sanitize-thread clang aarch64 lint format notebooks build wheel clean

help:
	@echo "make demo       one attention step checked line by line, then a trained model that answers and writes"
	@echo "make lab        the notebooks in JupyterLab, with everything that they import"
	@echo "make test       every operation on every instruction set of this machine against PyTorch, models, check, the first notebook"
	@echo "make test-all   these in all their cases and what takes long: all notebooks, builds of sdist and wheel, training, fuzzing"
	@echo "make test-core-types  what judges learners' arrays, on each kind of OpenBLAS' kernels and each instruction set"
	@echo "make fuzz       inputs at random for every reader of files, FUZZ_SECONDS=600 for each"
	@echo "make ctest      the tests in C++: thread pool, scratch memory, kernels against xtensor"
	@echo "make sanitize   these and the tests of kernels and bindings with AddressSanitizer, UBSan and ThreadSanitizer"
	@echo "make clang      the extension and the tests in C++ as clang compiles them, without a warning"
	@echo "make aarch64    the tests in C++ compiled for 64-bit ARM, run by qemu"
	@echo "make lint       clang-format, ruff, mypy --strict, stubtest, biome"
	@echo "make format     clang-format, ruff and biome, in place"
	@echo "make notebooks  runs the notebooks again from their .py sources"
	@echo "make build      only the package, editable, in $(VENV)"
	@echo "make wheel      wheel and sdist in dist/, and on how old a Linux the wheel works"
	@echo "make clean      takes away $(VENV), build/ and dist/"

demo: $(STAMPS)/models
	$(BIN)/simdformer demo

# In a container, or over ssh: make lab LAB_ARGS="--no-browser --ip=0.0.0.0"
lab: $(STAMPS)/lab
	$(BIN)/jupyter lab notebooks/01_attention.ipynb $(LAB_ARGS)

# Processes side by side; the tests of one xdist_group (threads, builds) stay in one of them, one after the other.
# A process that died is not replaced: its group would be waited for without end.
side_by_side := -n $(JOBS) --dist loadgroup --max-worker-restart 0
pytest := $(BIN)/python -m pytest $(side_by_side)

test: $(STAMPS)/test
	$(pytest) -m "not slow and not unsampled" $(PYTEST_ARGS)

test-all: $(STAMPS)/test
	$(pytest) $(PYTEST_ARGS)

# A diagnosis must not hang on the last bit: numpy multiplies with the kernels of one core type after the other, ours
# run on the instruction sets in turn. OpenBLAS takes a core type at its word, so those that this CPU lacks are left out,
# and so is the pair that `make test` has run already: what OpenBLAS chooses here with our best instruction set. Of tests
# that are sampled each kind has another sample.
judging := $(filter-out %_exercises.py %_exercises_text.py %_learn_commands.py %_notebooks.py %_plots.py \
  %_plots_curves.py,$(wildcard tests/learn/test_*.py))
chosen_and_isas = import numpy, simdformer, threadpoolctl; \
  pools = {pool["internal_api"]: pool.get("architecture") for pool in threadpoolctl.threadpool_info()}; \
  print(pools.get("openblas"), *simdformer.isas())

test-core-types: $(STAMPS)/test
	@set -- $$($(BIN)/python -c '$(chosen_and_isas)'); chosen=$$1; shift; for best; do :; done; \
	for kind in Haswell:avx2 Zen:avx2 SkylakeX:avx512f; do \
	  grep -qw "$${kind#*:}" /proc/cpuinfo || continue; \
	  isa=$$1; shift; set -- "$$@" "$$isa"; \
	  [ "$${kind%:*} $$isa" != "$$chosen $$best" ] || continue; \
	  echo "OPENBLAS_CORETYPE=$${kind%:*} SIMDFORMER_ISA=$$isa"; sample=$$((sample + 1)); \
	  OPENBLAS_CORETYPE=$${kind%:*} SIMDFORMER_ISA=$$isa SIMDFORMER_SAMPLE=$$sample \
	    $(pytest) -q -m "not slow and not unsampled" $(judging) $(PYTEST_ARGS) || exit 1; \
	done

fuzz: $(STAMPS)/test
	$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

ctest: $(STAMPS)/tools
	$(call build_tests,build/ctest,)
	$(call run_tests,build/ctest)

# ThreadSanitizer sees memory and threads, which are the same on every instruction set.
sanitize: sanitize-thread sanitize-address

sanitize-thread: $(STAMPS)/tools
	$(call build_tests,build/thread,-DCMAKE_CXX_COMPILER=g++ -DCMAKE_BUILD_TYPE=Debug -DSIMDFORMER_SANITIZE=thread \
	  -DSIMDFORMER_ISAS=baseline\;neon)
	$(call run_tests,build/thread)

# The extension goes into an environment of its own, which sees the packages of $(VENV) but for simdformer. Leaks are
# looked for in C++ only: Python keeps much until the end. A size that no machine has must be a MemoryError.
sanitize-address: $(STAMPS)/test
	$(BIN)/python -m venv --without-pip build/address/venv
	$(BIN)/python -c 'import pathlib, sysconfig; [site] = pathlib.Path("build/address/venv").glob("lib/python*/site-packages"); \
	  (site / "packages.pth").write_text(sysconfig.get_path("purelib"))'
	CXX=g++ CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(BIN)/python -m pip --python build/address/venv/bin/python install --quiet \
	  --no-build-isolation --no-deps --force-reinstall . -C build-dir=build/address/tree -C cmake.build-type=Debug \
	  -C install.strip=false -C cmake.define.SIMDFORMER_SANITIZE=address,undefined -C cmake.define.SIMDFORMER_TESTS=ON \
	  -C 'cmake.define.SIMDFORMER_ISAS=baseline;avx2;neon$(if $(shell grep -wo -m1 avx512_bf16 /proc/cpuinfo),;avx512_bf16)' \
	  $(BUILD_ARGS)
	$(call run_tests,build/address/tree)
	rm -f build/address/finding.*
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so.6)" \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:log_path=$(CURDIR)/build/address/finding \
	  UBSAN_OPTIONS=print_stacktrace=1:log_path=$(CURDIR)/build/address/finding \
	  build/address/venv/bin/python -m pytest $(side_by_side) -p no:cacheprovider -m "not slow" \
	  tests/fuzz/test_fuzz_arguments.py $(SANITIZED_TESTS:%=tests/kernels/test_%.py) $(PYTEST_ARGS) \
	  || { cat build/address/finding.*; exit 1; }

# GCC takes some things that clang does not.
clang: $(STAMPS)/tools
	@command -v $(CLANG) >/dev/null || { echo "not here: $(CLANG). On Debian or Ubuntu: sudo apt-get install clang"; exit 1; }
	$(call build_tests,build/clang,-DCMAKE_CXX_COMPILER=$(CLANG) -DSIMDFORMER_MODULE=ON -DSIMDFORMER_UNITY=ON \
	  -DSIMDFORMER_ISAS=best -DPython_EXECUTABLE=$(abspath $(BIN)/python))
	$(call run_tests,build/clang)

# qemu runs what the cross compiler makes; only headers are wanted of xsimd and its companions.
aarch64: $(STAMPS)/tools
	@missing=$$(for tool in aarch64-linux-gnu-g++ qemu-aarch64; do command -v $$tool >/dev/null || echo $$tool; done); \
	  if [ -n "$$missing" ]; then echo "not here: $$missing. On Debian or Ubuntu: sudo apt-get install g++-aarch64-linux-gnu qemu-user"; exit 1; fi
	@mkdir -p build/aarch64/headers && ln -sfn /usr/include/xsimd /usr/include/xtl /usr/include/xtensor build/aarch64/headers
	$(call build_tests,build/aarch64/tree,-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu" \
	  $(foreach name,xsimd xtl xtensor,-D$(name)_ROOT=$(CURDIR)/build/aarch64/headers))
	$(call run_tests,build/aarch64/tree)

lint: $(STAMPS)/lint
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/biome check
	MYPYPATH=python $(BIN)/python -m mypy.stubtest simdformer._core

format: $(STAMPS)/lint
	$(BIN)/clang-format -i $(CXX_FILES)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/biome check --write

notebooks: $(STAMPS)/test
	$(BIN)/python notebooks/execute.py

build: $(STAMPS)/models

wheel: $(STAMPS)/test
	$(BIN)/python -m build --no-isolation
	$(BIN)/auditwheel show "$$(ls -t dist/*.whl | head -n 1)" # how old a Linux may be, and which symbols say so

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache

# ---- set-up -------------------------------------------------------------------------------------------------------

# Tests and checks want the kernels of every instruction set. Until somebody runs them, what this machine's best one and
# the one that runs everywhere take is enough, a third of the time. An empty value takes an earlier build's choice back.
isas = $(if $(filter lint test,$*)$(wildcard $(STAMPS)/lint $(STAMPS)/test),,best)
isa_args = $(if $(findstring SIMDFORMER_ISAS,$(BUILD_ARGS)),,-C cmake.define.SIMDFORMER_ISAS=$(isas))

# One stamp for each set of extras: the package, editable, with what those extras need. Python files need no new
# installation but where there is a new folder of them, C++ files a build that compiles only what changed. Of the
# thousands of modules that torch and transformers bring, Python compiles those that it imports (--no-compile).
$(STAMPS)/%: $(SOURCES) $(shell find python -name __init__.py) | $(STAMPS)/tools
	@echo "building and installing into $(VENV); the first time this takes some minutes"
	$(BIN)/python -m pip install --quiet --no-compile --no-build-isolation --editable ".[$*]" \
	  -C build-dir=build/editable $(isa_args) $(BUILD_ARGS)
	@touch $@

$(STAMPS)/tools: | $(BIN)/python $(STAMPS)/headers
	$(BIN)/python -m pip install --quiet --no-compile "scikit-build-core>=0.11" "pybind11>=3" "numpy>=2" "cmake>=3.25" "ninja>=1.11"
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
