#!/usr/bin/env bash
# usage: backward.sh RINGMARK TEST_DATA   `ringmark backward` as a user meets it: on any ranks the gradients are those of
# the fp64 reference, dq bit for bit those of one rank; what it cannot do is refused by name; the report says what moved;
# a failed run leaves no output.
set -uo pipefail
ringmark=$1 data=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$(dirname "$0")/expect.sh"
on() { timeout -k 5 120 mpirun --oversubscribe -n "$1" "$ringmark" backward "${@:2}" --quiet < /dev/null; }

python3 "$here/cut_layer.py" "$data/layer.safetensors" layer.safetensors 0 900 no-position
# write_do FILE TOKENS HEADS DIM [TENSOR [TOKEN]]: random gradients; TOKEN has a NaN.
write_do() {
  python3 - "$@" << 'P'
import array, json, math, random, struct, sys
path, tokens, heads, dim = sys.argv[1], *map(int, sys.argv[2:5])
name = sys.argv[5] if len(sys.argv) > 5 else "do"
random.seed(3)
values = array.array("f", (random.gauss(0, 1) for _ in range(tokens * heads * dim)))
if len(sys.argv) > 6:
    values[int(sys.argv[6]) * heads * dim] = math.nan
entry = {"dtype": "F32", "shape": [tokens, heads, dim], "data_offsets": [0, 4 * len(values)]}
text = json.dumps({name: entry}).encode()
text += b" " * (-len(text) % 8)
open(path, "wb").write(struct.pack("<Q", len(text)) + text + values.tobytes())
P
}
write_do do.safetensors 900 4 64
write_do short.safetensors 899 4 64
write_do unnamed.safetensors 900 4 64 o
write_do nan.safetensors 900 4 64 do 777
backward() { "$ringmark" backward --input layer.safetensors --gradient do.safetensors "$@"; }

expect 2 'no --input FILE is given' "$ringmark" backward --gradient do.safetensors
expect 2 'no --gradient FILE is given' "$ringmark" backward --input layer.safetensors
expect 2 'policy oracle has no backward pass; limit: hils, mean, dense' backward --policy oracle
expect 2 'choice head has no backward pass' backward --choice head
expect 2 'backend = cuda' backward --backend cuda
expect 2 'topk = 4 has no meaning with --policy dense' backward --policy dense --topk 4
expect 2 'merge = auto has no meaning in the backward pass of --policy dense' backward --policy dense --merge auto
expect 3 'needs .* GiB, its limit is 0.1.* GiB' backward --memory-gib 0.1
for file in "short.safetensors tensor do has shape \[899, 4, 64\], not \[900, 4, 64\]" \
  "unnamed.safetensors .*do" "nan.safetensors tensor do holds NaN or infinity at token 777" "absent.safetensors .*"; do
  expect 2 "${file%% *}.*${file#* }" "$ringmark" backward --input layer.safetensors --gradient "${file%% *}" \
    --output lost.safetensors --quiet
  [ ! -e lost.safetensors ] || fail "an output of a run that was refused"
done

# compare FILE WANT BITS: every tensor of WANT within 1e-5 of its largest component, those named in BITS bit for bit.
compare() {
  python3 - "$@" << 'P'
import array, json, struct, sys
def tensors(path):
    raw = open(path, "rb").read()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    return {name: array.array("f", raw[8 + length + e["data_offsets"][0]:8 + length + e["data_offsets"][1]])
            for name, e in header.items()}
got, want = tensors(sys.argv[1]), tensors(sys.argv[2])
assert set(got) == set(want), (sorted(got), sorted(want))
for name, values in want.items():
    assert len(values) == len(got[name]) > 0
    if name in sys.argv[3:]:
        assert got[name].tobytes() == values.tobytes(), f"bits of {name}"
    worst = max(abs(a - b) for a, b in zip(got[name], values)) / max(map(abs, values))
    assert worst <= 1e-5, (name, worst)
P
}
for how in hils mean dense; do
  case $how in
    hils) options=() ;;
    mean) options=(--policy mean --sinks 70 --window 0 --topk 2) ;;
    dense) options=(--policy dense) ;;
  esac
  backward "${options[@]}" --backend reference --output "$how.reference.safetensors" > out.txt 2> err.txt ||
    fail "the reference exits $?: $(cat err.txt)"
  backward "${options[@]}" --threads 2 --output "$how.safetensors" --quiet > out.txt 2> err.txt ||
    fail "$how exits $?: $(cat err.txt)"
  compare "$how.safetensors" "$how.reference.safetensors" || fail "$how differs from the reference"
  for ranks in 2 4; do
    on "$ranks" "${options[@]}" --input layer.safetensors --gradient do.safetensors --output out.safetensors \
      --gradient-mib 1 --json report.json > out.txt 2> err.txt || fail "$how on $ranks exits $?: $(cat err.txt)"
    compare out.safetensors "$how.safetensors" dq || fail "$how on $ranks ranks differs from one"
    grep -q '^bytes moved .*gradients' out.txt || fail "$how: no bytes in $(cat out.txt)"
    python3 - "$how" "$ranks" << 'P' || fail "the report of $how on $ranks lacks fields: $(cat report.json)"
import json, sys
report = json.load(open("report.json"))
assert report["policy"] == sys.argv[1] and report["ranks"] == int(sys.argv[2])
assert report["bytes_fetched"] > 0 and report["bytes_gradients"] > 0 and report["stretches"] > 1
assert report["seconds"]["attend"] > 0 and ("selection_digest" in report) == (sys.argv[1] != "dense")
P
  done
done
# The forward is that of prefill.
digest() { "$ringmark" "$@" --digest --quiet 2> err.txt | grep selection_digest; }
[ "$(digest prefill --input layer.safetensors)" = \
  "$(digest backward --input layer.safetensors --gradient do.safetensors)" ] || fail "another choice than that of prefill"

[ $failures -eq 0 ] && echo "backward: all good"
exit $((failures > 0))
