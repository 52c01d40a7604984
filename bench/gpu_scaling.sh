#!/usr/bin/env bash
# Several GPUs of one machine, a rank each: correctness first, then how a layer scales from one GPU to all of them, what
# it moves, and what becomes of a job that loses a rank; the table comes last. Under four minutes on two H200s.
#
#     bench/gpu_scaling.sh [--build DIR] [--no-build] [--logs DIR] [--only STEP,...] [--ranks N] [--tokens N]
#
# Steps: digest, tests, fetch, layer, random, dense, kill. Needs what bench/gpu_check.sh needs, and the command line. --ranks is
# the number of GPUs unless given; more than there are share them, without NCCL, to try the script. --tokens: of the layer
# that is scaled. NVLink multicast stays off.
set -uo pipefail
cd "$(dirname "$0")/.."
build=build-cuda
logs=""
only="digest,tests,fetch,layer,random,dense,kill"
ranks=""
tokens=1048576
make=1
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build=$2; shift 2 ;;
    --no-build) make=0; shift ;;
    --logs) logs=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --ranks) ranks=$2; shift 2 ;;
    --tokens) tokens=$2; shift 2 ;;
    *) echo "gpu_scaling: unknown option $1" >&2; exit 2 ;;
  esac
done
logs=${logs:-$build/gpu_scaling}
mkdir -p "$logs"
. bench/gpu/steps.sh
look_at_gpus gpu_scaling
ranks=${ranks:-$count}
[ "$ranks" -ge 2 ] || { echo "gpu_scaling: needs 2 GPUs or --ranks 2, here is $count" >&2; exit 3; }
share="" transports="cuda-ipc nccl"
[ "$ranks" -le "$count" ] || { share=--share-gpu transports=cuda-ipc; }
export OMP_NUM_THREADS=$(($(nproc) > ranks ? $(nproc) / ranks : 1))
# Bound to a core, as mpirun would, the threads of a rank would stand in each other's way.
all="mpirun --oversubscribe --bind-to none -n $ranks"
[ $make -eq 0 ] || build_all "$build"
# figures NAME PATTERN: lines of a log become lines of the table.
figures() { while IFS= read -r line; do note "" "" "$line"; done < <(grep -E "$2" "$logs/$1.log"); }

if wants digest && built digest "$build/ringmark"; then
  layer="prefill --input tests/data/layer.safetensors --digest --quiet"
  golden digest_cpu "$build/ringmark" $layer
  for transport in $transports; do
    for merge in landmarks scores; do
      golden "digest_${ranks}_ranks_${transport}_$merge" $all "$build/ringmark" $layer --backend cuda $share \
        --transport $transport --merge $merge
    done
  done
  golden "digest_${ranks}_ranks_stream" $all "$build/ringmark" $layer --backend cuda $share --fetch stream
fi
if wants tests && built tests "$build/tests/prefill_gpu_mpi_test"; then
  check "transports_$ranks" 90 $all "$build/tests/cuda_ipc_mpi_test" --gtest_brief=1
  for transport in $transports; do
    check "engine_${ranks}_$transport" 120 env RINGMARK_TEST_TRANSPORT=$transport $all \
      "$build/tests/prefill_gpu_mpi_test" --gtest_brief=1
  done
fi
if wants fetch; then
  check fetch 90 $all "$build/bench/fetch_bench" $share $transports
  cat "$logs/fetch.log"
  figures fetch '^(cuda-ipc|nccl) '
fi
if wants layer; then
  check layer 150 $all "$build/bench/layer_bench" $share --alone --tokens "$tokens" --no-dense
  cat "$logs/layer.log"
  figures layer ' times one |^(wall|exposed|bytes)'
fi
# Every query turns to a direction of its own: nearly all blocks are chosen.
if wants random; then
  for fetch in auto stream blocks; do
    check "random_$fetch" 60 $all "$build/bench/layer_bench" $share --tokens 131072 --no-dense --agreement 0 --topics 0 \
      --fetch $fetch
    cat "$logs/random_$fetch.log"
    figures "random_$fetch" '^(wall|fetch|exposed)'
  done
fi

if wants dense; then
  ! built dense_engine "$build/tests/dense_ring_gpu_test" ||
    check dense_engine 90 "$build/tests/dense_ring_gpu_test" --gtest_brief=1
  check dense 90 $all "$build/bench/dense_ring_bench" $share
  cat "$logs/dense.log"
  figures dense '^(dense|ring of|a GPU|[0-9]+ GPUs)'
fi

# What is taken of all GPUs, MiB.
memory_used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | awk '{ sum += $1 } END { print sum }'; }
now() { echo $(($(date +%s%N) / 1000000)); } # milliseconds
pause() { sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"; }
# start_long: a job whose ranks leave their process ids in $logs/pid.RANK; plain kernels and many waves make it long.
start_long() {
  rm -f "$logs"/pid.*
  timeout -k 5 90 $all sh -c 'echo $$ > "$0/pid.$OMPI_COMM_WORLD_RANK"; exec "$@"' "$logs" \
    "$build/ringmark" prefill --planted 256k --heads 32 --kv-heads 8 --head-dim 128 --topk 64 --window 4096 $share \
    --backend cuda --kernels simt --fetch blocks --fetch-mib 512 --deadline $deadline --quiet \
    > "$logs/kill.out" 2> "$logs/kill.log" < /dev/null &
  running=$!
}
# lose SIGNAL MILLISECONDS: rank 1 gets the signal so long after the start; the job must end in time with exit code 4, or
# 137 where mpirun sees the death first, and leave no memory taken.
lose() {
  local signal=$1 after=$2 status=0 since took left limit=$((deadline * 1000 + 2000))
  start_long
  pause "$after"
  kill -s "$signal" "$(cat "$logs/pid.1")" 2> /dev/null || { wait $running; return 1; }
  since=$(now)
  wait $running || status=$?
  took=$(($(now) - since))
  for _ in 1 2 3 4 5 6 7 8; do
    left=$(($(memory_used) - before))
    [ $left -gt 16 ] || break
    sleep 0.25
  done
  local words="at $after ms: exit $status after $took ms, $left MiB left  $(grep -m1 '^ringmark' "$logs/kill.log" | cut -c1-120)"
  if { [ $status -eq 4 ] || [ $status -eq 137 ]; } && [ $took -le $limit ] && [ $left -le 16 ]; then
    note "rank_1_$signal" ok "$words"
  else
    note "rank_1_$signal" FAILED "$words"
    failed=1
  fi
}
if wants kill && built kill "$build/ringmark"; then
  deadline=5
  before=$(memory_used)
  since=$(now)
  start_long
  if wait $running; then
    length=$(($(now) - since))
    cp "$logs/kill.out" "$logs/undisturbed.log"
    figures undisturbed '^seconds'
    for share_of_run in 50 56 62 68; do lose KILL $((length * share_of_run / 100)) || note rank_1_KILL late "it had ended"; done
    for share_of_run in 53 65; do lose STOP $((length * share_of_run / 100)) || note rank_1_STOP late "it had ended"; done
  else
    note undisturbed FAILED "$(tail -1 "$logs/kill.log")"
    failed=1
  fi
fi
print_table
exit $failed
