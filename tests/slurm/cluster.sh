#!/usr/bin/env bash
# usage: cluster.sh SLURM_CLUSTER   The cluster of cluster/testing itself: refuses what it cannot do in one line, keeps the
# exit code, breaks what it is told to break and mends it, and leaves nothing behind. Needs root.
set -uo pipefail
cluster=$(realpath "$1")
. "$(dirname "$0")/../cluster/expect.sh"
export TMPDIR=$PWD # of whatever a cluster makes

expect 3 '^slurm_cluster.sh: no command given, and no terminal' "$cluster"
expect 3 "^slurm_cluster.sh: NODES is 'two', must be a number" env NODES=two "$cluster" true
expect 3 '^slurm_cluster.sh: NODES is 0, must be 1 to 200' env NODES=0 "$cluster" true
expect 3 "^slurm_cluster.sh: network namespace a/b-ctl cannot be made: " env P=a/b "$cluster" true
expect 3 '^slurm_cluster.sh: needs root' setpriv --reuid 65534 "$cluster" true
mkdir no_slurm
ln -s "$(command -v bash)" "$(command -v id)" "$(command -v dirname)" "$(command -v sort)" no_slurm
expect 3 '^slurm_cluster.sh: missing packages: .*iproute2 munge slurm-wlm util-linux$' env PATH="$PWD/no_slurm" bash "$cluster" true

# In a cluster, that of `P` and `D`: every way to break it.
cat > inside.sh << 'S'
fail() { echo "FAIL: $*"; exit 1; }
[ "$($IN ctl srun -N2 hostname | sort | xargs)" = "n1 n2" ] || fail "hosts by name"
[ "$($IN n1 cat /proc/sys/kernel/random/boot_id)" != "$($IN n2 cat /proc/sys/kernel/random/boot_id)" ] || fail "one boot id"
$IN n1 touch /dev/shm/mine
$IN n1 test -e /dev/shm/mine || fail "a host that forgets its /dev/shm"
$IN n2 test ! -e /dev/shm/mine || fail "one /dev/shm"
# A listener on n2 that says a line to whoever connects.
$IN n2 setsid python3 -c '
import socket
server = socket.create_server(("", 5000), backlog=100)
while True:
    peer, _ = server.accept()
    peer.sendall(b"here\n")
    peer.close()' &
reach() { [ "$(timeout 1 $IN n1 bash -c 'exec 3<> /dev/tcp/n2/5000 && cat <&3' 2> /dev/null)" = here ]; }
until reach; do sleep 0.1; done
$D/link n2 down && ! reach || fail "a pulled cable that carries"
$D/link n2 up && reach || fail "a cable that stays pulled"
tc -n "$P-n2" qdisc show dev eth0 | grep -q 'tbf.*rate 500Mbit' || fail "RATE is not that of the host"
tc -n "$P-ctl" qdisc show dev v2 | grep -q 'tbf.*rate 500Mbit' || fail "RATE is not that of the switch"
$D/link n2 20mbit && tc -n "$P-n2" qdisc show dev eth0 | grep -q 'tbf.*rate 20Mbit' && reach || fail "no other rate"
$D/link n2 fast 2> /dev/null && fail "a rate that is none"
# A slurmd that dies leaves its job alone, and hears of its end when it is back.
job=$($IN ctl sbatch --parsable -N1 -w n2 -o "$D/out" --wrap 'sleep 1; echo survived')
until [ "$($IN ctl squeue -h -j "$job" -o %T)" = RUNNING ]; do sleep 0.1; done
for how in kill stop; do
  $D/slurmd n2 $how && ! $IN n2 pgrep -x slurmd > /dev/null || fail "a slurmd that outlives $how"
  $D/slurmd n2 start || fail "no other slurmd"
done
until grep -q "JobId=$job .*JobState=COMPLETED" "$D/log/jobcomp.log"; do sleep 0.2; done
[ "$(cat "$D/out")" = survived ] || fail "a job that dies with slurmd"
# A host that dies takes all with it.
$D/power n2 off && ! reach && ! $IN n2 true 2> /dev/null || fail "a host that is off and on"
$D/power n2 on || fail "a host that stays off"
until [ "$($IN ctl srun -N2 hostname 2> /dev/null | sort | xargs)" = "n1 n2" ]; do sleep 0.5; done
$IN n1 test -e /dev/shm/mine || fail "the other host lost its memory"
exit 7
S
folders=$(ls -d /tmp/ringmark_cluster.* 2> /dev/null)
P=rmka$$- D=$PWD/a RATE=500mbit timeout -k 5 60 "$cluster" bash inside.sh < /dev/null
code=$?
[ $code -eq 7 ] || fail "exit code $code instead of 7"

# Two at once, one of which is told to end.
P=rmkb$$- D=$PWD/b "$cluster" sleep 60 < /dev/null &
ended=$!
P=rmkc$$- D=$PWD/c NODES=1 GPUS=0 timeout -k 5 60 "$cluster" bash -c '[ "$($IN ctl srun hostname)" = n1 ]' < /dev/null ||
  fail "no second cluster"
until [ -e b/in ] && b/in ctl true 2> /dev/null; do sleep 0.1; done
kill $ended
wait $ended
code=$?
[ $code -eq 143 ] || fail "exit code $code of a cluster that was told to end"

for prefix in rmka$$ rmkb$$ rmkc$$; do
  [ -z "$(ip netns list | grep "^$prefix-")" ] || fail "namespaces of $prefix are left"
done
[ -z "$(pgrep -f "$PWD/[abc]/")" ] || fail "processes are left: $(pgrep -af "$PWD/[abc]/")"
[ "$(ls -d /tmp/ringmark_cluster.* 2> /dev/null)" = "$folders" ] || echo "(another cluster came or went)"
[ $failures -eq 0 ] && echo "cluster: all good"
exit $((failures > 0))
