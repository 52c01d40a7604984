# For scripts that run inside of a cluster (cluster/testing/slurm_cluster.sh CLUSTER_SCRIPT ...): jobs as a user submits them
# on host ctl, and what became of them. `failures` counts what `fail` said.
failures=0
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }

# submit OPTIONS-AND-SCRIPT...: sets $job.
submit() { job=$("$IN" ctl sbatch --parsable "$@") || { fail "sbatch $*"; exit 1; }; }
field() { "$IN" ctl scontrol show job -o "$job" 2> /dev/null | grep -oE "(^| )$1=[^ ]*" | cut -d= -f2; }
# until_job FIELD PATTERN SECONDS: waits until the field of the job matches; 1 when the time is up.
until_job() {
  local end=$((SECONDS + $3))
  until [[ $(field "$1") =~ $2 ]]; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.2
  done
}
# ends STATE CODE: waits for the end of the job, which must be this one; CODE as Slurm writes it, exit code:signal.
ends() {
  until_job JobState '^(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED)$' 150 ||
    { fail "job $job has not ended: $("$IN" ctl scontrol show job -o "$job")"; "$IN" ctl scancel "$job"; }
  [ "$(field JobState).$(field ExitCode)" = "$1.$2" ] ||
    fail "job $job ended $(field JobState) $(field ExitCode) instead of $1 $2; its last lines: $(tail -n 5 "$(field StdOut)")"
}
log() { cat "$(field StdOut)"; }
digest_of() { sed -n 's/^selection_digest //p' "$1"; }
