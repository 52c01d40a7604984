#!/usr/bin/env bash
# usage: cluster/scaling/example.sh RINGMARK [FOLDER]   the study of docs/scaling-example: sparse against ring on 1, 2, 4
# and 8 hosts, namespaces of this machine joined by links of 1 Gbit/s, under Slurm. Page, plots and tables go to FOLDER
# (default: docs/scaling-example). Root; a few minutes. Points run one after the other, since all hosts share this
# machine's cores.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ringmark=$(realpath "$1")
folder=$(realpath -m "${2:-$here/../../docs/scaling-example}")
STUDY_FOLDER=$(mktemp -d /tmp/ringmark_example.XXXXXX)
# A study that did not end well stays, with the logs of its runs.
trap '[ $? -eq 0 ] && rm -rf "$STUDY_FOLDER" || echo "the study is in $STUDY_FOLDER" >&2' EXIT
cat > "$STUDY_FOLDER/job.sbatch" << S
#!/usr/bin/env bash
#SBATCH -N 8 --ntasks-per-node=1 --exclusive -t 28 -o $STUDY_FOLDER/job.txt
'$ringmark' scaling run --dir '$STUDY_FOLDER/study' --nodes 1,2,4,8 --tokens 16k --arms sparse,ring \
  --repeat 3 --warmup 1 --time-limit 120 -- --heads 4 --kv-heads 4 --topk 8 --threads 1
S
# MPI over UCX: the TCP of Open MPI 4.1 itself does not always start on so many hosts of so few cores (docs/slurm.md).
export NODES=8 RATE=1gbit GPUS=0 OMPI_MCA_btl=self OMPI_MCA_pml=ucx OMPI_MCA_pml_ucx_tls=any OMPI_MCA_pml_ucx_devices=any
export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0
# shellcheck disable=SC2016
STUDY_FOLDER=$STUDY_FOLDER "$here/../testing/slurm_cluster.sh" bash -c '
  "$IN" ctl sbatch "$STUDY_FOLDER/job.sbatch"
  while [ -n "$("$IN" ctl squeue -h)" ]; do sleep 1; done'
cat "$STUDY_FOLDER/job.txt"
# A point that failed is on the page, with its cause, and ends this script with 1.
status=0
"$ringmark" scaling collect "$STUDY_FOLDER/study" || status=$?
mkdir -p "$folder"
"$ringmark" scaling report "$STUDY_FOLDER/study" --html "$folder/report.html" \
  --title "Sparse and ring attention on 1 to 8 hosts over 1 Gbit/s" \
  --note "All hosts are namespaces of one machine and share its $(nproc) processor cores, each rank has one thread; only the network, of \
1 Gbit/s a host and direction, is a host's own. Beyond $(nproc) nodes there are no more cores to scale on, and efficiency \
falls for that reason first: compare arms at the same number of nodes, and bytes at any." || status=$?
cp "$STUDY_FOLDER/study/results.jsonl" "$folder/results.jsonl"
exit $status
