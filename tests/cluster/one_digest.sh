#!/usr/bin/env bash
# usage: one_digest.sh RINGMARK TEST_DATA all|share [TRANSPORT...]   the real layer at 1, 2, 3, 4, 7 ranks x layouts x
# merges and transports (share: one merge and transport for each, in turn), and with blocks that spill to a file over
# each TRANSPORT: one identical selection digest, and one identical output file whatever the ranks.
set -euo pipefail
ringmark=$1 data=$2 share=$3 spilling=("${@:4}")
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
runs=0
ways=("scores rma" "landmarks request" "landmarks rma" "scores request")
[ "$share" = all ] && each=4 || each=1
next=0
for ranks in 1 2 3 4 7; do
  for balance in contiguous zigzag rotate; do
    for way in $(seq 0 $((each - 1))); do
      read -r merge transport <<< "${ways[$(((next + way) % 4))]}"
      timeout 120 mpirun --oversubscribe -n $ranks "$ringmark" prefill --input "$data/layer.safetensors" \
        --balance $balance --merge $merge --transport $transport --output "$folder/out.safetensors" --topk-chunks \
        --digest --quiet < /dev/null > "$folder/table"
      echo "$(sed -n 's/^selection_digest //p' "$folder/table") $(sha256sum < "$folder/out.safetensors")" >> "$folder/digests"
      runs=$((runs + 1))
    done
    next=$((next + 1))
  done
done
# Nothing in memory, and half of what 3 ranks have.
for transport in "${spilling[@]}"; do
  for budget in 0 1; do
    mpirun --oversubscribe -n 3 "$ringmark" prefill --input "$data/layer.safetensors" --transport $transport \
      --kv-budget-mib $budget --spill-dir "$folder" --output "$folder/out.safetensors" --topk-chunks --digest --quiet \
      < /dev/null > "$folder/table"
    echo "$(sed -n 's/^selection_digest //p' "$folder/table") $(sha256sum < "$folder/out.safetensors")" >> "$folder/digests"
  done
done
# Two threads a rank.
mpirun --oversubscribe -n 2 "$ringmark" prefill --input "$data/layer.safetensors" --threads 2 --digest --quiet \
  --output "$folder/out.safetensors" --topk-chunks < /dev/null > "$folder/table"
echo "$(sed -n 's/^selection_digest //p' "$folder/table") $(sha256sum < "$folder/out.safetensors")" >> "$folder/digests"
"$ringmark" prefill --input "$data/layer.safetensors" --backend reference --digest --quiet < /dev/null |
  sed -n 's/^selection_digest //p' > "$folder/reference"
echo "$runs runs, digests and output hashes:"
sort "$folder/digests" | uniq -c
echo "fp64 reference: $(cat "$folder/reference")"
[ "$(sort -u "$folder/digests" | wc -l)" -eq 1 ] && [ $runs -eq $((15 * each)) ]
