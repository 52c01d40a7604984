#!/usr/bin/env bash
# usage: doctor.sh RINGMARK OLDER FAKE_NVML DOCS   `ringmark doctor` where nothing is wrong, and then with each known
# cause, made for real: it prints the cause, the fix, and ends with the right code. OLDER: a binary of another
# version. FAKE_NVML: a folder with a libnvidia-ml.so.1 of fake GPUs. Needs root for the small /dev/shm.
set -uo pipefail
ringmark=$(realpath "$1")
older=$(realpath "$2")
fake_nvml=$(realpath "$3")
docs=$(realpath "$4")
. "$(dirname "$0")/../cluster/expect.sh"
unset "${!SLURM@}" "${!UCX@}" "${!NCCL@}" CUDA_VISIBLE_DEVICES OMP_WAIT_POLICY OMP_PROC_BIND
mpi() { mpirun --oversubscribe "$@" < /dev/null; }
doctor=("$ringmark" doctor --deadline 10)

# says CODE PATTERN... -- COMMAND...: exit code, and a line on stdout that matches each pattern.
says() {
  local code=$1 got patterns=()
  shift
  while [ "$1" != -- ]; do patterns+=("$1"); shift; done
  shift
  timeout 100 "$@" > out.txt 2> err.txt < /dev/null
  got=$?
  [ "$code" = any ] || [ $got -eq "$code" ] || fail "exit $got instead of $code: $*: $(cat out.txt) $(head -c 500 err.txt)"
  for pattern in "${patterns[@]}"; do
    grep -qE -- "$pattern" out.txt || fail "no '$pattern' from: $*: $(cat out.txt)"
  done
}
silent() { ! grep -qE -- "$1" out.txt || fail "'$1' where nothing is wrong: $(grep -E -- "$1" out.txt)"; }

# Nothing wrong: alone, and as two ranks, with the JSON of it.
says 0 '^INFO  launch .*one process' '^PASS  versions .*ringmark' '^a job would run here' -- "${doctor[@]}"
silent '^FAIL'
says 0 '^PASS  launch +2 ranks met' '^PASS  transport +rma: .* GB/s' '^PASS  transport +request: .* GB/s' \
  '^PASS  transport +auto takes rma' '^PASS  settings' -- \
  mpirun --oversubscribe -n 2 "${doctor[@]}" --probe-bw --json report.json
silent '^FAIL'
python3 - << 'P' || fail "the JSON"
import json
report = json.load(open("report.json"))
assert report["schema"] == "ringmark.doctor.1" and report["would_run"] is True
assert len(report["ranks"]) == 2 and report["ranks"][0]["versions"]["ringmark"]
lines = [line.split() for line in open("out.txt") if line[:4] in ("PASS", "INFO", "WARN", "FAIL")]
assert [(f["level"], f["check"]) for f in report["findings"]] == [(line[0], line[1]) for line in lines]
P
expect 2 "unknown flag --bananas" "$ringmark" doctor --bananas
expect 2 "transport = nccl does not move the memory of --backend cpu" "$ringmark" doctor --transport nccl
expect 2 "share-gpu = true has no meaning" "$ringmark" doctor --share-gpu

# Launch: a Slurm allocation of 4 tasks, and one process; a step of 4 tasks without PMIx.
says 3 '^FAIL  launch .*SLURM_NTASKS is 4 but the MPI world has 1 rank.*fix: srun --mpi=pmix' -- \
  env SLURM_JOB_ID=1 SLURM_NTASKS=4 "${doctor[@]}"
says 3 '^FAIL  launch .*without PMIx.*fix: srun --mpi=pmix' -- \
  env SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 "${doctor[@]}"

# Settings with which MPI does not start. It ends the job itself, and mpirun then with MPI's code.
says any '^FAIL  launch ' '^FAIL  settings .*OMPI_MCA_pml_ucx_tls is not set.*fix: export OMPI_MCA_pml_ucx_tls=any' \
  '^FAIL  settings .*fix: export OMPI_MCA_pml_ucx_devices=any' '^a job would fail here' -- \
  env OMPI_MCA_pml=ucx mpirun --oversubscribe -n 2 "${doctor[@]}"
says 0 '^PASS  launch' '^PASS  settings' -- \
  env OMPI_MCA_pml=ucx OMPI_MCA_pml_ucx_tls=any OMPI_MCA_pml_ucx_devices=any mpirun --oversubscribe -n 2 "${doctor[@]}"
says any '^FAIL  launch ' '^FAIL  settings +OMPI_MCA_btl=self: .*fix: unset OMPI_MCA_btl' -- \
  env OMPI_MCA_btl=self mpirun --oversubscribe -n 2 "${doctor[@]}"
# A job says the same before it ends so, and nothing with --quiet or where nothing is wrong.
env OMPI_MCA_btl=self mpirun --oversubscribe -n 2 "$ringmark" prefill --planted 1k < /dev/null > out.txt 2> err.txt &&
  fail "a job without a way between its ranks"
grep -qE '^ringmark: warning: OMPI_MCA_btl=self: .*; fix: unset OMPI_MCA_btl$' err.txt || fail "no warning: $(head -c 500 err.txt)"
[ "$(grep -c '^ringmark: warning' err.txt)" -eq 1 ] || fail "more than one warning"
mpi -n 2 env OMPI_MCA_mpi_oversubscribe=0 OMP_PROC_BIND=true "$ringmark" prefill --planted 1k --quiet > /dev/null 2> err.txt
[ ! -s err.txt ] || fail "words of a quiet job: $(cat err.txt)"

# Transports: UCX reaches nobody; a probe that fails.
says 3 '^FAIL  transport .*ucx.*fix: look at UCX_TLS' '^FAIL|WARN  settings +UCX_TLS=self: .*fix: unset UCX_TLS' -- \
  env UCX_TLS=self mpirun --oversubscribe -n 2 "${doctor[@]}" --transport ucx
says 3 '^FAIL  transport .*ucx' 'settings +UCX_NET_DEVICES=nosuch0: no such interface.*fix: unset UCX_NET_DEVICES' -- \
  env UCX_TLS=tcp,self UCX_NET_DEVICES=nosuch0 mpirun --oversubscribe -n 2 "${doctor[@]}" --transport ucx
says 0 '^INFO  transport .*ucx' -- env UCX_TLS=self mpirun --oversubscribe -n 2 "${doctor[@]}"
says 3 '^FAIL  transport .*rma.*fix: ' -- env OMPI_MCA_osc=pt2pt mpirun --oversubscribe -n 2 "${doctor[@]}" --transport rma
says 0 '^INFO  transport .*rma' '^PASS  transport +auto takes request' -- \
  env OMPI_MCA_osc=pt2pt mpirun --oversubscribe -n 2 "${doctor[@]}"

# Processors: more ranks than processors, hidden from mpirun; one processor for four threads.
cpus=$(nproc --all)
says 0 '^WARN  processors .*oversubscribed; fix: at most' \
  '^WARN  settings .*OMPI_MCA_mpi_yield_when_idle is not 1.*fix: export OMPI_MCA_mpi_yield_when_idle=1' -- \
  mpirun --host localhost:$((cpus + 1)) -n $((cpus + 1)) "${doctor[@]}"
says 0 '^WARN  processors .*4 threads on 1 of .*fix: srun --cpus-per-task' -- taskset -c 0 "${doctor[@]}" --threads 4
says 0 '^WARN  settings +SLURM_CPUS_PER_TASK=2 but this task may use 1.*fix: export SRUN_CPUS_PER_TASK' -- \
  env SLURM_STEP_ID=0 SLURM_CPUS_PER_TASK=2 taskset -c 0 mpirun --bind-to none -n 1 "${doctor[@]}"
says 0 '^WARN  settings +OMP_PROC_BIND=close: .*fix: unset OMP_PROC_BIND' -- \
  env OMP_PROC_BIND=close mpirun --oversubscribe --bind-to none -n 2 "${doctor[@]}"

# Limits.
says 0 '^WARN  limits .*64.0 KiB of locked memory.*fix: ulimit -l unlimited' -- \
  bash -c 'ulimit -l 64 && exec "$@"' _ mpirun --oversubscribe -n 2 "${doctor[@]}" --transport ucx
says 0 '^WARN  limits .*200 open files.*fix: ulimit -n' -- bash -c 'ulimit -n 200 && exec "$@"' _ "${doctor[@]}"

# /dev/shm: small, very small, and what a dead job has left.
if [ "$(id -u)" = 0 ]; then
  says 0 '^WARN  shm .*/dev/shm of 1.0 MiB.*MPI alone takes.*fix: .*--shm-size' -- \
    unshare --mount bash -c 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"' _ mpirun --oversubscribe -n 2 "${doctor[@]}"
  says 0 '^WARN  shm .*by request instead of rma' -- \
    unshare --mount bash -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"' _ "${doctor[@]}"
  says 0 '^WARN  shm .*a file of dead jobs.*/dev/shm/vader_segment.dead.*fix: rm /dev/shm/vader_segment.dead' -- \
    unshare --mount bash -c 'mount -t tmpfs tmpfs /dev/shm && touch -d "1 hour ago" /dev/shm/vader_segment.dead && exec "$@"' _ \
    "${doctor[@]}"
else
  fail "needs root: /dev/shm cannot be made small without"
fi

# Versions: another release on one rank, and another driver.
says 3 '^FAIL  versions +ringmark differs: 0.0.9 on rank 1, 0.1.0 on rank 0.*fix: start the same file' \
  '^WARN  versions .*executable.*differs' -- \
  mpirun --oversubscribe -n 1 "${doctor[@]}" : -n 1 "$older" doctor --deadline 10

# GPUs.
export LD_LIBRARY_PATH=$fake_nvml${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
gpu() { printf 'GPU-0000000%s-0000-0000-0000-000000000000' "$1"; }
for g in 0 1; do echo "$(gpu $g) 141 18 Fake GPU"; done > two_gpus
export FAKE_NVML=$PWD/two_gpus
says 3 '^WARN  versions +driver differs: 535.1 on rank 1, 550.54.15 on rank 0' -- \
  mpirun --oversubscribe -n 1 "${doctor[@]}" --backend cuda : -n 1 -x FAKE_NVML_DRIVER=535.1 "${doctor[@]}" --backend cuda
says 0 '^PASS  gpus +every rank has a GPU of its own' "^INFO  gpus +rank 1 .* takes GPU 1 of 2 .*$(gpu 1) .*18 NVLinks" -- \
  mpirun --oversubscribe -n 2 "${doctor[@]}" --gpus
says 3 "^FAIL  gpus +ranks 0 and 2 would share $(gpu 0).*fix: start at most one rank a GPU" -- \
  mpirun --oversubscribe -n 3 "${doctor[@]}" --gpus
says 0 '^PASS  gpus' -- mpirun --oversubscribe -n 3 "${doctor[@]}" --gpus --share-gpu
# A wrapper that takes the local rank from Slurm's variable, which is 0 for all ranks of mpirun.
cat > wrapper << 'S'
#!/usr/bin/env bash
export CUDA_VISIBLE_DEVICES=${!1}
shift
exec "$@"
S
chmod +x wrapper
says 3 "^FAIL  gpus +ranks 0 and 1 would share $(gpu 0).*fix: .*OMPI_COMM_WORLD_LOCAL_RANK" -- \
  env SLURM_LOCALID=0 mpirun --oversubscribe -n 2 ./wrapper SLURM_LOCALID "${doctor[@]}" --gpus
says 0 '^PASS  gpus' "rank 1 .* takes GPU 0 of 1 visible \(CUDA_VISIBLE_DEVICES 1\): $(gpu 1)" -- \
  mpirun --oversubscribe -n 2 ./wrapper OMPI_COMM_WORLD_LOCAL_RANK "${doctor[@]}" --gpus
says 3 "^FAIL  gpus +rank 0 on host .* sees no GPU: CUDA_VISIBLE_DEVICES is empty.*fix: unset CUDA_VISIBLE_DEVICES" -- \
  env CUDA_VISIBLE_DEVICES= "${doctor[@]}" --gpus
says 3 "^FAIL  gpus .*CUDA_VISIBLE_DEVICES=7: '7' is none of the 2 GPUs of the host" -- \
  env CUDA_VISIBLE_DEVICES=7 "${doctor[@]}" --gpus
says 3 '^FAIL  gpus .*sees no GPU: NVML: Driver Not Loaded.*fix: Slurm: --gpus-per-task=1' -- \
  env FAKE_NVML=/nowhere "${doctor[@]}" --gpus
says 3 '^FAIL  gpus +rank 1 on host .* sees no GPU.*' -- \
  mpirun --oversubscribe -n 1 "${doctor[@]}" --gpus : -n 1 -x FAKE_NVML=/nowhere "${doctor[@]}" --gpus
says 0 '^INFO  gpus .*--backend cuda would be refused' -- mpirun --oversubscribe -n 3 "${doctor[@]}"
says 3 '^FAIL  settings +NCCL_SOCKET_IFNAME=nosuch: no such interface.*fix: export NCCL_SOCKET_IFNAME' -- \
  env NCCL_SOCKET_IFNAME=nosuch mpirun --oversubscribe -n 2 "${doctor[@]}" --gpus

# It ends when a rank does not.
cat > sleeper << 'S'
#!/usr/bin/env bash
[ "$OMPI_COMM_WORLD_RANK" != 1 ] || exec sleep 60
exec "$@"
S
chmod +x sleeper
says any "^FAIL  launch +task 0: " '^a job would fail here' -- \
  mpirun --oversubscribe -n 2 ./sleeper "$ringmark" doctor --deadline 2

# The table in the documentation is that of the code.
"$ringmark" doctor --settings > settings.txt || fail "--settings"
grep -E '^[A-Z]' settings.txt | awk '{ print $1 }' | sort > in_code
python3 - "$docs/doctor.md" << 'P' || fail "the table of docs/doctor.md is not that of ringmark doctor --settings"
import sys
lines = [line.rstrip("\n") for line in open("settings.txt")]
code = [[lines[i][:31].strip(), lines[i][31:].strip(), lines[i + 1].strip()] for i in range(0, len(lines), 3)]
rows = [line for line in open(sys.argv[1]) if line.startswith("| `")]
docs = [[cell.strip().strip("`") for cell in row.strip().strip("|").split("|")] for row in rows]
for row in code:
    if row not in docs: sys.exit(f"not in the documentation: {row}")
if len(docs) != len(code): sys.exit(f"{len(docs)} rows, {len(code)} settings")
P

# ringmark_env.sh sets what stands in the table, leaves what is set, and mends what it can.
env_sh=$(dirname "$docs")/cluster/launch/ringmark_env.sh
grep -oE 'ringmark_default [A-Z_a-z]+' "$env_sh" | awk '{ print $2 }' | sort -u | grep -v '^$' > exported
[ -z "$(comm -23 exported in_code)" ] || fail "ringmark_env.sh sets what is not in the table: $(comm -23 exported in_code)"
sourced() { env "$@" bash -euc '. "$0"; env' "$env_sh"; }
sourced SLURM_CPUS_PER_TASK=3 > set || fail "ringmark_env.sh under set -eu"
for line in SLURM_MPI_TYPE=pmix SRUN_CPUS_PER_TASK=3 UCX_HANDLE_ERRORS=none; do grep -qx "$line" set || fail "no $line"; done
! grep -q 'yield_when_idle\|pml_ucx' set || fail "defaults that nobody needs"
sourced UCX_HANDLE_ERRORS=bt | grep -qx UCX_HANDLE_ERRORS=bt || fail "a value that did not stay"
sourced SLURM_TASKS_PER_NODE="$((cpus + 1))(x2)" | grep -qx OMPI_MCA_mpi_yield_when_idle=1 || fail "no yield"
says 0 '^PASS  settings' -- env OMPI_MCA_pml=ucx bash -c '. "$0"; exec "$@"' "$env_sh" mpirun --oversubscribe -n 2 "${doctor[@]}"

[ $failures -eq 0 ] && echo "every known cause was found"
exit $((failures > 0))
