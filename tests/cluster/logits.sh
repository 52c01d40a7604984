#!/usr/bin/env bash
# usage: logits.sh RINGMARK TEST_DATA   caps, ALiBi, sink logits and sinks in a cache as a user meets them: the bits of one
# rank on any ranks, the reference's numbers, values from flags or from the file, and one clear line for what does not fit.
set -uo pipefail
ringmark=$1 data=$2 here=$(cd "$(dirname "$0")" && pwd)
. "$here/expect.sh"

python3 "$here/cut_layer.py" "$data/layer.safetensors" layer.safetensors 0 700 no-position || fail "cannot cut the layer"
python3 "$here/add_logits.py" layer.safetensors zeros.safetensors logit_cap=3 -- 0 0 0 0 || fail "cannot add sink logits"
python3 "$here/add_logits.py" layer.safetensors alibi.safetensors alibi=1 -- 1 -2 0 5 || fail "cannot add sink logits"

# run RANKS NAME ARGUMENTS...: leaves NAME.safetensors, NAME.json and NAME.txt.
run() {
  local ranks=$1 name=$2
  shift 2
  mpirun --oversubscribe -n "$ranks" "$ringmark" prefill --quiet --output "$name.safetensors" --json "$name.json" "$@" \
    > "$name.txt" 2> err.txt < /dev/null || fail "$name exits $?: $(head -c 300 err.txt)"
}
# differ A B: the largest difference of o and of lse.
differ() {
  python3 - "$1" "$2" << 'P'
import array, json, struct, sys
def tensor(path, name):
    raw = open(path, "rb").read()
    length = struct.unpack("<Q", raw[:8])[0]
    begin, end = (8 + length + at for at in json.loads(raw[8:8 + length])[name]["data_offsets"])
    return array.array("f", raw[begin:end])
print(max(abs(a - b) for name in ("o", "lse") for a, b in zip(tensor(sys.argv[1], name), tensor(sys.argv[2], name))))
P
}
close() { python3 -c "assert $(differ "$1" "$2") < 2e-5" || fail "$1 and $2 differ by $(differ "$1" "$2")"; }
apart() { python3 -c "assert $(differ "$1" "$2") > 1e-2" || fail "$1 and $2 differ by $(differ "$1" "$2") only"; }

# A cap and softmax-zero, by flags and by the file, with chosen chunks and with none.
for how in "hils --window 64 --topk 3" "window --window 100"; do
  # shellcheck disable=SC2086
  set -- --policy $how
  run 1 plain --input layer.safetensors "$@"
  run 1 one --input layer.safetensors --logit-cap 3 --softmax-zero "$@"
  run 3 three --input layer.safetensors --logit-cap 3 --softmax-zero "$@"
  run 2 file --input zeros.safetensors "$@"
  run 1 reference --input zeros.safetensors --backend reference "$@"
  apart plain.safetensors one.safetensors
  cmp one.safetensors three.safetensors || fail "$how: three ranks differ from one"
  cmp one.safetensors file.safetensors || fail "$how: the file says another thing than the flags"
  close one.safetensors reference.safetensors
done
grep -q '^logits *capped at 3, sink logits 0$' one.txt || fail "no line of the logits: $(cat one.txt)"
run 1 uncapped --input zeros.safetensors --logit-cap 0 "$@"
grep -q '^logits *sink logits 0$' uncapped.txt || fail "a cap of 0 leaves that of the file: $(cat uncapped.txt)"
grep -q '^logits' plain.txt && fail "logits of a plain layer: $(grep ^logits plain.txt)"
python3 - << 'P' || fail "the report says something else"
import json
one, plain = json.load(open("one.json")), json.load(open("plain.json"))
assert (one["logit_cap"], one["alibi"], one["sink_logits"], one["window_edge"]) == (3, False, True, "token"), one
assert (plain["logit_cap"], plain["alibi"], plain["sink_logits"]) == (0, False, False), plain
P

# ALiBi in exact attention: the slopes of the heads wherever they are attended, and as many sink logits as heads.
run 1 dense --input alibi.safetensors --policy dense --logit-cap 20
run 2 heads --input alibi.safetensors --policy dense --logit-cap 20 --merge ulysses
run 1 exact --input alibi.safetensors --policy dense --logit-cap 20 --backend reference
run 3 window --input alibi.safetensors --policy window --window 1k --logit-cap 20
cmp dense.safetensors heads.safetensors || fail "heads on two ranks differ from one"
close dense.safetensors exact.safetensors
close dense.safetensors window.safetensors
grep -q '^logits *capped at 20, ALiBi, sink logits -2 to 5$' dense.txt || fail "no line of the logits: $(cat dense.txt)"

# Sinks in a cache.
cached="--input layer.safetensors --policy sinks --window 64 --sinks 5 --rope rope"
# shellcheck disable=SC2086
{
  run 1 text $cached --sink-positions text
  run 1 one $cached
  run 3 three $cached --sink-positions cache
  run 2 reference $cached --sink-positions cache --backend reference
}
apart text.safetensors one.safetensors
cmp one.safetensors three.safetensors || fail "sinks in a cache: three ranks differ from one"
close one.safetensors reference.safetensors
grep -q '^positions .*, sinks at their place in the cache' one.txt || fail "no word of the cache: $(grep ^positions one.txt)"
grep -q '"sinks": "cache"' one.json || fail "no sinks in the report"

refuse() { expect 2 "$1" "$ringmark" prefill --input "$2" "${@:3}"; }
refuse 'alibi = true has no meaning with --policy hils' layer.safetensors --alibi
refuse 'alibi = 1 does not go with scorer = hils' alibi.safetensors
refuse 'logit-cap = -1 is not a' layer.safetensors --logit-cap -1
refuse 'softmax-zero does not go with the tensor sink_logits' zeros.safetensors --softmax-zero
refuse 'logit_cap = 2.000000 cannot be kept' layer.safetensors --logit-cap 2 --snapshot kept
refuse 'sink_logits = 0.000000, ... cannot be kept' layer.safetensors --softmax-zero --snapshot kept
refuse 'sink-positions = cache needs --rope' layer.safetensors --policy sinks --sink-positions cache
refuse 'sink-positions = cache has no meaning with --policy hils' layer.safetensors --rope rope --sink-positions cache
refuse 'sink-positions = cache has no meaning with --policy dense' layer.safetensors --policy dense --rope rope \
  --sink-positions cache
# shellcheck disable=SC2086
refuse 'snapshot = kept does not go with --policy sinks' ${cached#--input } --snapshot kept
python3 "$here/add_positions.py" layer.safetensors ids.safetensors 0
refuse 'sink-positions = cache does not go with the tensor positions' ids.safetensors --policy sinks --sinks 4 --rope rope \
  --sink-positions cache
python3 "$here/add_logits.py" layer.safetensors bad.safetensors logit_cap=much
refuse "metadata logit_cap = 'much' is not a number" bad.safetensors
python3 "$here/add_logits.py" layer.safetensors bad.safetensors -- 0 0 0
refuse 'tensor sink_logits has shape \[3\], not \[4\]' bad.safetensors
python3 "$here/add_logits.py" layer.safetensors bad.safetensors -- 0 0 0 nan
refuse 'sink_logits holds nan' bad.safetensors

[ $failures -eq 0 ] && echo "logits: all good"
exit $((failures > 0))
