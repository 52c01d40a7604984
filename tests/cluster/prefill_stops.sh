#!/usr/bin/env bash
# usage: prefill_stops.sh RINGMARK TEST_DATA TOKENS STOPS [SEED]   A prefill that is told to stop at random moments, by
# SIGUSR1 through mpirun or by SIGTERM to all ranks or to one, ends with 75, and the same command, again and again, ends
# with the files of an undisturbed run, bit for bit. A rank that is killed leaves nothing but the checkpoint before it.
set -uo pipefail
ringmark=$1 data=$(realpath "$2") tokens=$3 stops=$4
RANDOM=${5:-$(date +%N | sed 's/^0*//')}
. "$(dirname "$0")/expect.sh"
ranks=4
now() { echo $(($(date +%s%N) / 1000000)); } # milliseconds
# begin COMMAND...: starts a job as $job; returns when all of its ranks take requests to stop, which they do before rank
# 0 prints its memory plan, or when it has ended.
begin() {
  : > out.txt
  timeout -k 5 120 mpirun --oversubscribe -n $ranks "$ringmark" prefill "$@" --memory-plan --digest --quiet \
    > out.txt 2> err.txt < /dev/null &
  job=$!
  until grep -q '^memory of rank 0' out.txt || ! kill -0 $job 2> /dev/null; do sleep 0.01; done
}
ended() { wait $job; code=$?; }
undisturbed() {
  local since
  begin "$@"
  since=$(now)
  ended
  length=$(($(now) - since))
  [ $code -eq 0 ] || { echo "FAIL: exit code $code undisturbed: $(head -c 300 err.txt)"; exit 1; }
  want=$(sed -n 's/^selection_digest //p' out.txt)
}
launcher() { pgrep -P $job; }
tell() {
  local how=$1
  case $how in
    usr1) kill -USR1 "$(launcher)" ;;
    term) pgrep -P "$(launcher)" | xargs kill -TERM ;;
    one) kill -TERM "$(pgrep -P "$(launcher)" | shuf -n 1 --random-source=<(yes "$RANDOM"))" ;;
  esac 2> /dev/null
}
# stopped_and_done STOPS OPTIONS...: tells the job to stop so often, at random moments, then lets it end. `length` is that
# of an undisturbed run.
stopped_and_done() {
  local left=$1 ways=(usr1 term one) how delay
  shift
  while [ "$left" -gt 0 ]; do
    how=${ways[$((RANDOM % 3))]}
    delay=$((RANDOM % length))
    begin "$@"
    sleep "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))"
    tell $how
    ended
    left=$((left - 1))
    case $code in
      0) break ;;
      75) count=$((count + 1)) ;;
      *) fail "exit code $code after $how at $delay ms: $(head -c 300 err.txt)"; return ;;
    esac
    [ "$(grep -c '^ringmark: checkpointed: [0-9]* of [0-9]* rows.* run the same command again to go on$' err.txt)" -eq 1 ] ||
      fail "no checkpoint line: $(head -c 300 err.txt)"
    ! grep -q 'starts over' err.txt || fail "it starts over: $(cat err.txt)"
  done
  [ $code -eq 0 ] || { begin "$@" && ended; }
  [ $code -eq 0 ] || fail "exit code $code at the end: $(head -c 300 err.txt)"
  [ "$(sed -n 's/^selection_digest //p' out.txt)" = "$want" ] || fail "another digest after stops"
}
nothing_left() { [ -z "$(find . -name '*.partial' -o -name '*.tmp')" ] || fail "left behind: $(find .)"; }

# Result and snapshot of a planted layer, by either merge.
planted=(--planted "$tokens" --topics 0)
count=0
for merge in landmarks scores; do
  rm -rf kept gone_on
  undisturbed "${planted[@]}" --merge $merge --topk-chunks --output want.safetensors --snapshot kept
  stopped_and_done "$stops" "${planted[@]}" --merge $merge --topk-chunks --output got.safetensors --snapshot gone_on
  cmp want.safetensors got.safetensors || fail "another output, merge $merge"
  diff -r kept gone_on || fail "another snapshot, merge $merge"
  nothing_left
done
[ $count -gt 0 ] || fail "no run was stopped"
# A snapshot alone; what it keeps besides stands in its folder until the end.
rm -rf gone_on
begin "${planted[@]}" --merge scores --snapshot gone_on
tell term
ended
[ $code -eq 75 ] && [ "$(ls gone_on)" = prefill.partial ] || fail "exit code $code, in the folder: $(ls gone_on)"
stopped_and_done 1 "${planted[@]}" --merge scores --snapshot gone_on
diff -r kept gone_on || fail "another snapshot"
nothing_left
# The real layer, which is done in no time.
layer=(--input "$data/layer.safetensors")
undisturbed "${layer[@]}" --output want.safetensors
stopped_and_done 4 "${layer[@]}" --output got.safetensors
cmp want.safetensors got.safetensors || fail "another output of the real layer"
nothing_left

# A rank that dies takes the job with it: mpirun ends the others by SIGTERM, which they do not take for a request. The
# checkpoint before stays as it was.
undisturbed "${planted[@]}" --output want.safetensors
rm -f got.safetensors
for before in nothing checkpoint; do
  [ $before = nothing ] || { begin "${planted[@]}" --output got.safetensors && tell usr1 && ended; }
  sum=$(cat got.safetensors.partial 2> /dev/null | cksum)
  begin "${planted[@]}" --output got.safetensors --deadline 3
  sleep 0.2
  since=$(now)
  kill -KILL "$(pgrep -P "$(launcher)" | tail -1)"
  ended
  [ $code -eq 137 ] || [ $code -eq 4 ] || fail "exit code $code after a death"
  [ $(($(now) - since)) -le 5000 ] || fail "$(($(now) - since)) ms after a death"
  [ "$(cat got.safetensors.partial 2> /dev/null | cksum)" = "$sum" ] && [ ! -e got.safetensors ] &&
    [ -z "$(find . -name '*.tmp')" ] || fail "a death leaves, after $before: $(find .)"
done
stopped_and_done 0 "${planted[@]}" --output got.safetensors
cmp want.safetensors got.safetensors || fail "another output after a death"

# A checkpoint of something else is named, and no row of it is taken.
begin "${planted[@]}" --output got.safetensors && tell usr1 && ended
undisturbed "${planted[@]}" --topk 3 --output want.safetensors
begin "${planted[@]}" --topk 3 --output got.safetensors && ended
grep -qE '^ringmark: starts over: got.safetensors.partial: metadata topk is 16, this run has 3$' err.txt ||
  fail "no line about another checkpoint: $(head -c 300 err.txt)"
[ $code -eq 0 ] && cmp want.safetensors got.safetensors || fail "exit code $code beside another checkpoint"
nothing_left
# With nowhere to keep anything the signal acts as ever.
begin "${planted[@]}"
tell term
ended
[ $code -ne 0 ] && [ $code -ne 75 ] || fail "exit code $code without a place for a checkpoint"

[ $failures -eq 0 ] && echo "prefill_stops: all good, $count stops in a planted layer"
exit $((failures > 0))
