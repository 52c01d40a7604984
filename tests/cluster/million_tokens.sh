#!/usr/bin/env bash
# usage: million_tokens.sh RINGMARK   a million planted tokens on 4 ranks: within 6 GiB in all, all needles recovered.
set -euo pipefail
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
timeout 1700 mpirun --oversubscribe -n 4 "$1" prefill --planted 1m --json "$folder/report.json" < /dev/null
python3 - "$folder/report.json" << 'P'
import json, sys
report = json.load(open(sys.argv[1]))
total = report["ranks"] * report["peak_memory_bytes"]
print(f"at most {total / 2**30:.2f} GiB in all (bar 6), "
      f"{report['needles_recovered']} of {report['needles_planted']} needles recovered")
assert total <= 6 * 2**30 and report["needles_planted"] == 64 == report["needles_recovered"]
P
