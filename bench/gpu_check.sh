#!/usr/bin/env bash
# Builds, tests and times the CUDA backend on the GPUs of this machine, in less than nine minutes; the table comes last.
#
#     bench/gpu_check.sh [--build DIR] [--no-build] [--logs DIR] [--only STEP,...] [--peer-path DIR]
#                        [--peer-seconds N]
#
# Steps: digest, kernels, engine, layer, kernel_bench, sanitizer, peers. Needs CMake, a C++20 compiler, nvcc, Open MPI,
# GoogleTest, fmt and nlohmann-json; with Boost.Program_options also the command line is checked. Peers need python3
# with PyTorch.
# NVLink multicast stays off.
set -uo pipefail
cd "$(dirname "$0")/.."
build=build-cuda
logs=""
only="kernels,engine,digest,sanitizer,layer,kernel_bench,peers"
peer_path=""
peer_seconds=90
make=1
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build=$2; shift 2 ;;
    --no-build) make=0; shift ;;
    --logs) logs=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --peer-path) peer_path=$2; shift 2 ;;
    --peer-seconds) peer_seconds=$2; shift 2 ;;
    *) echo "gpu_check: unknown option $1" >&2; exit 2 ;;
  esac
done
logs=${logs:-$build/gpu_check}
mkdir -p "$logs"
export NCCL_NVLS_ENABLE=0 NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} # one host
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PYTHONUNBUFFERED=1
export MALLOC_PERTURB_=128
started=$SECONDS
table=""
failed=0
wants() { [[ ",$only," == *",$1,"* ]]; }
note() { table+=$(printf '%-34s %-8s %s' "$1" "$2" "$3")$'\n'; }

# check NAME LIMIT COMMAND...: runs it, keeps its log, notes how it ended.
check() {
  local name=$1 limit=$2 begin=$SECONDS status=0
  shift 2
  timeout -k 5 "$limit" "$@" > "$logs/$name.log" 2>&1 || status=$?
  local last
  last=$(grep -E 'PASSED|FAILED|ERROR SUMMARY|error' "$logs/$name.log" | tail -1)
  if [ $status -eq 0 ]; then
    note "$name" ok "$((SECONDS - begin)) s  $last"
  else
    note "$name" FAILED "exit $status after $((SECONDS - begin)) s  $last"
    failed=1
    echo "== $name failed; the end of $logs/$name.log:"
    tail -25 "$logs/$name.log"
  fi
  return $status
}

gpus=$(nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm --format=csv,noheader) ||
  { echo "gpu_check: no GPU here" >&2; exit 3; }
count=$(wc -l <<< "$gpus")
echo "== $count GPU(s): $gpus"
if [ $make -eq 1 ]; then
  # NCCL is often there only as PyTorch brought it.
  [ -n "${NCCL_ROOT:-}" ] || NCCL_ROOT=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)
  export NCCL_ROOT
  cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DRINGMARK_CUDA=ON > "$logs/configure.log" 2>&1 &&
    cmake --build "$build" -j "$(nproc)" > "$logs/build.log" 2>&1 ||
    { tail -30 "$logs/configure.log" "$logs/build.log"; exit 1; }
  note build ok "$((SECONDS - started)) s"
fi

# built NAME PROGRAM: whether it is there; notes when not.
built() {
  [ -x "$2" ] && return 0
  note "$1" "not built" ""
  return 1
}
tests=$build/tests
if wants digest && built digest "$build/ringmark"; then
  want=1a88575264c5d822
  layer="prefill --input tests/data/layer.safetensors --digest --quiet"
  golden() { # NAME COMMAND...
    local name=$1 got
    shift
    got=$(timeout -k 5 60 "$@" 2> "$logs/$name.log" | sed -n 's/^selection_digest //p')
    if [ "$got" = "$want" ]; then note "$name" ok "$got"; else
      note "$name" FAILED "'$got', want $want  $(tail -1 "$logs/$name.log")"
      failed=1
    fi
  }
  share=$([ "$count" -lt 2 ] && echo --share-gpu)
  two="mpirun --oversubscribe -n 2 $build/ringmark $layer --backend cuda"
  golden digest_cpu "$build/ringmark" $layer
  for kernels in hopper mma simt; do golden "digest_$kernels" "$build/ringmark" $layer --backend cuda --kernels $kernels; done
  for merge in landmarks scores; do golden "digest_2_ranks_ipc_$merge" $two $share --transport cuda-ipc --merge $merge; done
  for fetch in blocks stream; do golden "digest_2_ranks_$fetch" $two $share --fetch $fetch; done
  golden digest_1_rank_nccl "$build/ringmark" $layer --backend cuda --transport nccl
  [ "$count" -lt 2 ] || golden digest_2_ranks_nccl $two --transport nccl
  if [ "$count" -lt 2 ]; then # two ranks on one GPU without consent
    timeout 60 $two > "$logs/refused.log" 2>&1
    [ $? -eq 3 ] && note one_gpu_for_two_ranks ok "refused with exit code 3" || { note one_gpu_for_two_ranks FAILED ""; failed=1; }
  fi
fi
if wants kernels; then
  check kernels 120 "$tests/cuda_kernels_test" --gtest_brief=1
  built transports "$tests/cuda_transport_test" && check transports 60 "$tests/cuda_transport_test" --gtest_brief=1
  check transport_2_processes 60 mpirun --oversubscribe -n 2 "$tests/cuda_ipc_mpi_test" --gtest_brief=1
fi
if wants engine; then
  check engine 120 "$tests/prefill_gpu_test" --gtest_brief=1 --gtest_filter=-*Full.*
  for kernels in mma simt; do
    check "engine_$kernels" 120 env RINGMARK_TEST_KERNELS=$kernels "$tests/prefill_gpu_test" --gtest_brief=1 \
      '--gtest_filter=*golden*:*random*-*Full.*'
  done
fi
if wants layer; then
  check layer 150 "$build/bench/layer_bench" --selection "$logs/selection.raw"
  cat "$logs/layer.log"
fi
if wants kernel_bench; then
  check kernel_bench 60 "$build/bench/kernel_bench"
  cat "$logs/kernel_bench.log"
fi
if wants sanitizer; then
  small='HopperScore.Newest*:*Chosen.rows_without*:*Window.rows_out*:MmaScore.what_is_not*:SettleChoices.what_is_not*'
  small+=':CudaWeighChunks.*:ScoreExactly.nan*:PlanUnions.*:CudaMergePartials.*'
  for tool in memcheck racecheck; do
    check "$tool" 90 compute-sanitizer --tool $tool --error-exitcode 9 "$tests/cuda_kernels_test" --gtest_brief=1 \
      "--gtest_filter=$small"
  done
fi
if wants peers; then
  check peers 110 python3 bench/gpu/peers.py --limit "$peer_seconds" ${peer_path:+--peer-path "$peer_path"} \
    $([ -f "$logs/selection.raw" ] && echo --selection "$logs/selection.raw")
  cat "$logs/peers.log"
fi
rm -f "$logs/selection.raw"
echo
echo "== $(date -u +%F), $(head -1 <<< "$gpus"), $((SECONDS - started)) s in all"
printf '%s' "$table"
exit $failed
