#!/usr/bin/env bash
# usage: study.sh RINGMARK   a small study under mpirun: points are done once, go on after others, a failed one says why
# and leaves the rest alone, other parameters are refused, results that disagree end with 1.
set -uo pipefail
ringmark=$(realpath "$1")
. "$(dirname "$(realpath "$0")")/../expect.sh"
run=("$ringmark" scaling run --dir s --nodes 1,2 --tokens 2k --repeat 2 --warmup 0 -- --needles 4 --topk 4)
"${run[@]}" > first || fail "the study ended with $?: $(cat first)"
[ "$(grep -c ': done: ' first)" -eq 4 ] || fail "not four points: $(cat first)"
"${run[@]}" > again || fail "the second run ended with $?"
[ "$(grep -c ': done, as before: ' again)" -eq 4 ] || fail "points were run again: $(cat again)"
expect 2 'begun with tokens = 2048, not 4096' "$ringmark" scaling run --dir s --nodes 1,2 --tokens 4k
expect 2 'has points 0 to 3' "$ringmark" scaling run --dir s --point 4
expect 2 "'rnig' is neither" "$ringmark" scaling run --dir t --nodes 1 --tokens 1k --arms rnig
expect 2 'is no study' "$ringmark" scaling collect t
"$ringmark" scaling collect s --format csv > table.csv || fail "collect ended with $?"
[ "$(wc -l < table.csv)" -eq 5 ] || fail "the table has $(wc -l < table.csv) lines"
"$ringmark" scaling collect s --format csv --reference s/results.jsonl > same.csv || fail "a regression against itself"
sed 's/"selection_digest":"./&x/' s/points/00002.json > other && mv other s/points/00002.json
"$ringmark" scaling collect s > /dev/null 2> err.txt
[ $? -eq 1 ] || fail "results that disagree did not end with 1"
grep -q 'has selection digest' err.txt || fail "nobody says that results disagree: $(cat err.txt)"
# A point that cannot work: the one after it is done all the same.
"$ringmark" scaling run --dir f --nodes 1 --tokens 2k --arms moba,ring --repeat 1 --warmup 0 --no-trace -- --window 0 \
  --topk 4 --chunk 7000000 > failed
[ $? -eq 1 ] || fail "a failed point did not end with 1: $(cat failed)"
[ "$(ls f/points/*.json | wc -l)" -eq 2 ] || fail "the study did not go on: $(cat failed)"
grep -q 'FAILED: .*ringmark:' failed || fail "no cause: $(cat failed)"
if command -v gnuplot > /dev/null; then
  "$ringmark" scaling report f > /dev/null
  [ $? -eq 1 ] || fail "the report of a failed point did not end with 1"
  grep -q 'id="failures"' f/report.html || fail "the page hides the failed point"
fi
exit $((failures > 0))
