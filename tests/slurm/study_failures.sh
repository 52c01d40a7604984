#!/usr/bin/env bash
# usage: slurm_cluster.sh study_failures.sh RINGMARK SCRIPTS   What becomes of a scaling study when, in the middle of one of its
# points, a rank is killed, a link is taken down, a slurmd dies: the point says why it failed, if it did, and the other one is
# done. NODES=3 SLURMD_TIMEOUT=10
set -uo pipefail
ringmark=$(realpath "$1") scripts=$(realpath "$2")
. "$(dirname "$0")/jobs.sh"
mkdir "$D/work" && cd "$D/work" || exit 1
cp "$scripts/scaling_array.sbatch" .
export RINGMARK=$ringmark
export OMPI_MCA_mpi_yield_when_idle=1 # many hosts share few cores

# begin STUDY: point 0 on one host, point 1 on two, side by side; returns when the ranks of point 1 are at work. Sets $host, that
# of its rank 1.
begin() {
  study=$1
  "$IN" ctl "$ringmark" scaling run --dir "$PWD/$study" --nodes 1,2 --tokens 64k --arms ring --repeat 1 --warmup 0 --no-trace \
    --launch slurm-array --script scaling_array.sbatch -- --deadline 6 > /dev/null || fail "cannot submit $study"
  local end=$((SECONDS + 60)) pid=
  until [ -n "$pid" ]; do
    [ $SECONDS -lt $end ] || { fail "$study: point 1 does not start"; exit 1; }
    sleep 0.1
    pid=$(pgrep -f "prefill --planted.*/$study/runs/00001/1/0/" | xargs -r -n1 sh -c \
      '[ "$(cat "/proc/$0/comm")" = ringmark ] && grep -qz "^PMIX_RANK=1" "/proc/$0/environ" && echo "$0"' | head -n 1)
  done
  host=$(nsenter --target "$pid" --uts hostname)
  sleep 0.5
}
all_ended() {
  local end=$((SECONDS + 120))
  while [ -n "$("$IN" ctl squeue -h)" ]; do
    [ $SECONDS -lt $end ] || { fail "$study: jobs do not end: $("$IN" ctl squeue)"; return; }
    sleep 0.5
  done
}
# ended STATUS-OF-COLLECT PATTERN-OF-POINT-1: both points are told of, the first one is done.
ended() {
  all_ended
  local status=0
  "$ringmark" scaling collect "$study" > "$study.md" || status=$?
  [ $status -eq "$1" ] || fail "$study: collect ended with $status instead of $1: $(cat "$study.md")"
  grep -qE '^\| strong \| ring \| 1 \| 1 .*needles' "$study.md" || fail "$study: the other point was lost: $(cat "$study.md")"
  grep -E '^\| strong \| ring \| 2 \| 2 ' "$study.md" | grep -qE "$2" || fail "$study: point 1 says: $(cat "$study.md")"
  echo "$study ($host): $(grep -E '^\| strong \| ring \| 2 \| 2 ' "$study.md" | sed 's/.*| *\([^|]*\) |$/\1/')"
}

begin rank-killed
"$IN" "$host" kill -KILL "$("$IN" "$host" pgrep -o -x ringmark)"
ended 1 'task 1: Killed'

begin link-down
"$D/link" "$host" down
ended 1 'node n[0-9] is [a-z]+\*|waited .* for rank' # who tells first: Slurm, or a rank
"$D/link" "$host" up

begin slurmd-killed
"$D/slurmd" "$host" kill
sleep 3
"$D/slurmd" "$host" start
ended 0 'needles'

[ $failures -eq 0 ] && echo "study_failures: all good"
exit $((failures > 0))
