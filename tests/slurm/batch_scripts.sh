#!/usr/bin/env bash
# usage: slurm_cluster.sh batch_scripts.sh RINGMARK DATA SCRIPTS   The scripts of cluster/slurm that take no GPU, as they are,
# on 1 to $NODES hosts: COMPLETED, with the digest and the output of one rank. And what they do when the command is wrong.
set -uo pipefail
ringmark=$(realpath "$1") data=$(realpath "$2") scripts=$(realpath "$3")
. "$(dirname "$0")/jobs.sh"
mkdir "$D/work" && cd "$D/work" || exit 1
export RINGMARK=$ringmark
export OMPI_MCA_mpi_yield_when_idle=1 # many hosts share few cores
# MPI over UCX: the TCP of Open MPI 4.1 itself does not always start on so many hosts of so few cores.
export OMPI_MCA_pml=ucx OMPI_MCA_pml_ucx_tls=any OMPI_MCA_pml_ucx_devices=any OMPI_MCA_btl=self,vader UCX_TLS=tcp,self,sm

layer=(prefill --input "$data/layer.safetensors" --quiet --digest)
"$ringmark" "${layer[@]}" --output one.safetensors > one.txt || { echo "FAIL: one rank"; exit 1; }

# equals_one_rank SCRIPT NODES: the script, copied to where the user is.
equals_one_rank() {
  local script=$1 nodes=$2
  cp "$scripts/$script" .
  submit -N "$nodes" "$script" "${layer[@]}" --output got.safetensors
  ends COMPLETED 0:0
  [ "$(digest_of "$(field StdOut)")" = "$(digest_of one.txt)" ] || fail "$script on $nodes hosts: another digest"
  cmp one.safetensors got.safetensors || fail "$script on $nodes hosts: another output"
  grep -q "^ranks *$((nodes * $3)) x" "$(field StdOut)" || fail "$script: $(grep ^ranks "$(field StdOut)")"
  echo "$script: $nodes hosts, $(grep ^ranks "$(field StdOut)"), $(grep selection_digest "$(field StdOut)")"
}
equals_one_rank single_node.sbatch 1 4
equals_one_rank multi_node.sbatch "$NODES" 2
equals_one_rank requeue.sbatch "$NODES" 2

# As it is, without a word of the user's.
submit multi_node.sbatch
ends COMPLETED 0:0
grep -q '^needles *64 of 64 recovered' "$(field StdOut)" || fail "no needles: $(log)"

# The code of the command is that of the job, and its line the last of the log.
submit multi_node.sbatch prefill --input /nowhere/layer.safetensors
ends FAILED 2:0
tail -n 1 "$(field StdOut)" | grep -q '/nowhere/layer.safetensors: cannot open' || fail "no cause: $(log)"

# Apptainer's place is taken by a script that takes its arguments and runs the command behind them.
mkdir bin
cat > bin/apptainer << 'S'
#!/usr/bin/env bash
[ "$1 $2 $4 $6" = "exec --bind --pwd image.sif" ] || { echo "apptainer: $*" >&2; exit 9; }
cd "$5" || exit 9
shift 6
exec "$@"
S
chmod +x bin/apptainer
export PATH=$PWD/bin:$PATH IMAGE=image.sif
equals_one_rank container.sbatch "$NODES" 2
rm bin/apptainer
submit container.sbatch
ends FAILED 3:0

[ $failures -eq 0 ] && echo "batch_scripts: all good on $NODES hosts"
exit $((failures > 0))
