#!/usr/bin/env bash
# usage: slurm_cluster.sh scaling_array.sh RINGMARK SCRIPTS   A study over 1, 2, 4, 8 hosts by scaling_array.sbatch as it is:
# as an array for each number of nodes, and as one array whose tasks all hold the largest. One digest. NODES=8
set -uo pipefail
ringmark=$(realpath "$1") scripts=$(realpath "$2")
. "$(dirname "$0")/jobs.sh"
mkdir "$D/work" && cd "$D/work" || exit 1
cp "$scripts/scaling_array.sbatch" .
export RINGMARK=$ringmark
export OMPI_MCA_mpi_yield_when_idle=1 # many hosts share few cores
study=(--nodes 1,2,4,8 --tokens 8k --arms sparse --repeat 1 --warmup 0 --no-trace)
all_ended() {
  local end=$((SECONDS + 150))
  while [ -n "$("$IN" ctl squeue -h)" ]; do
    [ $SECONDS -lt $end ] || { fail "jobs do not end: $("$IN" ctl squeue)"; return; }
    sleep 0.5
  done
}
# whole STUDY: every point is done, and they all chose the same.
whole() {
  "$ringmark" scaling collect "$1" --format jsonl > "$1.jsonl" || fail "$1: $(cat "$1.jsonl"; tail ./*.out)"
  python3 - "$1.jsonl" << 'P' || fail "$1: points"
import json, sys
points = [json.loads(line) for line in open(sys.argv[1])]
digests = {run["selection_digest"] for point in points for run in point["runs"]}
print(sys.argv[1], [(point["nodes"], point["status"]) for point in points], digests)
sys.exit([point["nodes"] for point in points] != [1, 2, 4, 8] or len(digests) != 1)
P
}
"$IN" ctl "$ringmark" scaling run --dir arrays "${study[@]}" --launch slurm-array --script scaling_array.sbatch ||
  fail "cannot submit"
all_ended
whole arrays
"$ringmark" scaling run --dir one "${study[@]}" --plan > /dev/null || fail "no plan"
"$IN" ctl sbatch -N 8 --array=0-3%1 scaling_array.sbatch one
all_ended
whole one
[ $failures -eq 0 ] && echo "scaling_array: all good"
exit $((failures > 0))
