#!/usr/bin/env bash
# usage: demo.sh RINGMARK   what Ringmark does, in two runs on this machine.
set -euo pipefail
ringmark=$1
data=$(cd "$(dirname "$0")/../tests/data" && pwd)
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
run() { mpirun --oversubscribe -n 4 "$ringmark" prefill "$@" < /dev/null; }

echo "== 131072 planted tokens on 4 ranks: every rank makes its own shard, 64 needles are hidden in it"
run --planted 128k --json "$folder/planted.json"
echo
echo "== a layer of a small language model over real text, 8192 tokens, on 4 ranks and on 1"
run --input "$data/layer.safetensors" --output "$folder/four.safetensors" --json "$folder/four.json"
"$ringmark" prefill --input "$data/layer.safetensors" --output "$folder/one.safetensors" --json "$folder/one.json" \
  < /dev/null > /dev/null
echo
python3 - "$folder" << 'P'
import filecmp, json, sys
folder = sys.argv[1]
planted, four, one = (json.load(open(f"{folder}/{name}.json")) for name in ("planted", "four", "one"))
same = filecmp.cmp(f"{folder}/four.safetensors", f"{folder}/one.safetensors", shallow=False)
print("== what was just shown")
print(f"{planted['needles_recovered']} of {planted['needles_planted']} needles found among {planted['tokens']} tokens; "
      f"{planted['bytes_fetched'] / 2**20:.1f} MiB of blocks moved between ranks,\n"
      f"where a ring moves {planted['bytes_ring'] / 2**20:.1f} MiB ({100 * planted['bytes_ratio']:.0f}%). "
      f"Attention of all {planted['tokens']} queries took {planted['seconds']['total']:.1f} s.")
print(f"The real layer chose the same chunks on 1 and on 4 ranks (digest {four['selection_digest']}), and the two output\n"
      f"files are {'the same, bit for bit' if same else 'DIFFERENT'}.")
ok = same and four["selection_digest"] == one["selection_digest"]
sys.exit(0 if ok and planted["needles_recovered"] == planted["needles_planted"] else 1)
P
