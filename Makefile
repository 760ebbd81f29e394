# Makefile - the front door; the build itself is CMake. `make help` lists what it opens.
#
# `make lib` needs a C compiler and cmake 3.18. The rest keeps its Python tools in .venv, and so
# does `make lib` its cmake where the machine has none.

PYTHON ?= python3
PREFIX ?= /usr/local
WERROR ?= ON
BUILD  ?= build
TORCH  ?= 2.15.0
TOOL   ?= memcheck
JOBS   ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)

BIN   := $(CURDIR)/.venv/bin
TOOLS := .venv/tools
CMAKE := $(shell cmake -P cmake/version.cmake 2>/dev/null && ctest --version >/dev/null 2>&1 \
             && command -v cmake || echo $(BIN)/cmake)
CTEST := $(dir $(CMAKE))ctest
WHEEL := $(filter $(BIN)/cmake,$(CMAKE))

C_FILES = $(shell find include src tests tools bench examples -name '*.[ch]' -o -name '*.cu' 2>/dev/null)

# $(call build,folder,target,cmake flags) configures, in silence unless it fails, and builds.
build = $(CMAKE) -S . -B $1 -DOCTET_WERROR=$(WERROR) $3 >/dev/null \
        && MAKEFLAGS= MAKELEVEL= $(CMAKE) --build $1 --target $2 -j $(JOBS)

# $(call ctest,folder,ctest flags)
ctest = (cd $1 && $(CTEST) -j $(JOBS) --output-on-failure -O ctest.log $2)
fast  = -LE '^long$$'
quick = -m 'not long'
comma := ,

# $(call suite,ctest flags,pytest flags): the C tests, then the Python tests, then both summaries.
suite = status=0; \
    $(call ctest,$(BUILD),$1) || status=1; \
    OCTET_BUILD=$(abspath $(BUILD)) OCTET_CMAKE=$(CMAKE) \
        $(BIN)/python -m pytest -q -p no:cacheprovider $2 tests || status=1; \
    grep 'tests passed' $(BUILD)/ctest.log || status=1; \
    exit $$status

.NOTPARALLEL:
.PHONY: help lib demo test test-all test-torch test-gpu sanitize sanitize-gpu tsan format \
        format-check bench bench-gpu examples install clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' Makefile | expand -t 20

lib: $(WHEEL) ## the static library, the shared library and the program, in build/
	@$(call build,$(BUILD),lib)

demo: $(WHEEL) $(TOOLS) ## train a small GPT in every recipe: a table, and the losses as a picture
	@$(call build,$(BUILD),lib,-DOCTET_PYTHON=ON)
	@PYTHONPATH=python $(BIN)/python examples/python/gpt/demo.py --out $(BUILD)/demo.png

test: $(WHEEL) $(TOOLS) ## every test but the long ones
	@$(call build,$(BUILD),all)
	@$(call suite,$(fast),$(quick))

test-all: $(WHEEL) $(TOOLS) ## every test; the long ones take minutes
	@$(call build,$(BUILD),all)
	@$(call suite)

test-gpu: lib ## the tests that need a GPU, by PYTHON, whose torch must see it
	PYTHONPATH=python $(PYTHON) -m pytest -q -p no:cacheprovider tests/gpu

# Without torch's cache of memory each tensor ends where its allocation does.
sanitize-gpu: lib ## awkward shapes of every recipe under compute-sanitizer: TOOL=racecheck
	PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONPATH=python \
	    compute-sanitizer --tool $(TOOL) --error-exitcode 1 \
	    $(PYTHON) -m pytest -q -p no:cacheprovider tests/gpu \
	    -k "strided or other_dtypes or equals_the_cpu or (more_tiles and tensor)"

test-torch: lib .venv-torch-$(TORCH)/tools ## the Python tests on the newest torch, or on another: TORCH=2.10.0
	@.venv-torch-$(TORCH)/bin/python -m pytest -q -p no:cacheprovider $(quick) tests/python

sanitize: $(WHEEL) ## the C tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(call build,build-sanitize,all,-DOCTET_WERROR=OFF -DOCTET_SANITIZE=address$(comma)undefined)
	@$(call ctest,build-sanitize,$(fast))

tsan: $(WHEEL) ## the C tests under ThreadSanitizer
	@$(call build,build-tsan,all,-DOCTET_WERROR=OFF -DOCTET_SANITIZE=thread)
	@$(call ctest,build-tsan,$(fast))

format: $(TOOLS) ## rewrite C with clang-format and Python with ruff
	@$(BIN)/clang-format -i $(C_FILES)
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --fix .

format-check: $(TOOLS) ## fail where `make format` would change something
	@$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

bench: $(WHEEL) $(TOOLS) ## run the benchmarks beside torch; writes bench/RESULTS.md
	@$(call build,$(BUILD),all)
	@$(call build,$(BUILD),bench)
	@$(BIN)/python bench/report.py --build $(BUILD)

bench-gpu: lib ## Linear on the GPU beside its rivals, by PYTHON; writes bench/RESULTS.md
	PYTHONPATH=python $(PYTHON) bench/gpu.py

examples: $(WHEEL) ## build the example programs
	@$(call build,$(BUILD),examples)

install: lib ## into PREFIX (default /usr/local); DESTDIR is honoured
	@$(CMAKE) --install $(BUILD) --prefix $(PREFIX)

clean: ## remove what the build made; .venv stays
	rm -rf $(BUILD) build-sanitize build-tsan

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(BIN)/cmake: | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check 'cmake>=3.25,<5'

$(TOOLS): tests/requirements.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $@

.venv-torch-%/tools: tests/requirements.txt
	test -x .venv-torch-$*/bin/python || $(PYTHON) -m venv .venv-torch-$*
	sed 's/^torch==.*/torch==$*/; /^nvidia-/d' tests/requirements.txt > .venv-torch-$*/requirements.txt
	.venv-torch-$*/bin/pip install --quiet --disable-pip-version-check -r .venv-torch-$*/requirements.txt
	@touch $@
