#!/usr/bin/env bash
# usage: slurm_cluster.sh requeue.sh RINGMARK SCRIPTS   Jobs of requeue.sbatch that are preempted, run out of time, or lose a
# host: they keep their state, go back into the queue, and end with the digest and the output of an undisturbed run.
# NODES=2 SLURMD_TIMEOUT=10
set -uo pipefail
ringmark=$(realpath "$1") scripts=$(realpath "$2")
. "$(dirname "$0")/jobs.sh"
mkdir "$D/work" && cd "$D/work" || exit 1
cp "$scripts/requeue.sbatch" .
export RINGMARK=$ringmark
export OMPI_MCA_mpi_yield_when_idle=1 # many hosts share few cores

run=(prefill --planted 256k --topics 0 --heads 2 --head-dim 32 --quiet --digest --topk-chunks)
"$ringmark" "${run[@]}" --output one.out > one.txt || { echo "FAIL: one rank"; exit 1; }
number=0
begin() {
  number=$((number + 1))
  submit "$@" requeue.sbatch "${run[@]}" --memory-plan --fetch-mib 1 --output $number.out
  until_job JobState RUNNING 30 || fail "job $job does not start"
}
# working RUN: waits until the ranks of this run of the job are at work.
working() {
  until [ "$(grep -c '^memory of rank 0' "$(field StdOut)" 2> /dev/null)" -ge "$1" ]; do sleep 0.05; done
  sleep 0.2
}
# Slurm's way to preempt a job that asked for USR1, and to tell it that its time is up.
preempt() { "$IN" ctl scancel --batch --signal=USR1 "$job"; }
# same_as_one_rank WHAT RESTARTS
same_as_one_rank() {
  ends COMPLETED 0:0
  [ "$(field Restarts)" -eq "$2" ] || fail "$1: $(field Restarts) restarts instead of $2: $(log)"
  [ "$(digest_of "$(field StdOut)")" = "$(digest_of one.txt)" ] || fail "$1: another digest: $(log)"
  cmp one.out $number.out || fail "$1: another output"
  [ -z "$(find . -name '*.partial' -o -name '*.tmp')" ] || fail "$1: left behind: $(find .)"
  ! grep -q 'starts over' "$(field StdOut)" || fail "$1: a state that was not taken: $(log)"
  echo "$1: $(field JobState), restarts $(field Restarts), $(grep selection_digest "$(field StdOut)")"
}

# Before the ranks have begun, which leaves nothing to go on from; at work, which does; and at work again.
begin
until [ -d "ringmark-requeue-$job.logs/0" ]; do sleep 0.05; done # a signal before the script has begun is the end of any job
preempt
until_job Restarts 1 60 || fail "not requeued: $(log)"
rm -f 1.out.partial # where they had begun after all
working 1
preempt
until_job Restarts 2 60 || fail "not requeued: $(log)"
grep -q '^ringmark: checkpointed: ' "$(field StdOut)" || fail "no state was kept: $(log)"
[ -s 1.out.partial ] && [ ! -e 1.out ] || fail "no state beside the output: $(ls)"
working 2
preempt
same_as_one_rank "preempted three times" 3

# The time limit of Slurm itself; over a slow link, so that it takes longer than that.
"$D/link" n2 3mbit
begin -t 1 --signal=B:USR1@45
until_job Restarts 1 90 || fail "not requeued by the time limit: $(log)"
"$D/link" n2 1gbit
same_as_one_rank "out of time" 1

# A host dies, and is back later.
begin
working 1
"$D/power" n2 off
until_job JobState PENDING 60 || fail "not requeued without its host: $(log)"
"$D/power" n2 on
same_as_one_rank "a host that died" 1

# A command that cannot work is not run again.
submit requeue.sbatch prefill --planted 0
ends FAILED 2:0
[ "$(field Restarts)" -eq 0 ] || fail "a wrong command is run again"
[ $failures -eq 0 ] && echo "requeue: all good"
exit $((failures > 0))
