#!/usr/bin/env bash
# usage: slurm_cluster.sh failures.sh RINGMARK SCRIPTS   What becomes of a job of two hosts when a cable is pulled, a slurmd
# dies, or a rank is killed in the midst of it. NODES=2 SLURMD_TIMEOUT=10
set -uo pipefail
ringmark=$(realpath "$1") scripts=$(realpath "$2")
. "$(dirname "$0")/jobs.sh"
mkdir "$D/work" && cd "$D/work" || exit 1
cp "$scripts/multi_node.sbatch" .
export RINGMARK=$ringmark
export OMPI_MCA_mpi_yield_when_idle=1 # many hosts share few cores

run=(prefill --planted 256k --topics 0 --heads 2 --head-dim 32 --quiet --digest --deadline 6)
"$ringmark" "${run[@]}" > one.txt || { echo "FAIL: one rank"; exit 1; }
want=$(digest_of one.txt)
# begin OPTIONS...: submits, and returns when the ranks are at work.
begin() {
  submit multi_node.sbatch "${run[@]}" --memory-plan "$@"
  until_job JobState RUNNING 30 || fail "job $job does not start"
  until grep -q '^memory of rank 0' "$(field StdOut)"; do sleep 0.05; done
}
logs() { echo "ringmark-$job.logs"; }
right_digest() { [ "$(digest_of "$(field StdOut)")" = "$want" ] || fail "$1: another digest: $(log)"; }
said() { echo "$1: $(field JobState) $(field ExitCode)${2:+: $2}"; }

begin
sleep 0.5
"$D/link" n2 down
sleep 3
"$D/link" n2 up
ends COMPLETED 0:0
right_digest "a link that was down for 3 s"
said "a link that was down for 3 s"

begin
"$D/slurmd" n2 kill
until [ -n "$(digest_of "$(field StdOut)")" ]; do sleep 0.2; done
"$D/slurmd" n2 start
ends COMPLETED 0:0
right_digest "a slurmd that died"
said "a slurmd that died and came back"

begin
victim=$("$IN" n2 pgrep -o -x ringmark)
"$IN" n2 kill -KILL "$victim"
ends FAILED 137:0
line=$(grep -E '^srun: error: n2: task [23]: Killed' "$(field StdOut)") || fail "no line names the rank: $(log)"
[ -z "$(digest_of "$(field StdOut)")" ] || fail "a digest without a rank"
said "a rank that was killed" "$line"

# Longer than the deadline: ranks on both sides say whom they missed, those on the far side in their own files alone.
begin
"$D/link" n2 down
ends FAILED 4:0
near=$(cat "$(logs)"/error.[01].json 2> /dev/null | head -n 1)
far=$(cat "$(logs)"/error.[23].json 2> /dev/null | head -n 1)
grep -q '"exit_code":4,"error":"rank [01]: .* for ranks* [23]' <<< "$near" || fail "the near side says: $near"
grep -q '"exit_code":4,"error":"rank [23]: .* for ranks* [01]' <<< "$far" || fail "the far side says: $far"
grep -qF "$near" "$(field StdOut)" || fail "the log of the job lacks the cause: $(log)"
said "a link that stayed down" "$near"
"$D/link" n2 up

# The host comes back into use, with nothing of these jobs on it.
until [ "$("$IN" ctl sinfo -h -N -o %t | sort -u)" = idle ]; do sleep 0.5; done
submit multi_node.sbatch "${run[@]}"
ends COMPLETED 0:0
right_digest "after all that"
for host in n1 n2; do
  until [ -z "$("$IN" $host pgrep -x ringmark)" ]; do sleep 0.2; done
  # Ranks that were all killed at once leave their folder to the next job, which has been.
  [ -z "$("$IN" $host ls /dev/shm)" ] || fail "left in /dev/shm of $host: $("$IN" $host ls /dev/shm)"
done
[ $failures -eq 0 ] && echo "failures: all good"
exit $((failures > 0))
