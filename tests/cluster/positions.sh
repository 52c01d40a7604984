#!/usr/bin/env bash
# usage: positions.sh RINGMARK TEST_DATA   prefill --rope: against a layer that a script has rotated, the same on any
# ranks, positions from the file or the default ones, and one clear line for what does not fit.
set -uo pipefail
ringmark=$1 data=$2 here=$(cd "$(dirname "$0")" && pwd)
. "$here/expect.sh"

python3 "$here/cut_layer.py" "$data/layer.safetensors" plain.safetensors 0 768 no-position || fail "cannot cut the layer"
python3 "$here/add_positions.py" plain.safetensors ids.safetensors 0 || fail "cannot add positions"
python3 "$here/rotate_layer.py" plain.safetensors rotated.safetensors || fail "cannot rotate the layer"
yarn="--rope yarn --rope-factor 8 --rope-original 4k --rope-layout interleaved --rope-dims 48"

# run RANKS NAME ARGUMENTS...: leaves NAME.safetensors, NAME.json and NAME.txt.
run() {
  local ranks=$1 name=$2
  shift 2
  mpirun --oversubscribe -n "$ranks" "$ringmark" prefill --quiet --output "$name.safetensors" --json "$name.json" "$@" \
    > "$name.txt" 2> err.txt < /dev/null || fail "$name exits $?: $(head -c 300 err.txt)"
}

# An independent rotation gives the same attention: exact, so that nothing hangs on a close choice.
run 1 expected --input rotated.safetensors --window 1k --topk 0
run 2 got --input plain.safetensors --window 1k --topk 0 $yarn
python3 - << 'P' || fail "another result than of the layer that was rotated outside"
import array, json, struct
def tensor(path, name):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        begin, end = json.loads(file.read(length))[name]["data_offsets"]
        file.seek(8 + length + begin)
        return array.array("f", file.read(end - begin))
for name, bound in (("o", 0.02), ("lse", 0.02)):
    pairs = zip(tensor("expected.safetensors", name), tensor("got.safetensors", name))
    worst = max(abs(a - b) for a, b in pairs if a != b)
    assert worst < bound, (name, worst)
report, plain = json.load(open("got.json")), json.load(open("expected.json"))
assert "positions" not in plain and report["positions"]["kind"] == "yarn", report
assert report["positions"]["rotary_dim"] == 48 and report["positions"]["ids"] == "documents", report
assert abs(report["positions"]["scale_gain"] - 1.459129) < 1e-6, report
assert abs(report["scale"] - plain["scale"]) < 1e-8 and report["scale"] > 0.17, (report["scale"], plain["scale"])
P
grep -q '^positions .*yarn.*; scale 0.18.* with gain 1.45913$' got.txt || fail "no scale: $(grep ^positions got.txt)"

# Any ranks, and the ids in the file or those that it would have without: one result, bit for bit.
run 1 one --input plain.safetensors --rope rope --topk-chunks
run 3 three --input plain.safetensors --rope rope --topk-chunks --balance contiguous
run 2 given --input ids.safetensors --rope rope --topk-chunks
for name in three given; do cmp one.safetensors $name.safetensors || fail "$name differs from one rank"; done
grep -q 'ids of the input' given.txt || fail "the report does not say whose ids: $(grep ^positions given.txt)"
# --rope none is the layer as it is.
run 1 none --input ids.safetensors --rope none
run 1 unasked --input plain.safetensors
cmp none.safetensors unasked.safetensors || fail "--rope none rotates"

refuse() { expect 2 "$1" "$ringmark" prefill --input plain.safetensors "${@:2}"; }
refuse 'rope = rotary is not one of none, rope' --rope rotary
refuse 'alibi is a bias of logits and no rotation: ask for it by --alibi' --rope alibi
refuse 'rope-theta = 5 has no meaning with --rope none' --rope-theta 5
refuse 'rope-factor = 4 has no meaning with --rope rope' --rope rope --rope-factor 4
refuse 'rope-theta = 5 has no meaning with --rope hope-partial' --rope hope-partial --rope-original 8k --rope-theta 5
refuse 'rope = pi needs --rope-factor' --rope pi
refuse 'rope = yarn needs --rope-original' --rope yarn --rope-factor 4
refuse 'factor = 0.5 is outside \[1,' --rope ntk --rope-factor 0.5
refuse 'theta = 1 is not above 1' --rope rope --rope-theta 1
refuse 'rope-dims = 1 is not a whole number in \[2, 256\]' --rope rope --rope-dims 1
refuse 'rotary_dim = 63 is odd' --rope rope --rope-dims 63
refuse 'rotary_dim = 66 is outside \[0, head_dim = 64\]' --rope rope --rope-dims 66
refuse 'rope-ratio = 2 is not' --rope hope-partial --rope-original 8k --rope-ratio 2
refuse 'rope = rope does not go with --reuse|no OpenSSL' --rope rope --reuse kept
expect 2 'rope = rope does not go with --planted' "$ringmark" prefill --planted 1k --rope rope
python3 "$here/add_positions.py" plain.safetensors bad.safetensors 0 700 -5
expect 2 'tensor positions holds -5 at token 700, outside \[0, 268435456\]' \
  "$ringmark" prefill --input bad.safetensors --rope rope
python3 "$here/add_positions.py" plain.safetensors far.safetensors 20000
expect 2 'position 20000 is outside .*its amplitude in bf16 would overflow' \
  "$ringmark" prefill --input far.safetensors --rope xpos

[ $failures -eq 0 ] && echo "positions: all good"
exit $((failures > 0))
