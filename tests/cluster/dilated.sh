#!/usr/bin/env bash
# usage: dilated.sh RINGMARK   `prefill --policy dilated` as a user meets it: pairs that are none and options that the
# policy does not honour are refused by name, the same bits come out on any ranks, and short segments move few blocks.
set -uo pipefail
ringmark=$1
. "$(dirname "$0")/expect.sh"
dilated=("$ringmark" prefill --planted 4k --policy dilated --quiet)
on() { timeout -k 5 120 mpirun --oversubscribe -n "$1" "${dilated[@]}" "${@:2}" < /dev/null > out.txt 2> err.txt || fail "$*: exit $?: $(head -3 err.txt)"; }

expect 2 'policy dilated needs --dilation' "${dilated[@]}"
expect 2 "dilation = 64 is not a list of pairs W:R: entry 0 is '64'" "${dilated[@]}" --dilation 64
expect 2 "entry 1 is '64:x'" "${dilated[@]}" --dilation 64:1,64:x
expect 2 'dilation = 4:8: the rate is outside' "${dilated[@]}" --dilation 4:8
expect 2 'dilation = 0:0: the rate is outside' "${dilated[@]}" --dilation 0:0
expect 2 'dilation = 64:1 has no meaning with --policy hils' "$ringmark" prefill --planted 4k --dilation 64:1
expect 2 'window = 64 has no meaning with --policy dilated' "${dilated[@]}" --dilation 64:1 --window 64
expect 2 'merge = ring has no meaning with --policy dilated' "${dilated[@]}" --dilation 64:1 --merge ring
expect 2 'backend = cuda does not go with --policy dilated' "${dilated[@]}" --dilation 64:1 --backend cuda
expect 3 'needs .* GiB, its limit is 0.01 GiB' "${dilated[@]}" --dilation 64:1 --memory-gib 0.01

pairs=(--dilation 256:1,1k:4,1m:16)
on 1 "${pairs[@]}" --output one.safetensors
for ranks in 2 3 5; do
  on $ranks "${pairs[@]}" --output any.safetensors --json any.json
  cmp -s one.safetensors any.safetensors || fail "$ranks ranks give other bits"
done
on 3 "${pairs[@]}" --transport request --balance rotate --threads 2 --output any.safetensors
cmp -s one.safetensors any.safetensors || fail "another transport and layout give other bits"
on 4 --dilation 256:1 --balance contiguous --json short.json
python3 - << 'P' || fail "the report is wrong"
import json
report = json.load(open("any.json"))
assert report["policy"] == "dilated" and report["dilation"] == "256:1,1024:4,1048576:16" and report["ranks"] == 5
assert report["bytes_fetched"] > 0
# Borders of ranks are borders of segments.
assert json.load(open("short.json"))["bytes_fetched"] == 0
P

[ $failures -eq 0 ] && echo "dilated: all good"
exit $((failures > 0))
