# shellcheck shell=bash
# What a cluster of slurm_cluster.sh has in its folder $D: settings of its daemons, and the commands of its user. Sourced.

write_cluster_files() {
  mkdir -p "$D"/{etc,state,spool,log,run,munge,fakedev,tmp}
  chmod 755 "$D" "$D/run"
  chmod 700 "$D/munge"
  (umask 077 && head -c 1024 /dev/urandom > "$D/munge/key")
  printf '127.0.0.1 localhost\n%s.1 ctl\n' "$NET" > "$D/etc/hosts"
  : > "$D/etc/gres.conf"
  : > "$D/etc/mpi.conf"
  echo "IgnoreSystemdOnFailure=yes" > "$D/etc/cgroup.conf"
  write_slurm_conf
  local n g
  for ((n = 1; n <= NODES; ++n)); do
    mkdir -p "$D/spool/n$n" "$D/tmp/n$n"
    chmod 1777 "$D/tmp/n$n"
    echo "$NET.$((10 + n)) n$n" >> "$D/etc/hosts"
    echo "NodeName=n$n NodeAddr=$NET.$((10 + n)) CPUs=$CPUS Sockets=1 CoresPerSocket=$CPUS ThreadsPerCore=1" \
      "RealMemory=2000 Gres=gpu:$GPUS State=UNKNOWN" >> "$D/etc/slurm.conf"
    [ "$GPUS" -gt 0 ] || continue
    # gres.conf wants character devices: clones of /dev/null.
    for ((g = 0; g < GPUS; ++g)); do mknod "$D/fakedev/n$n-gpu$g" c 1 3; done
    echo "NodeName=n$n Name=gpu File=$D/fakedev/n$n-gpu[0-$((GPUS - 1))]" >> "$D/etc/gres.conf"
  done
  echo "PartitionName=main Nodes=n[1-$NODES] Default=YES MaxTime=60:00 State=UP" >> "$D/etc/slurm.conf"
  write_commands
}

# cred_expire: a requeued job starts after seconds instead of two minutes. config_overrides: hosts may have more CPUs than
# the machine. TmpFS: PMIx keeps files of the same name on each host. SlurmdTimeout: a host that is gone is down after it.
write_slurm_conf() {
  cat > "$D/etc/slurm.conf" << C
ClusterName=ringmark
SlurmctldHost=ctl($NET.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$D/run/munge.sock,cred_expire=5
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool/%n
SlurmctldPidFile=$D/run/slurmctld.pid
SlurmdPidFile=$D/run/slurmd-%n.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd-%n.log
SlurmdParameters=config_overrides
SlurmdTimeout=${SLURMD_TIMEOUT:-30}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobCompType=jobcomp/filetxt
JobCompLoc=$D/log/jobcomp.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
MpiDefault=pmix
ReturnToService=2
KillWait=5
GresTypes=gpu
TmpFS=$D/tmp/%n
C
}

# write_command NAME: the command $D/NAME, from standard input, behind a line that says where its cluster is.
write_command() {
  { printf '#!/usr/bin/env bash\nD=%q P=%q SHM=%q\n' "$D" "$P" "$SHM"; cat; } > "$D/$1"
  chmod 755 "$D/$1"
}

write_commands() {
  # The first process of a host, which takes all others with it when it ends. Its number as it is seen from outside is the
  # key to the host. UCX knows hosts by their boot id, and would use shared memory between two with the same.
  write_command init << 'X'
host=$1
read -r pid _ < /proc/self/stat
hostname "$host"
mount -t proc proc /proc
mount -t tmpfs -o size="$SHM" tmpfs /dev/shm
mount --bind "$D/etc/hosts" /etc/hosts
cat /proc/sys/kernel/random/uuid > "$D/run/$host.boot_id"
mount --bind "$D/run/$host.boot_id" /proc/sys/kernel/random/boot_id
echo "$pid" > "$D/run/$host.pid"
trap 'exit 0' TERM
while :; do sleep infinity & wait $!; done
X
  # nsenter, not `ip netns exec`, which mounts another /sys, without the control groups that slurmd insists on. The command
  # ends when whoever waits for it does.
  write_command in << 'X'
host=$1
shift
pid=$(cat "$D/run/$host.pid" 2> /dev/null) || { echo "$host: no such host, or it is off" >&2; exit 3; }
exec nsenter --target "$pid" --net --uts --ipc --mount --pid \
  setpriv --pdeathsig TERM bash -c 'cd "$0" && exec "$@"' "$PWD" "$@"
X
  write_command link << 'X'
host=$1 what=$2
number=${host#n}
case $what in
  up | down) exec ip -n "$P-ctl" link set "v$number" "$what" ;;
esac
# Both ways, each at its sender. The bucket holds 5 ms and at least four of the largest packets that TCP hands down.
shape() { tc -n "$1" qdisc replace dev "$2" root tbf rate "$what" burst "$3" latency 50ms; }
bits=$(sed -E 's/gbit$/000000000/; s/mbit$/000000/; s/kbit$/000/' <<< "$what")
[[ $bits =~ ^[0-9]+$ ]] || { echo "link: the rate is '$what', must be like 1gbit, 200mbit or 64kbit" >&2; exit 2; }
burst=$((bits / 8 / 200))
[ $burst -ge 262144 ] || burst=262144
shape "$P-$host" eth0 $burst && shape "$P-ctl" "v$number" $burst
X
  write_command slurmd << 'X'
host=$1 what=$2
pid() { "$D/in" "$host" pgrep -o -x slurmd; }
case $what in
  start) # an orphan: the first process of the host takes it. Without -c, which ends what runs there
    "$D/in" "$host" bash -c 'setsid slurmd -D > "$0" 2>&1 < /dev/null &' "$D/log/slurmd-$host.out"
    for _ in $(seq 100); do ! pid > /dev/null || exit 0; sleep 0.05; done
    exit 3 ;;
  stop | kill)
    [ "$what" = stop ] && signal=TERM || signal=KILL
    "$D/in" "$host" pkill -$signal -o -x slurmd
    for _ in $(seq 100); do pid > /dev/null || exit 0; sleep 0.05; done
    exit 3 ;;
  *) echo "usage: slurmd HOST start|stop|kill" >&2; exit 2 ;;
esac
X
  write_command power << 'X'
host=$1 what=$2
key=$D/run/$host.pid
case $what in
  on)
    rm -f "$key"
    rm -rf "$D/tmp/$host"/* "$D/spool/$host"/* # a diskless host, or one whose slurmd is told to clear up (-c)
    [ "$host" = ctl ] || "$D/link" "$host" up
    setsid nsenter --net="/run/netns/$P-$host" unshare --uts --ipc --pid --mount --fork --propagation private \
      "$D/init" "$host" > "$D/log/host-$host.out" 2>&1 < /dev/null &
    for _ in $(seq 200); do [ ! -s "$key" ] || break; sleep 0.02; done
    [ -s "$key" ] || { echo "power: $host does not come up: $(tail -n 1 "$D/log/host-$host.out")" >&2; exit 3; }
    [ "$host" = ctl ] || exec "$D/slurmd" "$host" start
    exec "$D/in" ctl bash -c 'setsid slurmctld -D > "$0" 2>&1 < /dev/null &' "$D/log/slurmctld.out" ;;
  off)
    [ -s "$key" ] || exit 0
    pid=$(cat "$key")
    rm -f "$key"
    [ "$host" = ctl ] || "$D/link" "$host" down # nobody is told: not even that connections end
    kill -KILL "$pid" 2> /dev/null
    while kill -0 "$pid" 2> /dev/null; do sleep 0.02; done ;;
  *) echo "usage: power HOST on|off" >&2; exit 2 ;;
esac
X
}
