#!/usr/bin/env bash
# Builds, tests and times the CUDA backend on the GPUs of this machine, in less than nine minutes; the table comes last.
#
#     bench/gpu_check.sh [--build DIR] [--no-build] [--logs DIR] [--only STEP,...] [--peer-path DIR]
#                        [--peer-seconds N]
#
# Steps: digest, kernels, engine, layer, decode, kernel_bench, sanitizer, peers. Needs CMake, a C++20 compiler, nvcc, Open MPI,
# GoogleTest, fmt and nlohmann-json; with Boost.Program_options also the command line is checked. Peers need python3
# with PyTorch.
# NVLink multicast stays off.
set -uo pipefail
cd "$(dirname "$0")/.."
build=build-cuda
logs=""
only="kernels,engine,digest,sanitizer,layer,kernel_bench,decode,peers"
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
export PYTHONUNBUFFERED=1 MALLOC_PERTURB_=128
. bench/gpu/steps.sh
look_at_gpus gpu_check
[ $make -eq 0 ] || build_all "$build"
tests=$build/tests
if wants digest && built digest "$build/ringmark"; then
  layer="prefill --input tests/data/layer.safetensors --digest --quiet"
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
if wants engine && built decode_engine "$tests/decode_gpu_test"; then
  check decode_engine 120 "$tests/decode_gpu_test" --gtest_brief=1
  check decode_engine_fetch 120 env RINGMARK_TEST_FETCH=1 "$tests/decode_gpu_test" --gtest_brief=1
fi
if wants layer; then
  check layer 150 "$build/bench/layer_bench" --selection "$logs/selection.raw"
  cat "$logs/layer.log"
fi
if wants decode; then
  check decode 120 "$build/bench/decode_step_bench"
  cat "$logs/decode.log"
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
print_table
exit $failed
