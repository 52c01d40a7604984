# Defaults of the environment for a batch script: `. ringmark_env.sh` before mpirun or srun. What is set already stays.
# `ringmark doctor --settings` says why, and what else matters; `ringmark doctor` looks at what a job really gets.

ringmark_default() { # NAME VALUE
  if [ -z "$(printenv "$1")" ]; then export "$1=$2"; fi
}

# Open MPI learns of the other ranks by PMIx.
ringmark_default SLURM_MPI_TYPE pmix

# srun does not take --cpus-per-task from sbatch.
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then ringmark_default SRUN_CPUS_PER_TASK "$SLURM_CPUS_PER_TASK"; fi

# More ranks than processors on a host: a rank that waits gives its processor away.
ringmark_tasks=${SLURM_NTASKS_PER_NODE:-${SLURM_TASKS_PER_NODE:-1}}
if [ "${ringmark_tasks%%[!0-9]*}" -gt "$(nproc --all)" ]; then
  ringmark_default OMPI_MCA_mpi_yield_when_idle 1
  ringmark_default OMP_WAIT_POLICY passive
fi
unset ringmark_tasks

# Where Open MPI goes by UCX without InfiniBand.
if [ "${OMPI_MCA_pml:-}" = ucx ] && [ -z "$(ls /sys/class/infiniband 2> /dev/null)" ]; then
  ringmark_default OMPI_MCA_pml_ucx_tls any
  ringmark_default OMPI_MCA_pml_ucx_devices any
fi

# An error inside UCX ends the rank.
ringmark_default UCX_HANDLE_ERRORS none

# Between hosts NCCL takes one interface by itself. Set the one that joins your hosts:
# export NCCL_SOCKET_IFNAME=eth0

unset -f ringmark_default
