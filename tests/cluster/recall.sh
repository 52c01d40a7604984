#!/usr/bin/env bash
# usage: recall.sh RINGMARK TEST_DATA   prefill --recall: the same report on any ranks, 1 where nothing is lost, a warning
# where much is, beside a snapshot too, and one clear line for what does not fit.
set -uo pipefail
ringmark=$1 data=$2 here=$(cd "$(dirname "$0")" && pwd)
. "$here/expect.sh"

python3 "$here/cut_layer.py" "$data/layer.safetensors" layer.safetensors 0 1500 || fail "cannot cut the layer"

# run RANKS NAME ARGUMENTS...: leaves NAME.json and NAME.txt.
run() {
  local ranks=$1 name=$2
  shift 2
  mpirun --oversubscribe -n "$ranks" "$ringmark" prefill --quiet --json "$name.json" "$@" > "$name.txt" 2> err.txt \
    < /dev/null || fail "$name exits $?: $(head -c 300 err.txt)"
}

run 1 one --input layer.safetensors --topk 4 --recall 0.25
run 3 three --input layer.safetensors --topk 4 --recall 0.25 --balance contiguous --merge scores --snapshot kept
run 2 seed --input layer.safetensors --topk 4 --recall 0.25 --seed 2
run 2 whole --input layer.safetensors --window 2k --topk 0 --recall 1
run 2 narrow --input layer.safetensors --window 0 --topk 0 --recall 1
run 2 unasked --input layer.safetensors --topk 4
run 2 none --input layer.safetensors --recall 1e-9
python3 - << 'P' || fail "the reports do not hold what they should"
import json
one, three, seed, whole, narrow, unasked, none = (json.load(open(f"{name}.json")) for name in
    ("one", "three", "seed", "whole", "narrow", "unasked", "none"))
assert "recall" not in unasked and "recall" not in unasked["seconds"]
assert one["seconds"]["recall"] > 0
recall = one["recall"]
assert list(recall) == ["rows", "pairs", "mean", "p5", "depths", "collapses"], recall
assert recall == three["recall"] != seed["recall"]
assert 300 < recall["rows"] < 450 and len(recall["depths"]) == 10
assert recall["pairs"] == sum(depth["pairs"] for depth in recall["depths"]) <= recall["rows"] * one["heads"]
mean = sum(depth["pairs"] * depth["mean"] for depth in recall["depths"]) / recall["pairs"]
assert abs(recall["mean"] - mean) < 1e-9 and recall["p5"] < recall["mean"] < 1
assert whole["recall"]["rows"] == 1500
assert whole["recall"]["mean"] == whole["recall"]["p5"] == 1 and not whole["recall"]["collapses"]
assert narrow["recall"]["collapses"] and narrow["recall"]["depths"][9]["mean"] < narrow["recall"]["depths"][1]["mean"]
assert none["recall"]["rows"] == 0 and none["recall"]["mean"] is None and none["recall"]["depths"][0]["p5"] is None
P
grep -q '^recall  *mean 0\..* of 1500 queries$' one.txt || fail "no recall: $(grep ^recall one.txt)"
[ "$(grep -c '^recall by depth  *\(0\|1\)\.' one.txt)" = 1 ] || fail "no depths: $(grep ^recall one.txt)"
grep -q '^recall warning' narrow.txt || fail "no warning"
grep -q '^recall warning' whole.txt && fail "a warning without a loss"
grep -q '^recall  *no query of 1500 was sampled' none.txt || fail "none: $(grep ^recall none.txt)"

run 1 plan --input layer.safetensors --recall 0.5 --memory-plan
grep -q '^recall  *0\.[1-9]* MiB$' plan.txt || fail "the memory plan does not count it: $(grep ^recall plan.txt)"

refuse() { expect 2 "$1" "$ringmark" prefill --input layer.safetensors "${@:2}"; }
refuse 'recall = 0 is not a number above 0 and at most 1' --recall 0
refuse 'recall = 1.5 is not a number above 0 and at most 1' --recall 1.5
refuse 'recall = 0.1 has no meaning with --policy dense' --recall 0.1 --policy dense
refuse 'recall = 0.1 does not go with --backend cuda; limit: cpu' --recall 0.1 --backend cuda
refuse 'recall = 0.1 does not go with --backend reference; limit: cpu' --recall 0.1 --backend reference

[ $failures -eq 0 ] && echo "recall: all good"
exit $((failures > 0))
