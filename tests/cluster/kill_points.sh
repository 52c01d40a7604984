#!/usr/bin/env bash
# usage: kill_points.sh RINGMARK LAYER POINTS [SEED]   A random rank is killed (SIGKILL), every fifth time stopped
# (SIGSTOP) or, in a decode, told to stop (SIGTERM), at a random moment of a prefill that writes a snapshot or of a decode
# that goes on from one; a third of the moments lie between the first byte of a snapshot and its manifest. Every time the
# job ends within the deadline plus 2 s: with exit code 4, with 137 from mpirun where it sees the death first, or after
# SIGTERM with 75, or 143 where the rank could not take it yet. A first cause stands in the log folder or in mpirun's
# line; nothing of the job is left in /dev/shm or the folder for temporary files; and the same command run again ends
# with the digest of an undisturbed run.
set -uo pipefail
ringmark=$1 layer=$2 points=$3
RANDOM=${4:-$(date +%N | sed 's/^0*//')}
deadline=5
ranks=4
name=$(basename "$ringmark" | cut -c1-15) # as the kernel calls its processes
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
state=$folder/state
cut=$(dirname "$0")/cut_layer.py
export TMPDIR=$folder/tmp # where mpirun keeps its session
mkdir "$TMPDIR"

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
pause() { sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"; }
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
# A generation that has no manifest yet is being written.
writes_snapshot() {
  local generation
  for generation in "$state"/generation-*; do [ ! -d "$generation" ] || [ -e "$generation/manifest.json" ] || return 0; done
  return 1
}
# What the job of this number has in shared memory; Open MPI writes the number in hexadecimal.
left_of() { [ -z "$1" ] || ls -A /dev/shm | grep -e "^ringmark-.*-$1\$" -e "\.$(printf '%x' "$1")\."; }

declare -A length count longest
length[prefill]=$(length_of prefill "$folder/logs" "$folder/good") || { echo "${length[prefill]}"; exit 1; }
length[decode]=$(length_of decode "$folder/logs" "$folder/good") || { echo "${length[decode]}"; exit 1; }
want=$(digest_after "$folder/good")
[ -n "$want" ] || fail "no digest of the undisturbed run"

# strike COMMAND SIGNAL WHEN: starts the command, sends the signal to one of its ranks, and waits for the end. WHEN:
# `anytime`, or `snapshot`, when a new generation has been begun. Sets phase, at, code, took and number.
strike() {
  local command=$1 signal=$2 when=$3 since victim
  begin "$command" "$folder/logs" "$state"
  since=$(now)
  victim=$(ranks_below $running | shuf -n 1 --random-source=<(yes "$RANDOM"))
  [ -n "$victim" ] || fail "a job of $command that nobody struck has no ranks"
  number=$(tr '\0' '\n' < "/proc/$victim/environ" | sed -n 's/^PMIX_NAMESPACE=//p')
  if [ "$when" = snapshot ]; then
    until writes_snapshot || ! kill -0 "$victim" 2> /dev/null; do sleep 0.001; done
    pause $((RANDOM % 10))
  else
    pause $((RANDOM % length[$command]))
  fi
  phase=$command
  ! writes_snapshot || phase=snapshot
  kill -"$signal" "$victim" 2> /dev/null
  at=$(($(now) - since))
  since=$(now)
  if [ "$signal" = STOP ]; then # where the others have left already, nobody is there to miss it
    sleep 0.3
    [ "$(ranks_below $running)" != "$victim" ] || kill -CONT "$victim"
  fi
  wait $running
  code=$?
  took=$(($(now) - since))
}
add() { count[$1]=$((${count[$1]:-0} + 1)); }

for ((point = 0; point < points; ++point)); do
  command=$([ $((RANDOM % 2)) -eq 0 ] && echo prefill || echo decode)
  when=$([ $((RANDOM % 3)) -eq 0 ] && echo snapshot || echo anytime)
  signal=KILL
  [ $((point % 5)) -ne 3 ] || signal=TERM command=decode
  [ $((point % 5)) -ne 4 ] || signal=STOP
  rm -rf "$state"
  [ $command = prefill ] || prefill "$folder/logs" "$state" || fail "the prefill before a decode"
  strike $command $signal "$when"
  what="point $point: $signal in $phase at $at ms"
  add "$phase.$signal"
  case $signal.$code in
    *.0) add "$phase.0" ;;
    KILL.4 | KILL.137 | STOP.4 | STOP.137 | TERM.75 | TERM.143) add "$phase.$code" ;;
    *139) fail "$what: exit code 139, $(grep 'exited on signal' "$folder/logs/err" || echo "of mpirun itself")" ;;
    *) fail "$what: exit code $code" ;;
  esac
  cause=$(ls "$folder"/logs/*.json 2> /dev/null | wc -l)
  left=$(left_of "$number")
  if [ $code -ne 0 ]; then
    [ $took -le "${longest[$phase]:-0}" ] || longest[$phase]=$took
    [ $took -le $((deadline * 1000 + 2000)) ] || fail "$what: the end came after $took ms"
    [ "$cause" -eq 0 ] || add "$phase.cause"
    [ "$cause" -gt 0 ] || grep -q 'rank [0-9].*exited on signal' "$folder/logs/err" || fail "$what: no first cause"
  fi
  # Where no rank outlived the victim, or was far enough to be told to end, the next job has to clear up.
  [ -z "$left" ] || [ "$cause" -eq 0 ] || fail "$what: left in shared memory: $left"
  [ -z "$left" ] || add "$phase.swept"
  [ -z "$(ls -A "$TMPDIR")" ] || fail "$what: left in the folder for temporary files: $(ls -A "$TMPDIR")"
  [ $code -eq 0 ] || $command "$folder/logs" "$state" || fail "$what: the same $command again"
  [ $command = decode ] || decode "$folder/logs" "$state" || fail "$what: the decode after it"
  got=$(digest_after "$state")
  [ "$got" = "$want" ] || fail "$what: digest $got, want $want"
  [ -z "$(left_of "$number")" ] || fail "$what: still in shared memory: $(left_of "$number")"
done

columns='%-8s %6s %6s %6s %7s %9s %8s %9s %7s %10s %12s %9s\n'
printf "$columns" phase KILL STOP TERM 'exit 4' 'exit 137' 'exit 75' 'exit 143' 'exit 0' 'log folder' 'longest, ms' 'cleared'
for phase in prefill snapshot decode; do
  row=($phase)
  for key in KILL STOP TERM 4 137 75 143 0 cause; do row+=("${count[$phase.$key]:-0}"); done
  printf "$columns" "${row[@]}" "${longest[$phase]:-0}" "${count[$phase.swept]:-0}"
done
echo "exit: of the job, 0 where the signal had nothing left to end. log folder: first causes that stand there."
echo "longest: from the signal to the end. cleared: jobs whose folder in shared memory the next one had to clear."
echo "digest $want after each of $points points; deadline $deadline s"
