#!/usr/bin/env bash
# usage: pooled.sh RINGMARK TEST_DATA   `prefill --policy nsa` and `--policy compressive` as a user meets them: the same
# file on 1, 2, 3 and 5 ranks, close to the fp64 reference; what a policy does not honour is refused by name; the report
# and the metadata of the result say what was asked for.
set -uo pipefail
ringmark=$1 data=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$(dirname "$0")/expect.sh"
prefill() { "$ringmark" prefill --planted 1k "$@"; }

expect 2 'topk = 2 is outside \[3, 4096\]' prefill --policy nsa --topk 2
expect 2 'window = 0 is outside' prefill --policy nsa --window 0
expect 2 'gates = 1,2,1 is not a list of 3 numbers in \[0, 1\]' prefill --policy nsa --gates 1,2,1
expect 2 'gates = 1,1 is not a list of 3 numbers' prefill --policy nsa --gates 1,1
expect 2 'gates = 1,1,1 has no meaning with --policy hils' prefill --gates 1,1,1
expect 2 'gates = 1,1,1 has no meaning with --policy compressive' prefill --policy compressive --segment 64 --gates 1,1,1
expect 2 'segment = 64 has no meaning with --policy nsa' prefill --policy nsa --segment 64
expect 2 'merge = scores has no meaning with --policy nsa' prefill --policy nsa --merge scores
expect 2 'snapshot = kept has no meaning with --policy nsa' prefill --policy nsa --snapshot kept
expect 2 'backend = cuda does not go with --policy compressive' prefill --policy compressive --segment 64 --backend cuda
expect 2 'needs --segment TOKENS' prefill --policy compressive
expect 2 'digest = true has no meaning with --policy compressive' prefill --policy compressive --segment 64 --digest
expect 2 'chunk_size = 64 is not a multiple of compression_rate = 5' \
  prefill --policy compressive --segment 60 --compression-rate 5
expect 2 'memory = 6 is not a multiple of compression_rate = 4' prefill --policy compressive --segment 64 --memory 6
expect 3 'needs .* GiB, its limit is 0.25 GiB' "$ringmark" prefill --planted 1m --policy nsa --memory-gib 0.25
expect 3 'needs .* GiB, its limit is 0.25 GiB' \
  "$ringmark" prefill --planted 1m --policy compressive --segment 512 --memory-gib 0.25

python3 "$here/cut_layer.py" "$data/layer.safetensors" layer.safetensors 0 1500 no-position
expect 2 'layer.safetensors has no tensor gates: --policy nsa needs it or --gates' \
  "$ringmark" prefill --input layer.safetensors --policy nsa
# Adds the tensor gates, of so many tokens, of one value.
add_gates() {
  python3 - "$1" "$2" "$3" << 'P'
import array, json, struct, sys
path, tokens, value = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
raw = open("layer.safetensors", "rb").read()
length = struct.unpack("<Q", raw[:8])[0]
header, data = json.loads(raw[8:8 + length]), raw[8 + length:]
heads = header["q"]["shape"][1]
gates = array.array("f", [value]) * (tokens * heads * 3)
header["gates"] = {"dtype": "F32", "shape": [tokens, heads, 3], "data_offsets": [len(data), len(data) + 4 * len(gates)]}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(path, "wb").write(struct.pack("<Q", len(text)) + text + data + gates.tobytes())
P
}
add_gates gated.safetensors 1500 0.5
add_gates short.safetensors 1499 0.5
add_gates nan.safetensors 1500 nan
expect 2 'tensor gates has shape \[1499, 4, 3\], not \[1500, 4, 3\]' \
  "$ringmark" prefill --input short.safetensors --policy nsa
expect 2 'tensor gates holds NaN or infinity at token 0' "$ringmark" prefill --input nan.safetensors --policy nsa
expect 2 'gates are given, but gated.safetensors has a tensor gates' \
  "$ringmark" prefill --input gated.safetensors --policy nsa --gates 1,1,1

# The largest difference of o and lse of two results.
close() {
  python3 - "$1" "$2" << 'P'
import array, json, struct, sys
def tensor(path, name):
    raw = open(path, "rb").read()
    length = struct.unpack("<Q", raw[:8])[0]
    begin, end = (8 + length + at for at in json.loads(raw[8:8 + length])[name]["data_offsets"])
    return array.array("f", raw[begin:end])
for name in ("o", "lse"):
    got, want = tensor(sys.argv[1], name), tensor(sys.argv[2], name)
    assert len(got) == len(want) > 0
    worst = max(abs(a - b) for a, b in zip(got, want))
    assert worst <= 1e-5, (name, worst)
P
}
nsa="--policy nsa --topk 6 --window 100 --input gated.safetensors"
compressive="--policy compressive --segment 96 --memory 160 --compressed-slots 30 --compression-rate 16 --input layer.safetensors"
for how in nsa compressive; do
  # shellcheck disable=SC2086
  "$ringmark" prefill ${!how} --backend reference --output reference.safetensors > out.txt 2> err.txt < /dev/null ||
    fail "the reference of $how exits $?: $(cat err.txt)"
  for ranks in 1 2 3 5; do
    transport=auto && [ $ranks -eq 3 ] && transport=request
    # shellcheck disable=SC2086
    timeout -k 5 120 mpirun --oversubscribe -n $ranks "$ringmark" prefill ${!how} --threads 1 --transport $transport --quiet \
      --output $how.$ranks --json $how.json --trace trace.json --memory-plan > out.txt 2> err.txt < /dev/null ||
      fail "$how on $ranks ranks exits $?: $(cat err.txt)"
    grep -q '^pooled keys ' out.txt || fail "$how: no pooled keys in the memory plan"
    cmp -s $how.1 $how.$ranks || fail "$how: $ranks ranks give another file than one"
  done
  close $how.1 reference.safetensors || fail "$how differs from the reference"
done
# Constants do what a tensor of them does; every gate of the file is 0.5.
"$ringmark" prefill --policy nsa --topk 6 --window 100 --gates 0.5,0.5,0.5 --input layer.safetensors --output constant.safetensors \
  --quiet > out.txt 2> err.txt < /dev/null || fail "constant gates: $(cat err.txt)"
close constant.safetensors nsa.1 || fail "constant gates differ from a tensor of them"
grep -q '^policy .*window 100, top 6, gates 0.5, 0.5, 0.5$' out.txt || fail "the report does not tell gates: $(cat out.txt)"
python3 - << 'P' || fail "reports or metadata lack fields"
import json, struct
nsa, compressive = json.load(open("nsa.json")), json.load(open("compressive.json"))
assert nsa["policy"] == "nsa" and nsa["gates"] == "of the input" and nsa["topk"] == 6 and nsa["window"] == 100
assert nsa["bytes_merged"] > 0 and 0 < nsa["bytes_fetched"]
assert set(nsa["seconds"]) == {"load", "pool", "plan", "fetch", "window", "compress", "attend", "write", "total"}
assert compressive["segment"] == 96 and compressive["window"] == 160
assert compressive["compressed_slots"] == 30 and compressive["compression_rate"] == 16
def metadata(path):
    raw = open(path, "rb").read()
    return json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]])["__metadata__"]
assert metadata("nsa.1")["policy"] == "nsa" and metadata("nsa.1")["topk"] == "6"
assert metadata("compressive.1")["policy"] == "compressive" and metadata("compressive.1")["compression_rate"] == "16"
P

[ $failures -eq 0 ] && echo "pooled: all good"
exit $((failures > 0))
