#!/usr/bin/env bash
# usage: reuse.sh RINGMARK TEST_DATA   `prefill --reuse` as a user meets it: the real layer over a snapshot of its first
# 5000 tokens, kept by 4 ranks and reused by 3, is the rest of one prefill of the whole; hashes go on while a snapshot
# grows; what cannot be reused is said in one line with exit code 2.
set -uo pipefail
ringmark=$1 data=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$(dirname "$0")/expect.sh"
on() { timeout 300 mpirun --oversubscribe -n "$1" "$ringmark" "${@:2}" --quiet < /dev/null; }
digest() { sed -n 's/^selection_digest //p' "$1"; }
cat > tensors.py << 'P'
import json, struct
def read(path):
    raw = open(path, "rb").read()
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + length]), bytearray(raw[8 + length:])
def rows(path, name):
    header, data = read(path)
    begin, end = header[name]["data_offsets"]
    width = (end - begin) // header[name]["shape"][0]
    return [bytes(data[at:at + width]) for at in range(begin, end, width)]
def write(path, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)
P

# The layer with token ids; the same with others from token 10 on, and with another key at token 4991.
python3 - "$data/layer.safetensors" << 'P'
import struct, sys
from tensors import read, write
header, data = read(sys.argv[1])
def with_ids(path, ids, data):
    tensor = {"dtype": "I64", "shape": [8192], "data_offsets": [len(data), len(data) + 8 * 8192]}
    write(path, dict(header, token_ids=tensor), data + struct.pack("<8192q", *ids))
with_ids("whole.safetensors", range(8192), data)
with_ids("early.safetensors", [*range(10), *range(9000, 9000 + 8182)], data)
begin, end = header["k"]["data_offsets"]
other = bytearray(data)
other[begin + 4991 * (end - begin) // 8192] ^= 1
with_ids("other.safetensors", range(8192), other)
P
python3 "$here/cut_layer.py" whole.safetensors first.safetensors 0 5000
python3 "$here/cut_layer.py" whole.safetensors chunks.safetensors 0 4992
on 4 prefill --input first.safetensors --snapshot kept > out.txt || fail "the prefill of the beginning"
if ! grep -q 'prefix hashes: yes' out.txt; then
  expect 2 'reuse = kept needs prefix hashes, and this build has no OpenSSL' \
    "$ringmark" prefill --input whole.safetensors --reuse kept
  [ $failures -eq 0 ] && echo "reuse: this build has no OpenSSL"
  exit $((failures > 0))
fi
on 2 prefill --input chunks.safetensors --digest > chunks.txt || fail "the prefill of the full chunks"
on 2 prefill --input whole.safetensors --output whole.out --topk-chunks --snapshot whole > out.txt || fail "the whole"

# 78 of 128 chunks are there; the rest has the bits of one prefill, and leaves what one prefill leaves.
on 3 prefill --input whole.safetensors --reuse kept --output rest.out --topk-chunks --snapshot next --digest \
  --json report.json --trace trace.json --memory-plan > rest.txt || fail "the reuse"
grep -qE '^reused +4992 of 8192 tokens \(60.9%\) in 78 chunks of 1 document, kept in kept generation 1; 3200 computed$' \
  rest.txt || fail "the report: $(cat rest.txt)"
grep -qE '^kept prefixes +[0-9.]+ MiB$' rest.txt || fail "the memory plan: $(cat rest.txt)"
both=$(printf '%016x' $((0x$(digest chunks.txt) + 0x$(digest rest.txt))))
[ "$both" = 1a88575264c5d822 ] || fail "digests of the kept and the computed rows add up to $both"
python3 - << 'P' || fail "the rest is not that of one prefill"
import json, struct
from tensors import rows
report = json.load(open("report.json"))
assert report["reused_tokens"] == 4992 and report["reused_chunks"] == 78 and report["reused_documents"] == 1
assert report["reused_share"] == 4992 / 8192 and report["reused_from"] == {"folder": "kept", "generation": 1}
assert report["tokens"] == 8192 and report["snapshot"]["generation"] == 1
assert json.load(open("trace.json"))["traceEvents"]
tokens = [struct.unpack("<q", row)[0] for row in rows("rest.out", "token")]
assert tokens == list(range(4992, 8192))
for name in ("o", "lse", "topk_chunks"):
    want = rows("whole.out", name)
    assert rows("rest.out", name) == want[4992:], name
manifest = lambda folder: json.load(open(folder + "/generation-000001/manifest.json"))
assert manifest("next")["prefix_hashes"] == manifest("whole")["prefix_hashes"]
assert manifest("kept")["prefix_hashes"] == manifest("whole")["prefix_hashes"][:78] + [""]
assert manifest("kept")["tail_ids"] == [list(range(4992, 5000))]
P
[ "$("$ringmark" inspect next --verify | sed -n 's/^verified //p')" = "256 blocks, 128 records" ] ||
  fail "what the reuse left: $("$ringmark" inspect next --verify 2>&1)"

# All of it is there: the last chunk is computed all the same. Nothing is there: a prefill like any other.
on 2 prefill --input whole.safetensors --reuse next --output last.out > out.txt || fail "a full hit"
grep -qE '^reused +8128 of 8192 tokens \(99.2%\) in 127 chunks .*; 64 computed$' out.txt || fail "a full hit: $(cat out.txt)"
on 3 prefill --input early.safetensors --reuse kept --output early.out --topk-chunks --json report.json > out.txt ||
  fail "no hit"
grep -qE '^reused +nothing: kept generation 1 keeps no beginning of the input$' out.txt || fail "no hit: $(cat out.txt)"
cmp whole.out early.out || fail "a run without a hit is no prefill"
python3 - << 'P' || fail "rows of a full hit, or the report of none"
import json
from tensors import rows
assert rows("last.out", "o") == rows("whole.out", "o")[8128:]
assert json.load(open("report.json"))["reused_tokens"] == 0
P

# Two documents, one of which begins like the other sequence of a snapshot.
python3 - << 'P'
import struct
from tensors import read, write
header, data = read("whole.safetensors")
def packed(path, documents):
    new, all_bytes = {"__metadata__": header["__metadata__"]}, b""
    tokens = [token for first, end in documents for token in range(first, end)]
    starts = [0]
    for first, end in documents:
        starts.append(starts[-1] + end - first)
    def add(name, dtype, shape, part):
        nonlocal all_bytes
        new[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(all_bytes), len(all_bytes) + len(part)]}
        all_bytes += part
    for name in ("q", "k", "v", "landmark_q", "token_ids"):
        begin, end = header[name]["data_offsets"]
        row = (end - begin) // 8192
        add(name, header[name]["dtype"], [len(tokens)] + header[name]["shape"][1:],
            b"".join(data[begin + token * row:begin + (token + 1) * row] for token in tokens))
    add("cu_seqlens", "I64", [len(starts)], struct.pack(f"<{len(starts)}q", *starts))
    write(path, new, all_bytes)
packed("kept_two.safetensors", [(0, 700), (3000, 4000)])
packed("two.safetensors", [(3000, 4100), (500, 900)])
P
on 3 prefill --input kept_two.safetensors --snapshot kept_two > out.txt || fail "the prefill of two"
on 2 prefill --input two.safetensors --output two.out > out.txt || fail "the whole of two"
on 4 prefill --input two.safetensors --reuse kept_two --output rest_of_two.out --snapshot int8 --kv-dtype int8 --merge scores \
  > out.txt || fail "the reuse of two"
grep -qE '^reused +960 of 1500 tokens .* in 15 chunks of 1 document, ' out.txt || fail "the reuse of two: $(cat out.txt)"
# What was kept in fewer bits is reused too, near the truth.
on 3 prefill --input two.safetensors --reuse int8 --output from_int8.out > out.txt || fail "the reuse of int8"
grep -qE '^reused +1472 of 1500 tokens .* in 23 chunks of 2 documents, ' out.txt || fail "the reuse of int8: $(cat out.txt)"
python3 - << 'P' || fail "the rest of two"
import array, struct
from tensors import rows
tokens = [*range(960, 1100), *range(1100, 1500)]
assert [struct.unpack("<q", row)[0] for row in rows("rest_of_two.out", "token")] == tokens
for name in ("o", "lse"):
    want = rows("two.out", name)
    assert rows("rest_of_two.out", name) == [want[token] for token in tokens], name
got, want = rows("from_int8.out", "o"), rows("two.out", "o")
near = total = 0
for row, token in zip(rows("from_int8.out", "token"), got):
    a, b = array.array("f", token), array.array("f", want[struct.unpack("<q", row)[0]])
    near += sum(abs(x - y) <= 2e-2 for x, y in zip(a, b))
    total += len(a)
assert total == 28 * 256 and near >= 0.99 * total, (near, total)
P

# Hashes go on while a snapshot grows, as long as the ids are known.
python3 "$here/cut_layer.py" whole.safetensors steps.safetensors 5000 5130
python3 - << 'P'
from tensors import read, write
header, data = read("steps.safetensors")
write("nameless.safetensors", {name: tensor for name, tensor in header.items() if name != "token_ids"} | {
    "ids": header["token_ids"]}, data)
P
for name in grown nameless; do cp -r kept $name; done
on 3 decode --snapshot grown --input steps.safetensors --rows 7 --save > out.txt || fail "decode with ids"
on 2 decode --snapshot nameless --input nameless.safetensors --rows 50 --save > out.txt || fail "decode without ids"
python3 - << 'P' || fail "the hashes of snapshots that grew"
import json
manifest = lambda folder, generation: json.load(open(f"{folder}/generation-{generation:06}/manifest.json"))
want = manifest("whole", 1)["prefix_hashes"]
grown, nameless = manifest("grown", 2), manifest("nameless", 2)
assert grown["tokens"] == nameless["tokens"] == 5130
assert grown["prefix_hashes"] == want[:80] + [""] and grown["tail_ids"] == [list(range(5120, 5130))]
assert nameless["prefix_hashes"] == want[:78] + [""] * 3 and "tail_ids" not in nameless
P
on 2 prefill --input whole.safetensors --reuse grown > out.txt || fail "the reuse of what has grown"
grep -qE '^reused +5120 of 8192 tokens ' out.txt || fail "the reuse of what has grown: $(cat out.txt)"

# Refused.
p=("$ringmark" prefill --quiet --input whole.safetensors --reuse kept)
expect 2 'layer.safetensors: has no tensor token_ids' "$ringmark" prefill --input "$data/layer.safetensors" --reuse kept
on 2 prefill --input "$data/layer.safetensors" --snapshot unnamed > out.txt || fail "a snapshot without ids"
expect 2 'unnamed: cannot be reused: it has no prefix hashes' \
  "$ringmark" prefill --input whole.safetensors --reuse unnamed
expect 2 'nowhere' "$ringmark" prefill --input whole.safetensors --reuse nowhere
expect 2 'kept: cannot be reused: its window is 128, that of the input is 256' "${p[@]}" --window 256
expect 2 'its chunk_size is 64, that of the input is 32' "${p[@]}" --chunk 32
expect 2 'its scale is 0.125, that of the input is 0.25' "${p[@]}" --scale 0.25
expect 2 'its scorer is hils, that of the input is mean' "${p[@]}" --policy mean
expect 2 'its topk is 8, that of the input is 9' "${p[@]}" --topk 9
expect 2 'its sinks is 0, that of the input is 1' "${p[@]}" --sinks 1
expect 2 'backend = reference does not go with --reuse' "${p[@]}" --backend reference
expect 2 'reuse = kept has no meaning with --policy dense' "${p[@]}" --policy dense
expect 2 'rope = yarn does not go with --reuse' "${p[@]}" --rope yarn --rope-factor 8 --rope-original 1k
expect 2 'balance = zigzag does not go with --reuse' "${p[@]}" --balance zigzag
expect 2 'planted = 1k does not go with --reuse' "$ringmark" prefill --planted 1k --reuse kept
expect 2 'nowhere/out' "${p[@]}" --output nowhere/out.safetensors
expect 2 'nowhere/kept' "${p[@]}" --snapshot nowhere/kept
expect 3 'needs .* GiB, its limit is' "${p[@]}" --memory-gib 0.01
expect 2 'kept: cannot be reused: K and V of its chunk 77 are not those of tokens 4928 to 4991 of the input' \
  "$ringmark" prefill --input other.safetensors --reuse kept
shard=kept/generation-000001/shard-00001.safetensors
printf '\377' | dd of=$shard bs=1 seek=$(($(stat -c %s $shard) - 9)) conv=notrunc status=none
expect 2 'shard-00001.safetensors: chunk [0-9]+, kv head [01]: its block has checksum' "${p[@]}"

[ $failures -eq 0 ] && echo "reuse: all good"
exit $((failures > 0))
