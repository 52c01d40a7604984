# Sourced by the scripts that check and time GPUs. They set $logs, the folder of all logs, and print $table at their end;
# $failed is their exit code.
export NCCL_NVLS_ENABLE=0 NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} # one host
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 GTEST_COLOR=no
started=$SECONDS
table=""
failed=0
wants() { [[ ",$only," == *",$1,"* ]]; }
note() { table+=$(printf '%-34s %-8s %s' "$1" "$2" "$3")$'\n'; }

# check NAME LIMIT COMMAND...: runs it, keeps its log, notes how it ended.
check() {
  local name=$1 limit=$2 begin=$SECONDS status=0
  shift 2
  timeout -k 5 "$limit" "$@" > "$logs/$name.log" 2>&1 < /dev/null || status=$?
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

# golden NAME COMMAND...: a run of the golden layer with --digest must print its digest.
golden() {
  local name=$1 want=1a88575264c5d822 got
  shift
  got=$(timeout -k 5 60 "$@" 2> "$logs/$name.log" < /dev/null | sed -n 's/^selection_digest //p')
  if [ "$got" = "$want" ]; then note "$name" ok "$got"; else
    note "$name" FAILED "'$got', want $want  $(head -1 "$logs/$name.log")"
    failed=1
  fi
}

# look_at_gpus PROGRAM: what there is, as $gpus and $count; ends the script where there is none.
look_at_gpus() {
  gpus=$(nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm --format=csv,noheader) ||
    { echo "$1: no GPU here" >&2; exit 3; }
  count=$(wc -l <<< "$gpus")
  echo "== $count GPU(s): $gpus"
}

# build_all DIR: configures and builds; ends the script where that fails.
build_all() {
  # NCCL is often there only as PyTorch brought it.
  [ -n "${NCCL_ROOT:-}" ] || NCCL_ROOT=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)
  export NCCL_ROOT
  cmake -S . -B "$1" -DCMAKE_BUILD_TYPE=Release -DRINGMARK_CUDA=ON > "$logs/configure.log" 2>&1 &&
    cmake --build "$1" -j "$(nproc)" > "$logs/build.log" 2>&1 ||
    { tail -30 "$logs/configure.log" "$logs/build.log"; exit 1; }
  note build ok "$((SECONDS - started)) s"
}

# built NAME PROGRAM: whether it is there; notes when not.
built() {
  [ -x "$2" ] && return 0
  note "$1" "not built" ""
  return 1
}

# The last lines of a script.
print_table() {
  echo
  echo "== $(date -u +%F), $(head -1 <<< "$gpus"), $((SECONDS - started)) s in all"
  printf '%s' "$table"
}
