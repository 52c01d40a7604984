#!/usr/bin/env bash
# usage: logo.sh RINGMARK   `prefill --policy logo` as a user meets it: options that do not fit together are refused by
# name, the same bits come out on any ranks, the report says how many rows attended globally, and the threshold moves
# from run to run towards the share that was asked for.
set -uo pipefail
ringmark=$1
. "$(dirname "$0")/expect.sh"
logo=("$ringmark" prefill --planted 2k --policy logo --quiet)
on() { timeout -k 5 120 mpirun --oversubscribe -n "$1" "${logo[@]}" "${@:2}" < /dev/null > out.txt 2> err.txt || fail "$*: exit $?: $(head -3 err.txt)"; }

expect 2 'needs --threshold B or --target-ratio RHO' "${logo[@]}"
expect 2 'both --threshold = 0.5 and --target-ratio = 0.5 are given' "${logo[@]}" --threshold 0.5 --target-ratio 0.5
expect 2 'target-ratio = 0.5 needs --controller FILE' "${logo[@]}" --target-ratio 0.5
expect 2 'controller = c.json has no meaning without --target-ratio' "${logo[@]}" --threshold 0.5 --controller c.json
expect 2 'mask-steps = 7 has no meaning without --target-ratio' "${logo[@]}" --threshold 0.5 --mask-steps 7
expect 2 'threshold = nan' "${logo[@]}" --threshold nan
expect 2 'merge = ulysses' "${logo[@]}" --threshold 0.5 --merge ulysses
expect 2 'topk = 4 has no meaning with --policy logo' "${logo[@]}" --threshold 0.5 --topk 4
expect 2 'digest = true has no meaning with --policy logo' "${logo[@]}" --threshold 0.5 --digest
expect 2 'backend = cuda does not go with --policy logo' "${logo[@]}" --threshold 0.5 --backend cuda
expect 2 'threshold = 0.5 has no meaning with --policy dense' "$ringmark" prefill --planted 2k --policy dense --threshold 0.5
expect 2 'window = 0 is outside' "${logo[@]}" --threshold 0.5 --window 0
expect 3 'needs .* GiB, its limit is 0.01 GiB' "${logo[@]}" --threshold 0.5 --memory-gib 0.01
echo '{"threshold": 0.5}' > half.json
expect 2 'half.json: steps is missing' "${logo[@]}" --target-ratio 0.5 --controller half.json

# The same bits on any ranks and over any transport; ring and pass-q only round otherwise.
on 1 --threshold 0.5 --output one.safetensors --json one.json
for ranks in 2 3 5; do
  on $ranks --threshold 0.5 --output any.safetensors
  cmp -s one.safetensors any.safetensors || fail "$ranks ranks give other bits"
done
on 3 --threshold 0.5 --transport request --balance rotate --fetch-mib 1 --output any.safetensors
cmp -s one.safetensors any.safetensors || fail "another transport and layout give other bits"
for merge in ring pass-q; do
  on 3 --threshold 0.5 --merge $merge --json merge.json
  grep -q "\"merge\": \"$merge\"" merge.json || fail "$merge is not in the report"
  grep -q '^needles .*28 of 28 recovered' out.txt || fail "$merge: needles lost: $(cat out.txt)"
done
python3 - << 'P' || fail "the report lacks fields"
import json
report = json.load(open("one.json"))
assert report["policy"] == "logo" and report["window"] == 128 and report["threshold"] == 0.5
assert 0.4 < report["global_ratio"] < 0.6, report["global_ratio"]
assert report["global_rows"] == round(report["global_ratio"] * 2048)
P

# Three steps from -0.1 to 0.5, then half of the rows and back.
follow=(--target-ratio 0.5 --controller state.json --threshold-step 0.2 --mask-steps 3)
thresholds=""
for run in 1 2 3 4; do
  on $((run % 3 + 1)) "${follow[@]}" --json run.json
  thresholds+="$(python3 -c 'import json; r = json.load(open("run.json")); print(round(r["threshold"], 6), round(r["threshold_next"], 6), r["controller_steps"], end=";")')"
done
[ "$thresholds" = "-0.1 0.1 1;0.1 0.3 2;0.3 0.5 3;0.5 0.7 4;" ] || [ "$thresholds" = "-0.1 0.1 1;0.1 0.3 2;0.3 0.5 3;0.5 0.3 4;" ] ||
  fail "thresholds are $thresholds"
[ "$(python3 -c 'import json; print(json.load(open("state.json"))["steps"])')" = 4 ] || fail "the state is $(cat state.json)"
[ -z "$(ls | grep tmp)" ] || fail "a temporary file is left: $(ls)"

[ $failures -eq 0 ] && echo "logo: all good"
exit $((failures > 0))
