#!/usr/bin/env bash
# usage: kill_points.sh RINGMARK LAYER POINTS [SEED]   A random rank is killed (SIGKILL), every fifth time stopped
# (SIGSTOP), at a random moment of a prefill that writes a snapshot or of a decode that goes on from one. Every time the
# job ends within the deadline plus 2 s, with exit code 4, or 137 from mpirun where it sees the death first; a first
# cause stands in the log folder; nothing of ours is left in /dev/shm or the folder for temporary files; and the same
# commands run again end with the digest of an undisturbed run. Open MPI leaves the file of a window behind when a rank
# is killed inside MPI_Win_allocate, before the file has lost its name: these are counted.
set -uo pipefail
ringmark=$1 layer=$2 points=$3
RANDOM=${4:-$(date +%N | sed 's/^0*//')}
deadline=3
ranks=4
name=$(basename "$ringmark" | cut -c1-15) # as the kernel calls its processes
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
cut=$(dirname "$0")/cut_layer.py
export TMPDIR=$folder/tmp # where mpirun keeps its session
mkdir "$TMPDIR"
# A folder of our own in shared memory: what other jobs of the machine have there is no leak of ours.
shared=$(mktemp -d -p /dev/shm) && trap 'rm -rf "$folder" "$shared"' EXIT
for part in btl_vader osc_sm osc_rdma; do export OMPI_MCA_${part}_backing_directory="$shared"; done
export OMPI_MCA_shmem_mmap_backing_file_base_dir=$shared

python3 "$cut" "$layer" "$folder/prompt.safetensors" 0 3000
python3 "$cut" "$layer" "$folder/steps.safetensors" 3000 5000
python3 "$cut" "$layer" "$folder/later.safetensors" 5000 5040

# job LOGS COMMAND...: one job of four ranks, its lines in LOGS/out and LOGS/err.
job() {
  local logs=$1
  shift
  rm -rf "$logs" && mkdir "$logs"
  timeout -k 5 60 mpirun --oversubscribe -n $ranks "$ringmark" "$@" --deadline $deadline --quiet --log-dir "$logs" \
    < /dev/null > "$logs/out" 2> "$logs/err"
}
prefill() { job "$1" prefill --input "$folder/prompt.safetensors" --snapshot "$2"; }
decode() { job "$1" decode --input "$folder/steps.safetensors" --snapshot "$2" --save --rows 8; }
# The digest of what comes after both: the same only when the state is the same.
digest_after() {
  job "$folder/last" decode --input "$folder/later.safetensors" --snapshot "$1" --digest &&
    sed -n 's/^selection_digest //p' "$folder/last/out"
}
# ranks_below PID: the ranks among what this process has started.
ranks_below() {
  local child
  for child in $(pgrep -P "$1"); do
    [ "$(cat /proc/"$child"/comm 2> /dev/null)" != "$name" ] || echo "$child"
    ranks_below "$child"
  done
}
fail() {
  echo "FAIL: $*"
  head -5 "$folder"/logs/err "$folder"/last/err 2> /dev/null
  exit 1
}
now() { echo $(($(date +%s%N) / 1000000)); } # milliseconds
# begin COMMAND...: starts a job as $running and returns when all of its ranks are there, or it has ended.
begin() {
  "$@" &
  running=$!
  until [ "$(ranks_below $running | wc -l)" -eq $ranks ] || ! kill -0 $running 2> /dev/null; do sleep 0.01; done
}
# Milliseconds from then to the end.
length_of() {
  local since
  begin "$@"
  since=$(now)
  wait $running || fail "an undisturbed run: $*"
  echo $(($(now) - since))
}

declare -A length count=() longest=([prefill]=0 [decode]=0)
length[prefill]=$(length_of prefill "$folder/logs" "$folder/good") || { echo "${length[prefill]}"; exit 1; }
length[decode]=$(length_of decode "$folder/logs" "$folder/good") || { echo "${length[decode]}"; exit 1; }
want=$(digest_after "$folder/good")
[ -n "$want" ] || fail "no digest of the undisturbed run"

for ((point = 0; point < points; ++point)); do
  phase=$([ $((RANDOM % 2)) -eq 0 ] && echo prefill || echo decode)
  signal=$([ $((point % 5)) -eq 4 ] && echo STOP || echo KILL)
  state=$folder/state
  rm -rf "$state"
  [ $phase = prefill ] || prefill "$folder/logs" "$state" || fail "the prefill before a decode"
  delay=$((RANDOM % ${length[$phase]}))
  begin $phase "$folder/logs" "$state"
  sleep "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))"
  victim=$(ranks_below $running | shuf -n 1 --random-source=<(yes "$RANDOM"))
  # A rank that stops while it joins the job is one for whom mpirun waits, with no deadline of ours: it has joined when
  # the input is open.
  until [ $signal = KILL ] || [ -z "$victim" ] || ! kill -0 "$victim" 2> /dev/null ||
    ls -l /proc/"$victim"/fd 2> /dev/null | grep -q '[st].safetensors'; do sleep 0.01; done
  [ -z "$victim" ] || kill -$signal "$victim" 2> /dev/null
  since=$(now)
  wait $running
  code=$?
  took=$(($(now) - since))
  case $code in
    0) outcome=ended_before ;;
    4) outcome=exit_4 ;;
    137) outcome=exit_137 ;;
    *) fail "point $point: exit code $code after $signal in $phase at $delay ms" ;;
  esac
  count[$phase.$outcome]=$((${count[$phase.$outcome]:-0} + 1))
  [ $code -eq 0 ] || [ $took -le ${longest[$phase]} ] || longest[$phase]=$took
  if [ $code -ne 0 ]; then
    [ $took -le $((deadline * 1000 + 2000)) ] || fail "point $point: $took ms after $signal in $phase"
    ls "$folder"/logs/*.json > /dev/null 2>&1 && count[$phase.cause]=$((${count[$phase.cause]:-0} + 1))
  fi
  left=$(ls -A "$shared")
  [ -z "$(grep -v '^osc_' <<< "$left")" ] || fail "point $point: left in shared memory: $left"
  [ -z "$left" ] || count[$phase.windows]=$((${count[$phase.windows]:-0} + 1))
  rm -f "$shared"/osc_*
  [ -z "$(ls -A "$TMPDIR")" ] || fail "point $point: left in the folder for temporary files: $(ls -A "$TMPDIR")"
  [ $code -eq 0 ] || $phase "$folder/logs" "$state" || fail "point $point: the same $phase again"
  [ $phase = decode ] || decode "$folder/logs" "$state" || fail "point $point: the decode after it"
  got=$(digest_after "$state")
  [ "$got" = "$want" ] || fail "point $point: digest $got, want $want ($signal in $phase at $delay ms)"
done

printf '%-8s %7s %7s %9s %13s %12s %14s %13s\n' phase points 'exit 4' 'exit 137' 'ended before' 'first cause' 'longest, ms' \
  'windows left'
for phase in prefill decode; do
  four=${count[$phase.exit_4]:-0} killed=${count[$phase.exit_137]:-0} before=${count[$phase.ended_before]:-0}
  printf '%-8s %7d %7d %9d %13d %9d/%d %14d %13d\n' $phase $((four + killed + before)) $four $killed $before \
    ${count[$phase.cause]:-0} $((four + killed)) ${longest[$phase]} ${count[$phase.windows]:-0}
done
echo "digest $want after each of $points points; deadline $deadline s"
