#!/usr/bin/env bash
# usage: run.sh BUILD   all CPU benchmarks, tables last.
set -euo pipefail
build=$1
echo "load of the host over 1, 5 and 15 minutes: $(cut -d ' ' -f 1-3 /proc/loadavg)"
"$build/bench/score_bench"
echo
"$build/bench/attend_bench"
echo
"$build/bench/prefill_bench" 1
echo
echo "blocks encoded and decoded by one thread, by the layer's element type and the format that is kept"
"$build/bench/codec_bench"
echo
echo "one block from another rank: p50 and p99 of the time, and the rate of 16 blocks at once"
"$build/bench/transport_bench"
mpirun --oversubscribe -n 2 "$build/bench/transport_bench" < /dev/null
echo
mpirun --oversubscribe -n 4 "$build/bench/decode_bench" < /dev/null
echo
mpirun --oversubscribe -n 4 "$build/bench/dense_bench" < /dev/null
echo
echo "bytes fetched on 4 ranks, 131072 planted tokens, by the number of directions that queries return to"
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
for topics in 4 8 16 64 0; do
  mpirun --oversubscribe -n 4 "$build/ringmark" prefill --planted 128k --topics $topics --quiet \
    --json "$folder/$topics.json" < /dev/null > /dev/null
done
python3 - "$folder" << 'P'
import json, sys
print(f"{'topics':>8} {'fetched MiB':>12} {'ring MiB':>9} {'ratio':>7} {'r16':>6} {'r64':>6} {'needles':>8}")
for topics in ("4", "8", "16", "64", "0"):
    r = json.load(open(f"{sys.argv[1]}/{topics}.json"))
    print(f"{'fresh' if topics == '0' else topics:>8} {r['bytes_fetched'] / 2**20:12.1f} {r['bytes_ring'] / 2**20:9.1f} "
          f"{100 * r['bytes_ratio']:6.1f}% {r['union_ratio']['16']:6.2f} {r['union_ratio']['64']:6.2f} "
          f"{r['needles_recovered']:>5}/{r['needles_planted']}")
P
