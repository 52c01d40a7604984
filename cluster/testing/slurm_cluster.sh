#!/usr/bin/env bash
# usage: slurm_cluster.sh [COMMAND...]   A Slurm cluster on one machine, for the time of COMMAND (default: a shell).
#
# Every host is a set of namespaces of its own (network, host name, processes, mounts, System V memory) with a /dev/shm
# and a boot id of its own, joined to the others by a virtual switch: what MPI, UCX and Slurm take for a host. `ctl` runs
# slurmctld, n1, n2, ... run slurmd; fake GPUs are character devices. The exit code is that of COMMAND, and all is taken
# down behind it. Several clusters may be up at once. Needs root and the packages slurm-wlm, munge and iproute2.
#
# Set before:  NODES  hosts beside ctl (2)                 RATE  of every host's link, both ways, e.g. 1gbit (unlimited)
#              CPUS   of a host as Slurm sees it (4)       D     folder of logs and state (temporary, removed at the end)
#              GPUS   fake ones of a host (2)              P     prefix of the network namespaces' names (ringmarkPID-)
#              SHM    size of a host's /dev/shm (2g)       NET   first three octets of the addresses (10.231.7)
#
# For COMMAND, which runs outside of the hosts:
#   $IN HOST COMMAND...          runs it on a host; SLURM_CONF is set, so that `$IN ctl sbatch ...` works
#   $D/link HOST up|down|RATE    plugs a host's cable in, pulls it, or limits it to, say, 200mbit
#   $D/slurmd HOST start|stop|kill   its slurmd: starts, ends (SIGTERM) or dies (SIGKILL); jobs on it go on
#   $D/power HOST off|on         the host dies with all its processes; comes back with nothing of it, and a slurmd
#   $D/log/                      of slurmctld, of each slurmd (slurmd-n1.log), and jobcomp.log with how each job ended
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster/testing/cluster_files.sh
. "$here/cluster_files.sh"

stop_with() { echo "slurm_cluster.sh: $1" >&2; exit 3; }
[ "$(id -u)" = 0 ] || stop_with "needs root: namespaces and virtual links cannot be made without"
missing=$(for pair in slurmctld:slurm-wlm slurmd:slurm-wlm munged:munge ip:iproute2 tc:iproute2 nsenter:util-linux; do
  command -v "${pair%:*}" > /dev/null || echo "${pair#*:}"
done | sort -u)
[ -z "$missing" ] || stop_with "missing packages: apt-get install --no-install-recommends ${missing//$'\n'/ }"
[ $# -gt 0 ] || { [ -t 0 ] || stop_with "no command given, and no terminal for a shell"; set -- bash; }

export NODES=${NODES:-2} CPUS=${CPUS:-4} GPUS=${GPUS:-2} SHM=${SHM:-2g} RATE=${RATE:-} P=${P:-ringmark$$} NET=${NET:-10.231.7}
for number in NODES CPUS GPUS; do
  [[ ${!number} =~ ^[0-9]{1,3}$ ]] || stop_with "$number is '${!number}', must be a number up to 999"
done
((NODES >= 1 && NODES <= 200)) || stop_with "NODES is $NODES, must be 1 to 200"
hosts=(ctl); for ((n = 1; n <= NODES; ++n)); do hosts+=("n$n"); done

remove_folder=
[ -n "${D:-}" ] || { D=$(mktemp -d /tmp/ringmark_cluster.XXXXXX) && remove_folder=1; }
export D IN=$D/in SLURM_CONF=$D/etc/slurm.conf

# Takes all down, whatever is there of it.
command_pid=
munged_pid=
down() {
  set +e
  trap '' TERM INT
  [ -z "$command_pid" ] || kill "$command_pid" 2> /dev/null
  for host in "${hosts[@]}"; do "$D/power" "$host" off; done
  [ -z "$munged_pid" ] || kill "$munged_pid" 2> /dev/null
  for host in "${hosts[@]}"; do ip netns del "$P-$host"; done 2> /dev/null
  wait
  [ -z "$remove_folder" ] || rm -rf "$D"
}
trap down EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

write_cluster_files
ip netns add "$P-ctl" 2> "$D/log/netns.out" ||
  stop_with "network namespace $P-ctl cannot be made: $(tail -n 1 "$D/log/netns.out")"
ip -n "$P-ctl" link add switch type bridge || stop_with "this kernel makes no virtual switch (bridge)"
ip -n "$P-ctl" addr add "$NET.1/24" dev switch
ip -n "$P-ctl" link set lo up
ip -n "$P-ctl" link set switch up
for ((n = 1; n <= NODES; ++n)); do
  ip netns add "$P-n$n"
  ip -n "$P-ctl" link add "v$n" type veth peer name eth0 netns "$P-n$n"
  ip -n "$P-ctl" link set "v$n" master switch up
  ip -n "$P-n$n" addr add "$NET.$((10 + n))/24" dev eth0
  ip -n "$P-n$n" link set lo up
  ip -n "$P-n$n" link set eth0 up
  [ -z "$RATE" ] || "$D/link" "n$n" "$RATE" || stop_with "RATE is '$RATE': tc cannot shape a link by it (tbf)"
done

# One munged serves all hosts: its socket is a file.
munged -F --force --key-file="$D/munge/key" --socket="$D/run/munge.sock" --pid-file="$D/run/munged.pid" \
  --log-file="$D/log/munged.log" --seed-file="$D/munge/seed" > "$D/log/munged.out" 2>&1 &
munged_pid=$!
for _ in $(seq 100); do [ ! -S "$D/run/munge.sock" ] || break; sleep 0.05; done
for host in "${hosts[@]}"; do "$D/power" "$host" on; done
idle() { [ "$("$IN" ctl sinfo -h -N -o %t 2> /dev/null | sort -u)" = idle ]; }
for _ in $(seq 120); do ! idle || break; sleep 0.25; done
idle || { tail -n 5 "$D"/log/*.log "$D"/log/*.out >&2; stop_with "the hosts did not come up: the logs' last lines stand above"; }

# A shell keeps the terminal; any other command runs in the background, so that a signal to this script ends both.
if [ -t 0 ] && [ "$*" = bash ]; then
  echo "up: ctl and n1 to n$NODES. Try: \$IN ctl sinfo   logs: $D/log   exit takes it down"
  "$@"
else
  "$@" <&0 &
  command_pid=$!
  code=0
  wait $command_pid || code=$?
  command_pid=
  exit $code
fi
