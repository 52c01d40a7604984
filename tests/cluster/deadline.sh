#!/usr/bin/env bash
# usage: deadline.sh RINGMARK TRANSPORT...   a rank that stops (SIGSTOP, invisible to MPI) or dies without anybody noticing
# ends the job at the deadline, whatever moves the blocks: exit code 4 and one line with rank, stage and peer on stderr,
# the same in the log folder, no output file, nothing left in shared memory. So does a rank that never joins the job. A
# rank that only has more to do than the others does not.
set -uo pipefail
ringmark=$1
shift
folder=$(mktemp -d) && trap 'rm -rf "$folder" "$segments"' EXIT
timeout_s=3
# The segments of these jobs, apart from those of others on this host.
segments=$(mktemp -d -p /dev/shm ringmark-test.XXXXXX)
export OMPI_MCA_btl_vader_backing_directory=$segments OMPI_MCA_osc_rdma_backing_directory=$segments
export OMPI_MCA_osc_sm_backing_directory=$segments
# Rank 1 gets the signal when it holds its shard: before that the others might still be joining the job. Its parent lives on, so that mpirun does not end the job for a death that the others have to find out.
cat > "$folder/rank.sh" << 'S'
#!/usr/bin/env bash
signal=$1
shift
"$@" &
rank=$!
if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then
  until [ "$(awk '/^VmRSS/ { print $2 }' /proc/$rank/status)" -gt 80000 ]; do sleep 0.02; done
  kill -"$signal" $rank
  [ "$signal" = STOP ] || sleep 30
fi
wait $rank
S
chmod +x "$folder/rank.sh"
# UCX's segments have no folder: those that nobody is attached to any more.
left() { ls "$segments"; ipcs -m | awk '/^0x/ && $6 == 0 { print "sysv", $2 }'; }

lose_a_rank() {
  local signal=$1 transport=$2 start=$SECONDS code seconds
  rm -rf "$folder/log" && mkdir "$folder/log"
  timeout -k 5 90 mpirun --oversubscribe -n 3 "$folder/rank.sh" "$signal" "$ringmark" prefill --planted 512k --quiet \
    --deadline $timeout_s --transport "$transport" --output "$folder/out.safetensors" --log-dir "$folder/log" \
    < /dev/null > "$folder/out" 2> "$folder/err"
  code=$?
  seconds=$((SECONDS - start))
  grep '^ringmark:' "$folder/err"
  echo "SIG$signal, $transport: exit code $code after $seconds s"
  [ $code -eq 4 ] || { echo "FAIL: exit code $code instead of 4"; head -20 "$folder/err"; exit 1; }
  grep -qE '^ringmark: rank [02]: .*stage .*rank 1' "$folder/err" || { echo "FAIL: no line names the peer"; exit 1; }
  ls "$folder"/log/error.*.json > /dev/null || { echo "FAIL: no first cause in the log folder"; exit 1; }
  [ ! -e "$folder/out.safetensors" ] || { echo "FAIL: an output of a failed run"; exit 1; }
}

before=$(left)
for transport in "$@"; do
  for signal in STOP KILL; do lose_a_rank $signal "$transport"; done
done
[ "$(left)" = "$before" ] || { echo "FAIL: left in shared memory: $(left)"; exit 1; }

# Rank 2 is a program that never calls MPI, which nobody inside MPI can name.
rm -f "$folder"/log/*
start=$SECONDS
timeout -k 5 90 mpirun --oversubscribe -n 2 "$ringmark" prefill --planted 4k --quiet --deadline $timeout_s \
  --log-dir "$folder/log" : -n 1 sleep 80 < /dev/null > "$folder/out" 2> "$folder/err"
code=$?
took=$((SECONDS - start))
echo "a rank that never joins: exit code $code after $took s"
[ $code -eq 4 ] && [ $took -le $((timeout_s + 3)) ] || { echo "FAIL: exit code $code"; head -20 "$folder/err"; exit 1; }
grep -qE "^ringmark: rank [01]: stage 'join the job': waited [0-9.]+ s for other ranks" "$folder/err" ||
  { echo "FAIL: no line says what was waited for"; head -20 "$folder/err"; exit 1; }
ls "$folder"/log/error.*.json > /dev/null || { echo "FAIL: no first cause in the log folder"; exit 1; }

# Contiguous shards: the last rank scores seven times the chunks of the first, for longer than the timeout.
timeout -k 5 90 mpirun --oversubscribe -n 4 "$ringmark" prefill --planted 256k --balance contiguous --deadline 2 --quiet \
  < /dev/null > "$folder/out" 2> "$folder/err" || { echo "FAIL: a healthy job was ended"; head "$folder/err"; exit 1; }
echo "uneven work: $(grep seconds "$folder/out")"
