#!/usr/bin/env bash
# usage: inspect.sh RINGMARK TEST_DATA   snapshots and `ringmark inspect` as a user meets them: what was kept is shown and
# verified, what is damaged is named in one line with exit code 2, what cannot be written leaves nothing.
set -uo pipefail
ringmark=$1 data=$2
. "$(dirname "$0")/expect.sh"
# shows PATTERN COMMAND...: exit code 0 and a line on stdout that matches.
shows() {
  local pattern=$1
  shift
  "$@" > out.txt 2> err.txt < /dev/null || fail "exit $?: $* ($(head -c 300 err.txt))"
  grep -qE -- "$pattern" out.txt || fail "no '$pattern' in the output of $*: $(head -c 600 out.txt)"
}
prefill() { mpirun --oversubscribe -n "$1" "$ringmark" prefill --quiet "${@:2}"; }

expect 2 'no folder and no file' "$ringmark" inspect
expect 2 'did you mean --verify' "$ringmark" inspect kept --verfy
expect 2 'missing' "$ringmark" inspect missing
expect 2 'out.txt: ' "$ringmark" inspect out.txt
expect 2 'did you mean inspect' "$ringmark" inspec kept
mkdir none && expect 2 'none: holds no complete snapshot' "$ringmark" inspect none
# Variables of other commands are no concern of this one.
shows '^tensor +q BF16 \[8192, 4, 64\], 4.0 MiB' env RINGMARK_TOPK=4 "$ringmark" inspect "$data/layer.safetensors"
shows '^verified 4 tensors, 12582912 bytes' "$ringmark" inspect --verify --json file.json "$data/layer.safetensors"
head -c 100000 "$data/layer.safetensors" > cut.safetensors
expect 2 'cut.safetensors: .*data_offsets' "$ringmark" inspect cut.safetensors

# The real layer on 3 ranks; then quantised, with two documents, on 2.
shows '^snapshot +kept generation 1: as-input' prefill 3 --input "$data/layer.safetensors" --snapshot kept
shows '^shard +shard-00002.safetensors: ' "$ringmark" inspect kept
shows '^chunks +128 closed, kept as as-input; 0 growing' "$ringmark" inspect kept
shows '^verified 256 blocks, 128 records' "$ringmark" inspect kept --verify
shows 'largest error K 0\.[0-9]+, V 0\.[0-9]+' \
  prefill 2 --input "$data/layer.safetensors" --cu-seqlens 0,5000,8192 --snapshot kept --kv-dtype int8 --json run.json
shows '^tokens +8192 in 2 sequences of 5000, 3192' "$ringmark" inspect kept --verify --json kept.json
python3 - << 'P' || fail "the JSON is not what it should be"
import json
kept, run, file = (json.load(open(name)) for name in ("kept.json", "run.json", "file.json"))
assert kept["generation"] == run["snapshot"]["generation"] == 2
assert kept["block_format"] == "int8" == run["snapshot"]["block_format"]
assert kept["sequence_lengths"] == [5000, 3192] and kept["passed_over"] == []
assert kept["chunks_closed"] == 78 + 49 and kept["chunks_growing"] == 2
assert kept["verified"] == {"blocks": 2 * 129, "records": 127}
assert sum(shard["chunks"] for shard in kept["shards"]) == 129
assert 0 < run["snapshot"]["largest_key_error"] < 1 and 0 < run["snapshot"]["largest_value_error"] < 1
assert {tensor["name"] for tensor in file["tensors"]} == {"q", "k", "v", "landmark_q"}
P

# Token ids give prefix hashes, the same on any ranks; a build without OpenSSL says that it has none.
python3 - "$data/layer.safetensors" << 'P'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
length = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8:8 + length])
end = len(raw) - 8 - length
ids = struct.pack("<8192q", *range(8192))
header["token_ids"] = {"dtype": "I64", "shape": [8192], "data_offsets": [end, end + len(ids)]}
text = json.dumps(header).encode()
open("with_ids.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + raw[8 + length:] + ids)
P
shows 'prefix hashes: (yes|none, this build)' prefill 2 --input with_ids.safetensors --snapshot hashed
if grep -q 'prefix hashes: yes' out.txt; then
  python3 - << 'P' || fail "the prefix hashes are not the chain of SHA-256"
import hashlib, json, struct
hashes = json.load(open("hashed/generation-000001/manifest.json"))["prefix_hashes"]
parent = b""
for chunk, found in enumerate(hashes):
    parent = hashlib.sha256(parent + struct.pack("<64q", *range(64 * chunk, 64 * chunk + 64))).digest()
    assert parent.hex() == found
assert len(hashes) == 128
P
fi

# A damaged newest generation is passed over; damage inside a block is named.
newest=kept/generation-000002
cp -r kept spare
truncate -s 5000 $newest/shard-00001.safetensors
shows '^passed over +.*shard-00001.safetensors: has 5000 bytes' "$ringmark" inspect kept
shows '^generation +1$' "$ringmark" inspect kept
rm -r kept && mv spare kept
printf '\377' | dd of=$newest/shard-00000.safetensors bs=1 seek=$(($(stat -c %s $newest/shard-00000.safetensors) - 9)) \
  conv=notrunc status=none
expect 2 'shard-00000.safetensors: chunk [0-9]+, kv head 1: its block has checksum' "$ringmark" inspect kept --verify

# What cannot be written is refused before anything is computed, and leaves what was there.
before=$(find kept -type f -exec sha256sum {} + | sort)
expect 2 'kv-dtype = int8 has no meaning without --snapshot' "$ringmark" prefill --planted 1k --kv-dtype int8
expect 2 'snapshot = kept cannot be written by --backend reference' \
  "$ringmark" prefill --planted 1k --snapshot kept --backend reference
expect 2 'nowhere/kept' "$ringmark" prefill --planted 1k --snapshot nowhere/kept
expect 2 'file.json: no snapshot can be written there' "$ringmark" prefill --planted 1k --snapshot file.json
(ulimit -f 100 && expect 3 'shard-00000.safetensors: cannot reserve [0-9]+ bytes' "$ringmark" prefill --planted 8k --quiet \
  --snapshot kept; exit $failures) || failures=$?
[ "$before" = "$(find kept -type f -exec sha256sum {} + | sort)" ] || fail "a failed run changed the snapshots"
if [ "$(id -u)" = 0 ] && mkdir full && mount -t tmpfs -o size=1m ringmark-test full 2> /dev/null; then
  trap 'umount "$folder/full"; rm -rf "$folder"' EXIT
  shows 'generation 1' "$ringmark" prefill --planted 1k --quiet --snapshot full/kept
  expect 3 'full/kept: the snapshot needs [0-9]+ bytes of disk space, [0-9]+ are free' \
    "$ringmark" prefill --planted 8k --quiet --snapshot full/kept
  shows '^verified ' "$ringmark" inspect full/kept --verify
  [ "$(ls full/kept)" = generation-000001 ] || fail "debris after a full disk: $(ls full/kept)"
fi

[ $failures -eq 0 ] && echo "inspect: all good"
exit $((failures > 0))
