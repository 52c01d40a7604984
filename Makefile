# Ringmark: `make demo` shows it, `make test` checks it. Both install what they need (Debian 12 packages), configure and
# build first; a second call takes seconds.

BUILD := build
JOBS := $(shell nproc)
PACKAGES := g++ cmake ninja-build ccache openmpi-bin libopenmpi-dev libboost-program-options-dev libfmt-dev \
            nlohmann-json3-dev libspdlog-dev libssl-dev libucx-dev libhwloc-dev libsimgrid-dev libgtest-dev \
            libopenblas-dev pkg-config clang libclang-rt-14-dev clang-format clang-tidy python3 python3-numpy gnuplot-nox \
            slurm-wlm munge iproute2 shellcheck chromium

# mpirun refuses root without these; more ranks than cores is normal on a workstation.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_rmaps_base_oversubscribe := 1

.PHONY: build demo test test-full test-cluster bench gpu-check lint format packages clean

build: packages
	@cmake --preset release > $(BUILD).configure.log 2>&1 || { cat $(BUILD).configure.log; exit 1; }
	@sed -n '/Ringmark/,/sanitizers/p' $(BUILD).configure.log
	@cmake --build --preset release --target ringmark

all: build
	@cmake --build --preset release

demo: build
	@cluster/demo.sh $(BUILD)/ringmark

test: all
	@cmake --preset asan > $(BUILD)-asan.configure.log 2>&1 || { cat $(BUILD)-asan.configure.log; exit 1; }
	@cmake --build --preset asan
	ctest --preset fast
	ctest --preset asan

test-full: test
	ctest --preset full

# What brings up a Slurm cluster on this machine; as root.
test-cluster: all
	ctest --preset cluster

bench: all
	@bench/run.sh $(BUILD)

# On a machine with a GPU: build, test and time the CUDA backend.
gpu-check:
	@bench/gpu_check.sh

# Changed files only: against the last commit, or BASE=<commit>.
lint: all
	@tests/lint.sh $(BUILD) $(BASE)

format:
	@git ls-files '*.h' '*.cpp' '*.inl' '*.cu' '*.cuh' | xargs clang-format -i

packages:
	@missing=$$(for package in $(PACKAGES); do \
	  dpkg-query -W -f='$${Status}' $$package 2>/dev/null | grep -q 'install ok installed' || echo $$package; done); \
	if [ -n "$$missing" ]; then \
	  echo "installing:" $$missing; \
	  [ "$$(id -u)" = 0 ] || { echo "not root; run: apt-get install" $$missing; exit 3; }; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing > /dev/null; \
	fi

clean:
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-debug $(BUILD)*.configure.log
