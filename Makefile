# Nebula-I: `make demo` and `make test` do all their own set-up. The build itself is CMake's.
BUILD ?= build
JOBS ?= $(shell nproc)
# Most tests wait for timers and lines rather than for a core: twice as many run at a time as there are cores.
TEST_JOBS ?= $(shell expr 2 \* $(JOBS))
CMAKE = cmake -G Ninja
CTEST = ctest --output-on-failure -j $(TEST_JOBS)

.PHONY: all setup build demo test bench fuzz soak oclgrind opencl-losses science dist deb deb-test wheel dist-twice upgrade-test screenshots watch-bars format clean
all: build

setup:
	@tools/setup

build: setup
	@$(CMAKE) -S . -B $(BUILD)/release >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }; rm -f $(BUILD).log
	@cmake --build $(BUILD)/release -j $(JOBS)

# The main job, small, on this one machine: pre-training on two sites with a WAN between them, then distillation into a
# translation model; a few minutes on two cores. See tools/demo.
demo: build
	@tools/demo $(abspath $(BUILD))/release/nebula-i

# Every test: the normal build with gcc, ASan+UBSan and TSan with clang (so both compilers' warnings are errors).
test: build
	@tools/setup test
	@CC=clang CXX=clang++ $(CMAKE) -S . -B $(BUILD)/asan -DNEB_SANITIZE=address >/dev/null
	@cmake --build $(BUILD)/asan -j $(JOBS)
	@CC=clang CXX=clang++ $(CMAKE) -S . -B $(BUILD)/tsan -DNEB_SANITIZE=thread >/dev/null
	@cmake --build $(BUILD)/tsan -j $(JOBS)
	cd $(BUILD)/tsan && $(CTEST)
	cd $(BUILD)/asan && $(CTEST)
	cd $(BUILD)/release && $(CTEST)

# `make bench` lists and runs all of them.
bench: build
	@$(BUILD)/release/nebula-i bench
	@for b in $$($(BUILD)/release/nebula-i bench | awk '/^  /{print $$1}'); do \
		echo; echo "== $$b"; $(BUILD)/release/nebula-i bench $$b || exit 1; done

# Each fuzz target (or FUZZ_NAMES) for FUZZ_SECONDS, or FUZZ_RUNS executions by FUZZ_SPLIT processes each; one line each. New
# inputs go to build/fuzz/tests/corpus.
FUZZ_SECONDS ?= 60
FUZZ_RUNS ?=
FUZZ_NAMES ?=
FUZZ_SPLIT ?= 1
fuzz: setup
	@CC=clang CXX=clang++ $(CMAKE) -S . -B $(BUILD)/fuzz -DNEB_SANITIZE=fuzzer >/dev/null
	@cmake --build $(BUILD)/fuzz -j $(JOBS)
	@FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_RUNS=$(FUZZ_RUNS) FUZZ_SPLIT=$(FUZZ_SPLIT) FUZZ_JOBS=$(JOBS) tools/fuzz $(BUILD)/fuzz/tests $(FUZZ_NAMES)

# Each script of tests/soak for SOAK_SECONDS.
SOAK_SECONDS ?= 600
soak: build
	@for s in tests/soak/*.sh; do echo "== $$s"; $$s $(BUILD)/release/nebula-i $(SOAK_SECONDS) || exit 1; done

# The OpenCL kernels on a simulator that finds races and bad accesses; minutes.
oclgrind: build
	@tests/oclgrind.sh $(BUILD)/release/nebula-i
# The losses of 200 steps of mlm-mini with dropout on OpenCL (pocl, or what `device list` shows first) against the CPU's; minutes.
opencl-losses: build
	@bench/parity.py --nebula $(BUILD)/release/nebula-i --device opencl --only f32 --shape mlm-mini

# The measurements on real text (which is no part of the project), each one command: this lists them.
science:
	@tools/science --help

# One archive that runs on another machine, with a GPU or without. Built where there need be none.
dist: build
	@tools/dist $(BUILD)/release

# Packages: for Debian (dist/deb), and for pip (dist/*.whl), which is then tried in an empty environment. `make deb-test` installs the
# Debian packages in a fresh system and uses them (root, debootstrap, lintian). docs/installing.md has all ways.
deb: setup
	@tools/deb
deb-test: deb
	@tests/packaging/chroot.sh dist/deb
wheel: build
	@tests/packaging/wheel.sh $(BUILD)/release $(BUILD)/release/nebula-i
# Two builds in different folders give the same archive to the bit.
dist-twice: build
	@tests/packaging/dist_twice.sh
# A run is upgraded site by site from the last release (packaging/releases), and older ones are refused by name. Builds both.
upgrade-test: build
	@tests/packaging/upgrade.sh $(BUILD)/release/nebula-i

# Pictures of the live page in build/screenshots, for people to look at. Needs Chromium (Debian: chromium).
screenshots: build
	@python3 tests/watch/page.py $(BUILD)/release/nebula-i $(BUILD)/screenshots && ls $(BUILD)/screenshots

# How soon the live page shows a kill and a cut, what it costs, and what it costs the training. Some minutes; best on an idle machine.
watch-bars: build
	@python3 tests/watch/lab.py $(BUILD)/release/nebula-i --limit 3
	@python3 tests/watch/cost.py $(BUILD)/release/nebula-i --limit
	@python3 tests/watch/watched.py $(BUILD)/release/nebula-i --limit 0.995

format:
	@tools/check-format --fix

clean:
	rm -rf $(BUILD)
