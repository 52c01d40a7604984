#!/usr/bin/env bash
# usage: hang_report.sh RINGMARK   a rank that stops (SIGSTOP) is named by those that wait for it, before the deadline
# ends the job and in its error: layer, stage and step. `ringmark inspect LOGDIR` says for whom all wait. A rank that
# goes on is told of as over.
set -uo pipefail
ringmark=$1
. "$(dirname "$0")/expect.sh"
# Rank 1 stops in the middle of the stage that is given, for so many seconds; 0: for good.
cat > rank.sh << 'S'
#!/usr/bin/env bash
stage=$1 seconds=$2
shift 2
"$@" &
rank=$!
if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then
  until grep -qs "\"stage_begin\".*\"stage\":\"$stage\"" log/log.1.jsonl; do sleep 0.01; done
  sleep 0.5
  kill -STOP $rank
  [ "$seconds" = 0 ] || { sleep "$seconds"; kill -CONT $rank; }
fi
wait $rank
S
chmod +x rank.sh

stop_in() {
  rm -rf log && mkdir log
  timeout -k 5 90 mpirun --oversubscribe -n 3 ./rank.sh "$1" "$2" "$ringmark" prefill --planted 384k --merge scores \
    --threads 1 --quiet --deadline "$3" --hang-report 1 --log-dir log < /dev/null > out.txt 2> err.txt
  code=$?
}

stop_in select 0 4
[ $code -eq 4 ] || fail "exit code $code: $(head -c 500 err.txt)"
grep -qE "^ringmark: rank [02]: stage '.*': waited [0-9.]+ s for ranks? .*1.* \(layer 0, stage select, select round [0-9]+\)" err.txt ||
  fail "the error names no step: $(grep ringmark: err.txt)"
python3 - << 'P' || fail "the report of the wait"
import glob, json
reports = [json.load(open(path)) for path in glob.glob("log/hang.*.json")]
assert {report["rank"] for report in reports} == {0, 2}, reports
for report in reports:
    assert 1 in report["peers"] and len(report["peer_hosts"]) == len(report["peers"]), report
    assert report["layer"] == 0 and report["stage"] == "select", report
    assert report["step"]["unit"] == "select round" and report["step"]["number"] >= 0, report
    assert report["waited_seconds"] >= 1 and report["bytes_outstanding"] > 0 and not report["over"], report
    assert report["reports"] >= 2, "it went on and was not told again"
P
"$ringmark" inspect log --json answer.json > table.txt || fail "inspect: $(cat table.txt)"
grep -qE '^rank 1 on [^ ]+ is what everybody waits for \(layer 0, stage select, select round [0-9]+\)$' table.txt ||
  fail "the answer: $(cat table.txt)"
python3 -c 'import json; a = json.load(open("answer.json")); assert a["roots"] == [1] and a["waiting"] == [0, 2], a' ||
  fail "the answer as JSON"
cat table.txt

# A rank that is only late: told of, and told of as over; the job ends well.
stop_in select 3 30
[ $code -eq 0 ] || fail "a late rank: exit code $code: $(head -c 500 err.txt)"
grep -q '"event":"hang"' log/log.0.jsonl && grep -q '"event":"hang_over"' log/log.0.jsonl || fail "no hang, or none that is over"
"$ringmark" inspect log > table.txt && grep -q '^nobody waits$' table.txt || fail "after it: $(cat table.txt)"

# Without a folder the line is on stderr.
cat > late.sh << 'S'
#!/usr/bin/env bash
[ "$OMPI_COMM_WORLD_RANK" = 0 ] && exec "$@"
"$@" &
rank=$!
until [ "$(awk '/^VmRSS/ { print $2 }' /proc/$rank/status)" -gt 80000 ]; do sleep 0.02; done
kill -STOP $rank
sleep 2.5
kill -CONT $rank
wait $rank
S
chmod +x late.sh
timeout -k 5 90 mpirun --oversubscribe -n 2 ./late.sh "$ringmark" prefill --planted 256k --threads 1 --quiet --hang-report 0.5 \
  < /dev/null > out.txt 2> err.txt || fail "a late rank without a folder: $(head -c 300 err.txt)"
grep -qE "^ringmark: rank 0 @ [^ ]+ waits [0-9.]+ s already in '.*' \(layer 0.*\) for rank 1 @ " err.txt || fail "no line: $(cat err.txt)"
[ $failures -eq 0 ] && echo "hang_report: all as it should be"
exit $((failures > 0))
