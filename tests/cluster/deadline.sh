#!/usr/bin/env bash
# usage: deadline.sh RINGMARK   a rank that stops (SIGSTOP, invisible to MPI) ends the job at the deadline: exit code 4
# and one line with rank, stage and peer on stderr, the same in the log folder, no output file. A rank that only has more
# to do than the others does not.
set -uo pipefail
ringmark=$1
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
mkdir "$folder/log"
# Rank 1 is stopped when it holds its shard: before that it might still be joining the job, where no deadline is ours.
cat > "$folder/rank.sh" << 'S'
#!/usr/bin/env bash
"$@" &
rank=$!
if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then
  until [ "$(awk '/^VmRSS/ { print $2 }' /proc/$rank/status)" -gt 80000 ]; do sleep 0.02; done
  kill -STOP $rank
fi
wait $rank
S
chmod +x "$folder/rank.sh"
start=$SECONDS
timeout -k 5 90 mpirun --oversubscribe -n 3 "$folder/rank.sh" "$ringmark" prefill --planted 512k --timeout 3 --quiet \
  --output "$folder/out.safetensors" --log-dir "$folder/log" < /dev/null > "$folder/out" 2> "$folder/err"
code=$?
seconds=$((SECONDS - start))
grep '^ringmark:' "$folder/err"
echo "exit code $code after $seconds s"
[ $code -eq 4 ] || { echo "FAIL: exit code $code instead of 4"; head -20 "$folder/err"; exit 1; }
grep -qE '^ringmark: rank [02]: .*stage .*rank 1' "$folder/err" || { echo "FAIL: no line names the peer"; exit 1; }
ls "$folder"/log/error.*.json > /dev/null || { echo "FAIL: no first cause in the log folder"; exit 1; }
[ ! -e "$folder/out.safetensors" ] || { echo "FAIL: an output of a failed run"; exit 1; }

# Contiguous shards: the last rank scores seven times the chunks of the first, for longer than the timeout.
timeout -k 5 90 mpirun --oversubscribe -n 4 "$ringmark" prefill --planted 256k --balance contiguous --timeout 1 --quiet \
  < /dev/null > "$folder/out" 2> "$folder/err" || { echo "FAIL: a healthy job was ended"; head "$folder/err"; exit 1; }
echo "uneven work: $(grep seconds "$folder/out")"
