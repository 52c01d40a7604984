#!/usr/bin/env bash
# usage: dense.sh RINGMARK TEST_DATA   `prefill --policy dense` as a user meets it: every merge on any ranks gives the
# float64 result of the real layer, what the policy does not honour is refused by name, the report says what moved, and
# a rank that stops ends the job at the deadline while one that has more to do does not.
set -uo pipefail
ringmark=$1 data=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$(dirname "$0")/expect.sh"
on() { timeout -k 5 120 mpirun --oversubscribe -n "$1" "$ringmark" prefill --policy dense "${@:2}" --quiet < /dev/null; }

expect 2 'topk = 4 has no meaning with --policy dense' "$ringmark" prefill --planted 1k --policy dense --topk 4
expect 2 'ulysses-ranks = 2 has no meaning with --policy hils' "$ringmark" prefill --planted 1k --ulysses-ranks 2
expect 2 'merge = scores' "$ringmark" prefill --planted 1k --policy dense --merge scores
expect 2 'backend = cuda' "$ringmark" prefill --planted 1k --policy dense --backend cuda
expect 2 'ulysses-ranks = 3 does not divide the 1 rank' \
  "$ringmark" prefill --planted 1k --policy dense --merge ring-ulysses --ulysses-ranks 3
expect 3 'needs .* GiB, its limit is 0.25 GiB' "$ringmark" prefill --planted 1m --policy dense --memory-gib 0.25

python3 "$here/cut_layer.py" "$data/layer.safetensors" layer.safetensors 0 1500 no-position
"$ringmark" prefill --policy dense --input layer.safetensors --backend reference --output reference.safetensors \
  > out.txt 2> err.txt || fail "the reference exits $?: $(cat err.txt)"
# The largest difference of o and lse from the reference.
close() {
  python3 - "$1" << 'P'
import array, json, struct, sys
def tensor(path, name):
    raw = open(path, "rb").read()
    length = struct.unpack("<Q", raw[:8])[0]
    begin, end = (8 + length + at for at in json.loads(raw[8:8 + length])[name]["data_offsets"])
    return array.array("f", raw[begin:end])
for name in ("o", "lse"):
    got, want = tensor(sys.argv[1], name), tensor("reference.safetensors", name)
    assert len(got) == len(want) > 0
    worst = max(abs(a - b) for a, b in zip(got, want))
    assert worst <= 1e-5, (name, worst)
P
}
for how in "1 ring" "2 ring" "3 pass-q" "4 all-gather" "3 ulysses" "4 ring-ulysses" "4 auto"; do
  # shellcheck disable=SC2086
  set -- $how
  on "$1" --merge "$2" --input layer.safetensors --output out.safetensors --json report.json > out.txt 2> err.txt ||
    fail "$how exits $?: $(cat err.txt)"
  close out.safetensors || fail "$how differs from the reference"
  grep -q '^bytes moved ' out.txt || fail "$how: no bytes in $(cat out.txt)"
done
python3 - << 'P' || fail "the report lacks fields"
import json
report = json.load(open("report.json"))
assert report["policy"] == "dense" and report["ranks"] == 4
assert report["merge"] in ("ring", "pass-q", "all-gather", "ulysses", "ring-ulysses")
assert "expected to be quickest" in report["merge_reason"]
assert 0 < report["bytes_fetched"] + report["bytes_queries"] + report["bytes_partials"]
P
on 4 --merge ring-ulysses --planted 8k --kv-heads 2 --json report.json > out.txt 2> err.txt || fail "a planted run: $(cat err.txt)"
grep -q '^needles .*64 of 64 recovered' out.txt || fail "needles lost: $(cat out.txt)"

# Rank 1 stands still when it holds its shard. Its parent lives on, so that mpirun does not end the job.
cat > rank.sh << 'S'
#!/usr/bin/env bash
"$@" &
rank=$!
if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then
  until [ "$(awk '/^VmRSS/ { print $2 }' /proc/$rank/status)" -gt 60000 ]; do sleep 0.02; done
  kill -STOP $rank
fi
wait $rank
S
chmod +x rank.sh
for merge in ring pass-q ulysses; do
  timeout -k 5 60 mpirun --oversubscribe -n 3 ./rank.sh "$ringmark" prefill --policy dense --merge $merge --planted 128k \
    --quiet --deadline 2 --output lost.safetensors < /dev/null > out.txt 2> err.txt
  code=$?
  [ $code -eq 4 ] || fail "$merge without rank 1 exits $code: $(head -5 err.txt)"
  grep -qE "^ringmark: rank [02]: stage '.*: waited .* for ranks? " err.txt || fail "$merge: no line names the peer: $(cat err.txt)"
  [ ! -e lost.safetensors ] || fail "$merge: an output of a failed run"
done

# Contiguous shards: the last rank has seven times the work of the first, for longer than the timeout.
on 4 --merge ring --planted 24k --balance contiguous --deadline 0.5 > out.txt 2> err.txt ||
  fail "a healthy job was ended: $(head -5 err.txt)"

[ $failures -eq 0 ] && echo "dense: all good"
exit $((failures > 0))
