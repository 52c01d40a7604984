#!/usr/bin/env bash
# usage: write_order.sh RINGMARK RECORD_WRITES TEST_DATA   Whatever the commands write survives a power failure: bytes
# are on disk before the name that promises them, and the name before the command ends. A kernel cannot be made to lose
# what was not synced, so the order of the calls is recorded and checked.
set -uo pipefail
ringmark=$1 recorder=$2 data=$3
here=$(cd "$(dirname "$0")" && pwd)
. "$here/expect.sh"
recorded=(env LD_PRELOAD="$recorder" RECORD_WRITES_LOG="$folder/log" "$ringmark")
on() { timeout 100 mpirun --oversubscribe -n "$1" "${recorded[@]}" "${@:2}" --quiet < /dev/null > out.txt; }
# in_order NAME...: and logs that lack the syncs of files or those of folders, which have no dot in their names, do not
# pass.
in_order() {
  local check=(python3 "$here/write_order.py") of_files='^synced .*/[^/]*[.][^/]*$'
  "${check[@]}" "$folder/log" . "$@" || fail "the order of $*"
  grep -v "$of_files" "$folder/log" > "$folder/lacks_files"
  grep "$of_files\|^syncing\|^[^s]" "$folder/log" > "$folder/lacks_folders"
  ! "${check[@]}" "$folder/lacks_files" . "$@" > "$folder/faults" || fail "syncs of files are not missed: $*"
  ! "${check[@]}" "$folder/lacks_folders" . "$@" > "$folder/faults" || fail "syncs of folders are not missed: $*"
  rm "$folder/log"
}
# stopped SIGN COMMAND...: one rank, told to stop as soon as the shell command SIGN, which looks at $job, says that it
# takes requests.
stopped() {
  "${recorded[@]}" "${@:2}" --quiet > out.txt 2>&1 &
  job=$!
  until eval "$1" || ! kill -0 $job 2> /dev/null; do sleep 0.01; done 2> /dev/null
  kill -USR1 $job
  wait $job
  local code=$?
  [ $code -eq 75 ] || fail "exit code $code instead of 75: $*: $(head -c 300 out.txt)"
}

mkdir work && cd work || exit 1
python3 "$here/cut_layer.py" "$data/layer.safetensors" prompt.safetensors 0 2040
python3 "$here/cut_layer.py" "$data/layer.safetensors" steps.safetensors 2040 3040
on 2 prefill --input prompt.safetensors --snapshot kept --output out.safetensors --json report.json \
  --trace trace.json || fail "prefill"
in_order shard-00000.safetensors shard-00001.safetensors manifest.json out.safetensors report.json trace.json

stopped 'ls -l /proc/$job/fd | grep -q steps.safetensors' decode --snapshot kept --input steps.safetensors \
  --output decoded.safetensors
in_order shard-00000.safetensors manifest.json decoded.safetensors.partial
on 2 decode --snapshot kept --input steps.safetensors --output decoded.safetensors --save || fail "decode"
in_order shard-00001.safetensors manifest.json decoded.safetensors

whole=(prefill --planted 32k --output whole.safetensors --memory-plan)
stopped 'grep -q "^memory of rank 0" out.txt' "${whole[@]}"
in_order whole.safetensors.partial
on 1 "${whole[@]}" || fail "prefill that goes on"
in_order whole.safetensors
exit $((failures > 0))
