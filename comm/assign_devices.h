// Which rank uses which GPU, decided alike on every rank from what each of them sees. UUIDs tell GPUs apart: a rank may
// see its own GPU alone, as device 0 like all the others, or see it under another number than its neighbour does.
// Environment variables are not asked: under mpirun inside a Slurm job, SLURM_LOCALID is 0 for every rank.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ringmark::comm {

// Of a GPU, or of the part of one that MIG hands out.
using Uuid = std::array<std::uint8_t, 16>;

// As nvidia-smi writes it: "GPU-8f6bb1a5-1f1e-2a3c-7e0c-6d6d36bd8e4c".
std::string text_of(const Uuid& uuid);

struct VisibleGpus {
  std::string host;
  std::vector<Uuid> gpus;  // by CUDA's numbers, which follow CUDA_VISIBLE_DEVICES
  std::string trouble;     // why there are none, in CUDA's words
};

struct GpuAssignment {
  std::vector<int> devices;  // by rank: its own CUDA number
  std::vector<int> sharers;  // by rank: how many ranks use its GPU, itself included
  std::string refusal;       // one line; empty when every rank has its GPU
};

// In rank order, each rank takes the first GPU it sees that the fewest ranks before it took: GPU i for the i-th rank of
// a host that sees them all, the only one for a rank that sees one. A GPU for two ranks is refused unless `share`.
GpuAssignment assign_gpus(std::span<const VisibleGpus> ranks, bool share);

}  // namespace ringmark::comm
