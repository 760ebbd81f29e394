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
SECONDS := $(if $(filter command line environment,$(origin SECONDS)),$(SECONDS),60)
FUZZ_CC ?= $(shell tests/fuzz/compiler.sh)
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

# pytest with a process for each core, a file at a time. Threads that wait leave their core to others.
pytest = OMP_WAIT_POLICY=passive $1 -m pytest -q -p no:cacheprovider -n $(JOBS) --maxprocesses 8 \
         --dist loadfile

# $(call suite,ctest flags,pytest flags): the C tests, then the Python tests, then both summaries.
suite = status=0; \
    $(call ctest,$(BUILD),$1) || status=1; \
    OCTET_BUILD=$(abspath $(BUILD)) OCTET_CMAKE=$(CMAKE) \
        $(call pytest,$(BIN)/python) $2 tests || status=1; \
    grep 'tests passed' $(BUILD)/ctest.log || status=1; \
    exit $$status

.NOTPARALLEL:
.PHONY: help lib demo test test-all test-torch test-gpu sanitize sanitize-gpu tsan fuzz \
        coverage matrix soak format format-check bench bench-gpu docs examples install wheel \
        wheel-check release-check clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' Makefile | expand -t 20

lib: $(WHEEL) ## the static library, the shared library and the program, in build/
	@$(call build,$(BUILD),lib)

demo: $(WHEEL) $(TOOLS) ## train a small GPT in every recipe: a table, a picture, and a report in build/demo.html
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
	@$(call pytest,.venv-torch-$(TORCH)/bin/python) $(quick) tests/python

sanitize: $(WHEEL) ## the C tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(call build,build-sanitize,all,-DOCTET_WERROR=OFF -DOCTET_SANITIZE=address$(comma)undefined)
	@$(call ctest,build-sanitize,$(fast))

tsan: $(WHEEL) ## the C tests under ThreadSanitizer
	@$(call build,build-tsan,all,-DOCTET_WERROR=OFF -DOCTET_SANITIZE=thread)
	@$(call ctest,build-tsan,$(fast))

# libFuzzer where clang has it, else the driver of ours and gcc's coverage.
fuzz: $(WHEEL) ## every fuzz target, SECONDS=60 in all; findings go to build-fuzz/findings
	@$(call build,build-fuzz,fuzzers,-DCMAKE_C_COMPILER=$(FUZZ_CC) -DOCTET_FUZZ=ON \
	    -DOCTET_WERROR=OFF -DOCTET_PYTHON=OFF -DOCTET_SANITIZE=address$(comma)undefined)
	@$(PYTHON) tests/fuzz/run.py --build build-fuzz --seconds $(SECONDS) \
	    --out build-fuzz/findings

coverage: $(WHEEL) $(TOOLS) ## lines and branches that the tests reach, by folder of src
	@OCTET_CMAKE=$(CMAKE) $(BIN)/python tests/reached.py --jobs $(JOBS)

matrix: ## the C tests by every compiler and build type that is here, and on aarch64 by qemu
	@tests/matrix.sh $(JOBS)

soak: $(WHEEL) $(TOOLS) ## training on the CPU for SECONDS=60, disturbed at random; an hour is the aim
	@$(call build,$(BUILD),lib,-DOCTET_PYTHON=ON)
	@OMP_WAIT_POLICY=passive PYTHONPATH=python $(BIN)/python tests/soak.py --seconds $(SECONDS)

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

bench-gpu: lib ## Linear and blocks of a model on the GPU beside their rivals, by PYTHON; writes bench/RESULTS.md
	PYTHONPATH=python $(PYTHON) bench/gpu.py
	PYTHONPATH=python $(PYTHON) bench/blocks.py

docs: $(WHEEL) $(TOOLS) .venv/docs ## the book as a site in build/docs; a dead link or a warning fails
	@$(call build,$(BUILD),lib,-DOCTET_PYTHON=ON)
	@rm -rf $(BUILD)/docs
	@$(BIN)/python -m sphinx -q -E -W --keep-going -b html -c docs . $(BUILD)/docs
	@echo "the book: $(BUILD)/docs/index.html"

examples: $(WHEEL) ## build the example programs
	@$(call build,$(BUILD),examples)

install: lib ## into PREFIX (default /usr/local); DESTDIR is honoured
	@$(CMAKE) --install $(BUILD) --prefix $(PREFIX)

wheel: $(WHEEL) $(TOOLS) ## a manylinux wheel for every CPython from 3.10 on, and the sdist, in dist/
	@PATH="$(BIN):$$PATH" $(BIN)/python tests/wheels.py build --jobs $(JOBS)

wheel-check: wheel ## install both in fresh environments, of every Python that is here, and try them
	@PATH="$(BIN):$$PATH" $(BIN)/python tests/wheels.py check

release-check: wheel ## version, changelog, wheel, sdist and pages agree
	@$(BIN)/python tests/release.py

clean: ## remove what the build made; .venv stays
	rm -rf $(BUILD) build-sanitize build-tsan build-fuzz build-coverage build-matrix

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(BIN)/cmake: | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check 'cmake>=3.25,<5'

$(TOOLS): tests/requirements.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $@

.venv/docs: docs/requirements.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

.venv-torch-%/tools: tests/requirements.txt
	test -x .venv-torch-$*/bin/python || $(PYTHON) -m venv .venv-torch-$*
	sed 's/^torch==.*/torch==$*/; /^nvidia-/d' tests/requirements.txt > .venv-torch-$*/requirements.txt
	.venv-torch-$*/bin/pip install --quiet --disable-pip-version-check -r .venv-torch-$*/requirements.txt
	@touch $@
