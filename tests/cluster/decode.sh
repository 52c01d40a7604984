#!/usr/bin/env bash
# usage: decode.sh RINGMARK TEST_DATA   `ringmark decode` as a user meets it: a prefill of the first 8000 tokens of the
# real layer and a decode of the rest are one prefill of the whole, whatever the ranks; a job that is told to stop goes
# on with the same command; what is wrong is said in one line with exit code 2.
set -uo pipefail
ringmark=$1 data=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$(dirname "$0")/expect.sh"
on() { timeout 300 mpirun --oversubscribe -n "$1" "$ringmark" "${@:2}" --quiet < /dev/null; }
decode() { on "$1" decode --snapshot kept --input steps.safetensors --digest "${@:2}" > out.txt 2> err.txt; }
digest() { sed -n 's/^selection_digest //p' "$1"; }
# close_to FILE GOLDEN FIRST BOUND [SHARE]: o of the file against the rows of GOLDEN from FIRST on, all values or a share.
close_to() {
  python3 - "$@" << 'P'
import array, json, struct, sys
def tensor(path, name):
    raw = open(path, "rb").read()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + length])
    begin, end = (8 + length + at for at in header[name]["data_offsets"])
    return header[name]["shape"], array.array("f", raw[begin:end])
shape, got = tensor(sys.argv[1], "o")
_, want = tensor(sys.argv[2], "o")
width = shape[1] * shape[2]
want = want[int(sys.argv[3]) * width:(int(sys.argv[3]) + shape[0]) * width]
assert len(got) == len(want) > 0
good = sum(abs(a - b) <= float(sys.argv[4]) for a, b in zip(got, want))
assert good >= float((sys.argv[5:] or ["1"])[0]) * len(got), good / len(got)
P
}

python3 "$here/cut_layer.py" "$data/layer.safetensors" prompt.safetensors 0 8000
python3 "$here/cut_layer.py" "$data/layer.safetensors" steps.safetensors 8000 8192
on 4 prefill --input prompt.safetensors --snapshot kept --digest > prefill.txt || fail "the prefill"

# The rest, a token at a time and in one piece, on any ranks and by either way of a block.
run=0
for how in "1" "3" "3 --exchange pull" "3 --exchange push --rows 50" "2 --rows 192 --transport request" \
  "3 --kv-budget-mib 1 --spill-dir ."; do
  run=$((run + 1))
  decode $how --output "out$run.safetensors" --json report.json || fail "decode on $how: $(head -c 300 err.txt)"
  both=$(printf '%016x' $((0x$(digest prefill.txt) + 0x$(digest out.txt))))
  [ "$both" = 1a88575264c5d822 ] || fail "digests of prefill and decode on $how add up to $both"
  close_to "out$run.safetensors" "$data/layer_golden.safetensors" 8000 2e-3 || fail "the output on $how"
done
python3 - << 'P' || fail "the report lacks fields"
import json
report = json.load(open("report.json"))
assert report["tokens_decoded"] == report["steps"] == 192 and report["tokens_kept"] == 8192
assert report["blocks_verified"] > 0 and report["cache_hit_rate"] > 0.5 and report["transport"] == "request"
assert report["tokens_per_second"] > 0 and report["generation_opened"] == 1 and "generation_saved" not in report
P
# Without a GPU there is none to keep blocks on; on one they are kept as they came in.
CUDA_VISIBLE_DEVICES= expect 3 'no CUDA|GPU|CUDA' "$ringmark" decode --snapshot kept --input steps.safetensors --backend cuda
expect 2 '--exchange = push does not go with --backend cuda' \
  "$ringmark" decode --snapshot kept --input steps.safetensors --backend cuda --exchange push
# Quantised: near it, but for the rows that choose otherwise since the window weighs otherwise.
decode 2 --kv-dtype int8 --output int8.safetensors || fail "decode of int8: $(head -c 300 err.txt)"
close_to int8.safetensors "$data/layer_golden.safetensors" 8000 2e-2 0.99 || fail "the output of int8"

# What is kept already is not decoded again.
cp -r kept once
on 2 decode --snapshot once --input steps.safetensors --save > out.txt || fail "decode with --save"
grep -q 'saved generation 2' out.txt || fail "no generation was saved"
on 3 decode --snapshot once --input steps.safetensors --save > out.txt || fail "decode of what is kept"
grep -q '^tokens decoded *0 in 0 steps' out.txt && ! grep -q 'saved generation' out.txt || fail "decoded again: $(cat out.txt)"
[ "$("$ringmark" inspect once --verify | sed -n 's/^verified //p')" = "256 blocks, 128 records" ] ||
  fail "what was saved: $("$ringmark" inspect once --verify 2>&1)"

# Two sequences that grow at once, in any order of their rows, equal one prefill of both.
python3 - "$data/layer.safetensors" << 'P'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
length = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8:8 + length])
def write(name, tokens, integers):
    new, data = {}, b""
    def add(key, dtype, shape, part):
        nonlocal data
        new[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    for key in ("q", "k", "v", "landmark_q"):
        begin, end = (8 + length + at for at in header[key]["data_offsets"])
        row = (end - begin) // header[key]["shape"][0]
        rows = b"".join(raw[begin + token * row:begin + (token + 1) * row] for token in tokens)
        add(key, header[key]["dtype"], [len(tokens)] + header[key]["shape"][1:], rows)
    for key, values in integers.items():
        add(key, "I64", [len(values)], struct.pack(f"<{len(values)}q", *values))
    text = json.dumps(dict(new, __metadata__=header["__metadata__"])).encode()
    text += b" " * (-len(text) % 8)
    open(name, "wb").write(struct.pack("<Q", len(text)) + text + data)
kept = [*range(900), *range(1000, 1950)]
rest = sorted([*range(900, 1000), *range(1950, 2000)], key=lambda token: token % 1000)  # in turns towards the end
write("both.safetensors", [*range(2000)], {"cu_seqlens": [0, 1000, 2000]})
write("kept_of_both.safetensors", kept, {"cu_seqlens": [0, 900, 1850]})
write("steps_of_both.safetensors", rest,
      {"sequence": [token // 1000 for token in rest], "position": [token % 1000 for token in rest]})
json.dump(rest, open("rest.json", "w"))
P
on 2 prefill --input both.safetensors --output both.out > out.txt || fail "the prefill of both"
on 3 prefill --input kept_of_both.safetensors --snapshot kept_of_both > out.txt || fail "the prefill of their beginnings"
on 2 decode --input steps_of_both.safetensors --snapshot kept_of_both --output rest.out --rows 7 > out.txt ||
  fail "the decode of both"
python3 - << 'P' || fail "two sequences"
import array, json, struct
def tensor(path, name):
    raw = open(path, "rb").read()
    length = struct.unpack("<Q", raw[:8])[0]
    begin, end = (8 + length + at for at in json.loads(raw[8:8 + length])[name]["data_offsets"])
    return array.array("f", raw[begin:end])
rest = json.load(open("rest.json"))
for name, width in (("o", 256), ("lse", 4)):
    got, want = tensor("rest.out", name), tensor("both.out", name)
    for row, token in enumerate(rest):
        for at in range(width):
            assert abs(got[row * width + at] - want[token * width + at]) <= 1e-4, (name, row, token)
P

# Told to stop in the middle: exit code 75, and the same command goes on to the same output.
python3 "$here/cut_layer.py" "$data/layer.safetensors" prompt.safetensors 0 1000
python3 "$here/cut_layer.py" "$data/layer.safetensors" steps.safetensors 1000 8192
python3 "$here/cut_layer.py" "$data/layer.safetensors" bare.safetensors 1000 8192 no-position
on 4 prefill --input prompt.safetensors --snapshot start > /dev/null || fail "the short prefill"
# stop SIGNAL SNAPSHOT INPUT: tells a decode to stop when all of its ranks have opened the input.
stop() {
  local job launcher code
  timeout 300 mpirun --oversubscribe -n 3 "$ringmark" decode --snapshot "$2" --input "$3" --output "$2.safetensors" \
    --exchange pull --digest --quiet > out.txt 2> err.txt < /dev/null &
  job=$!
  until launcher=$(pgrep -P $job) &&
    [ "$(for rank in $(pgrep -P "$launcher"); do ls -l "/proc/$rank/fd"; done 2> /dev/null | grep -c "$3")" -ge 3 ]; do
    kill -0 $job 2> /dev/null || break
    sleep 0.05
  done
  sleep 1
  kill -"$1" "$launcher"
  wait $job
  code=$?
  [ $code -eq 75 ] || fail "exit code $code instead of 75 after $1: $(head -c 300 err.txt)"
  [ -e "$2.safetensors.partial" ] && [ ! -e "$2.safetensors" ] || fail "the output after $1: $(ls)"
}
for name in undisturbed stopped skipped; do cp -r start $name; done
on 3 decode --snapshot undisturbed --input steps.safetensors --output undisturbed.safetensors --exchange pull --digest \
  > undisturbed.txt || fail "the undisturbed decode"
stop USR1 stopped steps.safetensors
grep -qE '^ringmark: checkpointed: [1-9][0-9]* of 7192 rows are kept in generation 2 of stopped; run the same command again' \
  err.txt || fail "no checkpoint line: $(head -c 300 err.txt)"
first=$(digest out.txt)
on 3 decode --snapshot stopped --input steps.safetensors --output stopped.safetensors --exchange pull --digest > out.txt ||
  fail "the same command again"
[ $((0x$first + 0x$(digest out.txt))) -eq $((0x$(digest undisturbed.txt))) ] || fail "other chunks after a stop"
cmp undisturbed.safetensors stopped.safetensors || fail "another output after a stop"
# Without positions the line says how to go on.
stop USR1 skipped bare.safetensors
skip=$(sed -n 's/^ringmark: checkpointed: .*run it again with --skip \([0-9]*\) to go on$/\1/p' err.txt)
on 3 decode --snapshot skipped --input bare.safetensors --output skipped.safetensors --exchange pull --skip "$skip" \
  > out.txt || fail "decode with --skip $skip"
cmp undisturbed.safetensors skipped.safetensors || fail "another output after --skip"
[ -z "$(ls -- *.partial *.tmp 2> /dev/null)" ] || fail "left behind: $(ls)"

# Hostile input.
python3 "$here/cut_layer.py" "$data/layer.safetensors" few.safetensors 1000 1004
python3 - << 'P'
import json, struct
raw = open("few.safetensors", "rb").read()
length = struct.unpack("<Q", raw[:8])[0]
data = bytearray(raw[8 + length:])
def write(name, change):
    header, copy = json.loads(raw[8:8 + length]), bytearray(data)
    change(header, copy)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    open(name, "wb").write(struct.pack("<Q", len(text)) + text + copy)
def poison(header, copy):
    begin, end = header["k"]["data_offsets"]
    at = begin + 3 * (end - begin) // 4
    copy[at:at + 2] = b"\xc0\x7f"  # NaN in bf16
def sequence(header, copy):
    header["sequence"] = {"dtype": "I32", "shape": [4], "data_offsets": [len(copy), len(copy) + 16]}
    copy += struct.pack("<4i", 0, 0, 7, 0)
def gap(header, copy):
    begin, _ = header["position"]["data_offsets"]
    copy[begin + 16:begin + 24] = struct.pack("<q", 1003)
write("nan.safetensors", poison)
write("sequence.safetensors", sequence)
write("gap.safetensors", gap)
write("heads.safetensors", lambda header, copy: [header[name].update(shape=[4, 8, 32]) for name in ("q", "landmark_q")])
write("chunks.safetensors", lambda header, copy: header["__metadata__"].update(chunk_size="32"))
P
d=("$ringmark" decode --quiet --snapshot start --input)
expect 2 '--snapshot DIR is not given' "$ringmark" decode --input few.safetensors
expect 2 '--input FILE is not given' "$ringmark" decode --snapshot start
expect 2 'nowhere' "$ringmark" decode --snapshot nowhere --input few.safetensors
expect 2 'missing.safetensors' "${d[@]}" missing.safetensors
expect 2 'nan.safetensors: tensor k holds NaN or infinity at row 3' "${d[@]}" nan.safetensors
expect 2 'tensor sequence has 7 at row 2; the snapshot.s sequences are 0 to 0' "${d[@]}" sequence.safetensors
expect 2 'tensor position has 1003 at row 2, but the next of sequence 0 is 1002' "${d[@]}" gap.safetensors
expect 2 'tensor [qk] has shape \[4, [0-9]+, [0-9]+\], not' "${d[@]}" heads.safetensors
expect 2 'chunk_size = 32, but the snapshot has 64' "${d[@]}" chunks.safetensors
expect 2 'skip = 5 is above the 4 rows' "${d[@]}" few.safetensors --skip 5
expect 2 'rows = 0' "${d[@]}" few.safetensors --rows 0
expect 2 'together' "${d[@]}" few.safetensors --spill-dir .
expect 2 'rma.* does not read what is over the budget' "${d[@]}" few.safetensors --kv-budget-mib 1 --spill-dir . --transport rma
expect 3 'needs .* GiB, its limit is' "${d[@]}" few.safetensors --memory-gib 0.01
expect 2 'nowhere/out' "${d[@]}" few.safetensors --output nowhere/out.safetensors
expect 2 'unknown environment variable RINGMARK_EXCHANG.*did you mean RINGMARK_EXCHANGE' \
  env RINGMARK_EXCHANG=pull "${d[@]}" few.safetensors
# Variables of other commands are no concern of this one, nor are its own of the others.
RINGMARK_MERGE=scores "${d[@]}" few.safetensors > out.txt || fail "a variable of prefill"
RINGMARK_EXCHANGE=pull "$ringmark" prefill --planted 1k --quiet > out.txt || fail "a variable of decode"
shard=start/generation-000001/shard-00001.safetensors
printf '\377' | dd of=$shard bs=1 seek=$(($(stat -c %s $shard) - 9)) conv=notrunc status=none
expect 2 'shard-00001.safetensors: chunk [0-9]+, kv head [01]: its block has checksum' "${d[@]}" few.safetensors
on 3 decode --snapshot start --input few.safetensors > out.txt 2> err.txt
[ $? -eq 2 ] && [ "$(grep -c '^ringmark:' err.txt)" -eq 1 ] || fail "a damaged block on 3 ranks: $(head -c 300 err.txt)"

[ $failures -eq 0 ] && echo "decode: all good"
exit $((failures > 0))
