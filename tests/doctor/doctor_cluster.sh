#!/usr/bin/env bash
# usage: doctor_cluster.sh SLURM_CLUSTER RINGMARK FAKE_NVML   `ringmark doctor` as it is started under Slurm, on two hosts with
# two fake GPUs each: every way of Slurm to hand out GPUs, every way to start ranks that do not find each other, an
# interface that leads nowhere. What is fine is let through, what is not gets its cause and its fix. Needs root.
set -uo pipefail
cluster=$(realpath "$1")
ringmark=$(realpath "$2")
fake_nvml=$(realpath "$3")
. "$(dirname "$0")/../cluster/expect.sh"
export TMPDIR=$PWD ringmark NET=${NET:-10.231.17}
for host in 1 2; do
  for g in 0 1; do echo "GPU-0000000$g-0000-0000-0000-00000000000$host 141 18 Fake GPU"; done > gpus.n$host
done
cp gpus.n1 one_host.n1 # n2 has no driver
export LD_LIBRARY_PATH=$fake_nvml${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} FAKE_NVML=$PWD/gpus.%h

cat > inside.sh << 'S'
failures=0
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
# says CODE PATTERN... -- COMMAND...: on ctl; exit code, and a line that matches each pattern.
says() {
  local code=$1 got patterns=()
  shift
  while [ "$1" != -- ]; do patterns+=("$1"); shift; done
  shift
  timeout 100 $IN ctl "$@" > out.txt 2> err.txt < /dev/null
  got=$?
  # Between these hosts ranks now and then stand still while a transport is opened, in a job too, some inside
  # MPI_Comm_dup: not while they connect, but long after. Why is not known; doctor ends by its deadline, and says so.
  if grep -q "stage 'open the request transport': waited .*, inside MPI" err.txt; then
    echo "a launch that MPI did not survive, once more: $*"
    timeout 100 $IN ctl "$@" > out.txt 2> err.txt < /dev/null
    got=$?
  fi
  check "$code" $got "$*"
}
check() {
  [ "$1" = any ] || [ "$2" -eq "$1" ] || fail "exit $2 instead of $1: $3: $(cat out.txt) $(head -c 500 err.txt)"
  for pattern in "${patterns[@]}"; do grep -qE -- "$pattern" out.txt || fail "no '$pattern' from: $3: $(cat out.txt)"; done
}
# A batch script of its own, from standard input: what it wrote, and its exit code behind.
batch() {
  local job patterns=()
  cat > job.sh
  while [ "$1" != -- ]; do patterns+=("$1"); shift; done
  shift
  rm -f out.txt
  job=$($IN ctl sbatch --parsable -o out.txt "$@" job.sh) || return
  for _ in $(seq 600); do [ -n "$($IN ctl squeue -h -j "${job%%;*}" 2>&1)" ] || break; sleep 0.2; done
  check any 0 "sbatch $*"
}
two="srun --mpi=pmix -N2 --ntasks-per-node=2"
doctor="$ringmark doctor --deadline 20"

# Who gets which GPU. The task's only one; its place among all; all of the host when none was asked for.
for request in --gpus-per-task=1 "--gpus-per-node=2 --gpu-bind=single:1"; do
  says 0 '^PASS  gpus' 'rank 1 on n1 takes GPU 0 of 1 .*DEVICES 1\): GPU-00000001.*1 \(' \
    'rank 2 on n2 takes GPU 0 of 1 .*DEVICES 0\): GPU-00000000.*2 \(' -- $two $request $doctor --gpus
done
says 0 'rank 0 on n1 takes GPU 0 of 2' 'rank 1 on n1 takes GPU 1 of 2 .*DEVICES 0,1\): GPU-00000001' -- \
  $two --gres=gpu:2 $doctor --gpus
says 0 'rank 3 on n2 takes GPU 1 of 2 .*: GPU-00000001.*2 \(' '^PASS  network +2 hosts reach each other' '^INFO  clock' -- \
  $two --gpus-per-node=2 --gpu-bind=none $doctor --gpus
says 3 '^FAIL  gpus +ranks 0 and 2 would share .*fix: start at most one rank a GPU' '^a job would fail' -- \
  srun --mpi=pmix -N2 --ntasks-per-node=3 --gpus-per-node=2 --gpu-bind=none $doctor --gpus
# A component of a heterogeneous job on a host without GPUs.
says 3 '^FAIL  gpus +rank 1 on host n2 sees no GPU.*fix: ' '^a job would fail' -- \
  env FAKE_NVML="$PWD/one_host.%h" srun --mpi=pmix -w n1 -n1 --gpus-per-task=1 $doctor --gpus : -w n2 -n1 $doctor --gpus
# mpirun inside a job of one GPU a task: Slurm starts its daemon on the second host as one task.
batch '^FAIL  gpus +ranks 2 and 3 would share .*host n2.*fix: start the ranks with srun --mpi=pmix' '^code 3' -- \
  -N2 --ntasks-per-node=2 --gpus-per-task=1 << X
#!/bin/bash
mpirun -n 4 $doctor --gpus < /dev/null
echo "code \$?"
X

# Ranks that do not find each other.
says 3 '^FAIL  launch +task 0: srun started 4 tasks without PMIx.*fix: srun --mpi=pmix' -- srun --mpi=none -N2 --ntasks-per-node=2 $doctor
says any '^FAIL  launch +task 0: ' '^FAIL  settings +SLURM_MPI_TYPE=pmi2 .*fix: export SLURM_MPI_TYPE=pmix' -- \
  srun --mpi=pmi2 -N2 --ntasks-per-node=2 $doctor
batch '^FAIL  launch .*SLURM_NTASKS is 4 but the MPI world has 1 rank.*fix: srun --mpi=pmix' '^code 3' -- -N2 --ntasks-per-node=2 << X
#!/bin/bash
$doctor
echo "code \$?"
X

# Ways between the hosts: none by MPI's choice, none by UCX's, and an interface whose cable leads nowhere.
says any '^FAIL  launch ' '^FAIL  settings +OMPI_MCA_btl=self,vader: nothing reaches another host.*fix: unset OMPI_MCA_btl' -- \
  env OMPI_MCA_btl=self,vader $two $doctor
says 3 '^FAIL  (transport|launch) ' '^FAIL  settings +UCX_TLS=sm,self: nothing reaches another host.*fix: unset UCX_TLS' -- \
  env UCX_TLS=sm,self $two $doctor --transport ucx
for host in n1 n2; do
  ip -n "$P-$host" link add eth1 type veth peer name back
  ip -n "$P-$host" link set back up
  ip -n "$P-$host" addr add "10.99.${host#n}.1/24" dev eth1
  ip -n "$P-$host" link set eth1 up
done
# MPI itself ends by a second network that leads nowhere, unless it is told not to take it.
export OMPI_MCA_btl_tcp_if_include=eth0 UCX_NET_DEVICES=eth0
says 0 '^WARN  network +n1 does not reach n2 at 10.99.2.1: .*fix: name the interface' -- $two $doctor
says 3 '^FAIL  settings +NCCL_SOCKET_IFNAME is not set and this host has eth0, eth1 \(on n1, n2\)' -- $two $doctor --gpus
says 3 '^FAIL  settings +NCCL_SOCKET_IFNAME=eth9: no such interface' -- env NCCL_SOCKET_IFNAME=eth9 $two $doctor --gpus
for host in n1 n2; do ip -n "$P-$host" link set eth1 down; done
says 3 '^FAIL  settings +NCCL_SOCKET_IFNAME=eth1: eth1 is down' -- env NCCL_SOCKET_IFNAME=eth1 $two $doctor --gpus
says 0 '^PASS  network' '^PASS  settings' -- env NCCL_SOCKET_IFNAME=eth0 $two $doctor --gpus
exit $((failures > 0))
S
NODES=2 GPUS=2 "$cluster" bash inside.sh || fail "on the cluster"
[ $failures -eq 0 ] && echo "every way of Slurm was judged"
exit $((failures > 0))
