#!/usr/bin/env bash
# usage: cluster.sh RINGMARK SLURM_CLUSTER SCRIPTS   a study over 1, 2, 4, 8 hosts as a job array; its page in Chromium; then a
# study in which a rank is killed: its point says so, and the others are done. Root.
set -euo pipefail
ringmark=$(realpath "$1") cluster=$(realpath "$2") array=$(realpath "$3/scaling_array.sbatch")
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 3; }
here=$(dirname "$(realpath "$0")")
folder=$(mktemp -d /tmp/ringmark_scaling.XXXXXX) && trap 'rm -rf "$folder"' EXIT
cd "$folder"
export RINGMARK=$ringmark
cat > "$folder/script" << S
set -eu
wait_for_jobs() { for i in \$(seq 150); do [ -z "\$("\$IN" ctl squeue -h)" ] && return; sleep 1; done; "\$IN" ctl squeue; return 1; }
"\$IN" ctl '$ringmark' scaling run --dir '$folder/good' --nodes 1,2,4,8 --tokens 4k --repeat 2 --warmup 0 \
  --launch slurm-array --script '$array' -- --needles 8 --topk 4
wait_for_jobs
"\$IN" ctl '$ringmark' scaling run --dir '$folder/bad' --nodes 1,2 --tokens 64k --arms ring --repeat 1 --warmup 0 --no-trace \
  --launch slurm-array --script '$array'
until ls '$folder'/bad/runs/00001/1/0/log > /dev/null 2>&1; do sleep 0.2; done
victim=
until victim=\$(pgrep -f 'prefill --planted.*$folder/bad/runs/00001/1/0/' | xargs -r -n1 sh -c \
  '[ "\$(cat /proc/\$0/comm)" = ringmark ] && grep -qz "^PMIX_RANK=1" /proc/\$0/environ && echo \$0' | grep .); do sleep 0.2; done
kill -KILL \$victim
wait_for_jobs
S
# MPI over UCX: the TCP of Open MPI 4.1 itself does not always start on so many hosts of so few cores.
export NODES=8 GPUS=0 OMPI_MCA_btl=self OMPI_MCA_pml=ucx OMPI_MCA_pml_ucx_tls=any OMPI_MCA_pml_ucx_devices=any
export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0
"$cluster" bash "$folder/script"
"$ringmark" scaling report "$folder/good" || { echo "FAIL: the study is not done"; cat "$folder"/*.out; exit 1; }
"$here/page.sh" "$folder/good/report.html" time-strong efficiency-strong bytes-strong stages-strong against-ring-strong timeline
"$ringmark" scaling collect "$folder/bad" > "$folder/table" && { echo "FAIL: nobody failed"; cat "$folder/table"; exit 1; }
cat "$folder/table"
grep -q '^| strong | ring | 1 | 1 .*needles' "$folder/table" || { echo "FAIL: the other point was lost"; exit 1; }
grep -qi 'task 1: killed' "$folder/table" || { echo "FAIL: no cause"; exit 1; }
