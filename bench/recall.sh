#!/usr/bin/env bash
# usage: recall.sh RINGMARK LAYER [POLICY...]   how much of the exact softmax mass policies keep of a layer, side by side:
# over all queries and heads the mean, the 5th percentile and the mean of the last tenth of the sequence, by K. Every
# policy attends to the current chunk and to K chunks a kv head, so that only their scores differ.
set -euo pipefail
ringmark=$1 layer=$2
shift 2
[ $# -gt 0 ] || set -- hils mean quest oracle
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
for policy in "$@"; do
  window="--window 0"
  [ "$policy" = quest ] && window=  # it has no other
  for topk in 4 8 16 32; do
    "$ringmark" prefill --input "$layer" --policy "$policy" --choice group $window --topk $topk --recall 1 --quiet \
      --json "$folder/$policy.$topk.json" < /dev/null > /dev/null
  done
done
python3 - "$folder" "$@" << 'P'
import json, sys
folder, policies = sys.argv[1], sys.argv[2:]
print("| K | " + " | ".join(policies) + " |\n|" + "---|" * (len(policies) + 1))
for topk in (4, 8, 16, 32):
    row = []
    for policy in policies:
        recall = json.load(open(f"{folder}/{policy}.{topk}.json"))["recall"]
        row.append(f"{recall['mean']:.3f} / {recall['p5']:.3f} / {recall['depths'][9]['mean']:.3f}")
    print(f"| {topk} | " + " | ".join(row) + " |")
P
