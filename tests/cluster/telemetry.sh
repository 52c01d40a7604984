#!/usr/bin/env bash
# usage: telemetry.sh RINGMARK TEST_DATA   logs, traces and metrics of every command that computes, read strictly by
# telemetry.py: prefill under every policy, decode, backward, on 1, 2 and 4 ranks. Levels and formats; what cannot be
# written is refused before any work; a log goes on behind a torn line; signals; none of it changes a digest.
set -uo pipefail
ringmark=$1 data=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/expect.sh"
on() { timeout -k 5 120 mpirun --oversubscribe -n "$1" "$ringmark" "${@:2}" --threads 1 --quiet < /dev/null; }
read_strictly() { python3 "$here/telemetry.py" "$@" > checked.txt 2>&1 || fail "$*: $(tail -3 checked.txt)"; }

# observed NAME RANKS [reads] COMMAND...: its files are whole; with `reads`, blocks came from peers.
observed() {
  local name=$1 ranks=$2 reads=
  shift 2
  [ "$1" != reads ] || { reads=reads; shift; }
  rm -rf seen && mkdir seen
  on "$ranks" "$@" --log-dir seen --trace seen/trace.json --metrics-file seen/run.prom > out.txt 2> err.txt ||
    { fail "$name on $ranks ranks: $(head -c 300 err.txt)"; return; }
  [ ! -s err.txt ] || fail "$name: stderr: $(head -c 300 err.txt)"
  [ "$(ls seen | wc -l)" -eq $((2 * ranks + 1)) ] || fail "$name: left $(ls seen)"
  read_strictly log seen/log.*.jsonl
  read_strictly trace seen/trace.json "$ranks" $reads
  for rank in $(seq 0 $((ranks - 1))); do read_strictly metrics "seen/run.rank$rank.prom" 0; done
  grep -q "\"ranks\":$ranks," seen/log.0.jsonl || fail "$name: no rank count in the log"
}

python3 "$here/cut_layer.py" "$data/layer.safetensors" prompt.safetensors 0 2000
python3 "$here/cut_layer.py" "$data/layer.safetensors" steps.safetensors 2000 2016
python3 "$here/cut_layer.py" "$data/layer.safetensors" layer.safetensors 0 900 no-position
python3 - << 'P'
import array, json, struct
values = array.array("f", (((i * 2654435761) % 1000) / 500 - 1 for i in range(900 * 4 * 64)))
text = json.dumps({"do": {"dtype": "F32", "shape": [900, 4, 64], "data_offsets": [0, 4 * len(values)]}}).encode()
text += b" " * (-len(text) % 8)
open("do.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + values.tobytes())
P
for ranks in 1 2 4; do
  reads=reads
  [ $ranks -gt 1 ] || reads=
  observed hils $ranks $reads prefill --input prompt.safetensors --snapshot kept$ranks --layer 3
  grep -q '"layer":3' seen/log.0.jsonl || fail "the layer is not in the log"
  observed decode $ranks $reads decode --snapshot kept$ranks --input steps.safetensors --exchange pull
  observed backward $ranks $reads backward --input layer.safetensors --gradient do.safetensors
  observed dense $ranks prefill --planted 4k --policy dense --merge ring
done
# Policies whose choice is written by other engines or options.
observed scores 2 reads prefill --planted 4k --merge scores
observed dense-backward 2 backward --input layer.safetensors --gradient do.safetensors --policy dense
observed pass-q 2 prefill --planted 4k --policy dense --merge pass-q
while read -r policy options; do
  observed "$policy" 2 prefill --planted 4k --policy "$policy" $options
done << 'P'
mean
oracle
landmark
moba
quest
window
sinks
nsa
xl --segment 512
compressive --segment 512
dilated --dilation 512:1,1024:2
logo --threshold 0.5
P

# Levels and formats.
level() { rm -f seen/*; "$ringmark" prefill --planted 4k --quiet --log-dir seen "$@" > out.txt 2> err.txt < /dev/null || fail "$*"; }
level --log-level debug && read_strictly lines seen/log.0.jsonl debug
debug=$(grep -c . seen/log.0.jsonl)
level --log-level info && read_strictly lines seen/log.0.jsonl info
[ "$debug" -gt "$(grep -c . seen/log.0.jsonl)" ] || fail "debug says no more than info"
level --log-level warning && [ ! -s seen/log.0.jsonl ] || fail "a healthy run warns"
level --log-level off && [ -z "$(ls seen)" ] || fail "off leaves $(ls seen)"
level --log-format text && grep -qE '^[0-9TZ:.-]+ info rank 0 @ [^ ]+: job_end exit_code=0 ' seen/log.0.txt || fail "text"
"$ringmark" prefill --planted 4k --quiet --log-format json > out.txt 2> err.txt < /dev/null || fail "json on stderr"
python3 -c 'import json; lines = [json.loads(line) for line in open("err.txt")]; assert lines[-1]["event"] == "job_end"' ||
  fail "stderr is no JSON lines"
"$ringmark" prefill --planted 4k --quiet > plain.txt 2> err.txt < /dev/null && [ ! -s err.txt ] || fail "logs unasked"
[ "$(grep digest plain.txt)" = "$(grep digest out.txt)" ] || fail "a log changes the digest"

# A log that was cut in the middle of a line goes on in the next one.
level --log-level info
first=$(grep -c . seen/log.0.jsonl)
truncate -s -20 seen/log.0.jsonl
"$ringmark" prefill --planted 4k --quiet --log-dir seen > out.txt 2> err.txt < /dev/null || fail "a second run"
python3 - "$first" << 'P' || fail "a torn line spoils its neighbours"
import json, sys
good = torn = 0
for line in open("seen/log.0.jsonl"):
    try:
        json.loads(line)
        good += 1
    except ValueError:
        torn += 1
assert torn == 1 and good == 2 * int(sys.argv[1]) - 1, (good, torn)
P

# Refused before any work.
expect 2 'log-dir = missing is no folder' "$ringmark" prefill --planted 4k --quiet --log-dir missing
expect 2 'trace.json: cannot be written' "$ringmark" prefill --planted 4k --quiet --trace missing/trace.json
expect 2 'run.rank0.prom: cannot be written' "$ringmark" prefill --planted 4k --quiet --metrics-file missing/run.prom
expect 2 'does not end in .prom' "$ringmark" prefill --planted 4k --quiet --metrics-file run.txt
expect 2 'log-level = loud' "$ringmark" prefill --planted 4k --quiet --log-level loud
expect 2 'hang-report = -1' "$ringmark" prefill --planted 4k --quiet --hang-report -1
mkdir -p taken/log.0.jsonl
expect 2 'log.0.jsonl: cannot be written' "$ringmark" prefill --planted 4k --quiet --log-dir taken

# A run that is told to stop says so, keeps its state, and marks its metrics.
rm -f seen/*
"$ringmark" prefill --planted 256k --threads 1 --quiet --output stopped.safetensors --log-dir seen --metrics-file seen/run.prom \
  > out.txt 2> err.txt < /dev/null &
pid=$!
for _ in $(seq 200); do grep -qs '"stage":"select"' seen/log.0.jsonl && break; sleep 0.05; done
grep -q '^ringmark_up.* 1$' seen/run.rank0.prom || fail "a running rank is not up: $(cat seen/run.rank0.prom)"
kill -USR1 $pid
wait $pid
[ $? -eq 75 ] || fail "exit code of a stopped run: $(cat err.txt)"
grep -q '"event":"signal","signal":"SIGUSR1"' seen/log.0.jsonl || fail "no signal in the log"
grep -q '"event":"checkpoint"' seen/log.0.jsonl || fail "no checkpoint in the log"
grep -q '"level":"warning".*"event":"checkpointed","exit_code":75' seen/log.0.jsonl || fail "no end in the log"
read_strictly lines seen/log.0.jsonl info
read_strictly metrics seen/run.rank0.prom 75

[ $failures -eq 0 ] && echo "telemetry: all as it should be"
exit $((failures > 0))
