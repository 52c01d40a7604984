#include "comm/assign_devices.h"

#include <fmt/format.h>

#include <map>

namespace ringmark::comm {
namespace {

using UsersOf = std::map<Uuid, std::vector<int>>;  // ranks

std::string refuse_blind_rank(int rank, const VisibleGpus& sees) {
  return fmt::format(
      "rank {} on host {} sees no GPU{}{}: give every rank one (Slurm: --gpus-per-task=1), look at "
      "CUDA_VISIBLE_DEVICES, or use --backend cpu",
      rank, sees.host, sees.trouble.empty() ? "" : ": ", sees.trouble);
}

std::string refuse_second_user(int first, int second, const VisibleGpus& sees, const Uuid& gpu) {
  return fmt::format(
      "ranks {} and {} would share {}: rank {} on host {} sees no free one among its {}; start at most one rank a GPU, "
      "let every rank see its own (Slurm: srun --gpus-per-task=1), or pass --share-gpu",
      first, second, text_of(gpu), second, sees.host, sees.gpus.size());
}

std::size_t least_used(const VisibleGpus& sees, const UsersOf& users) {
  const auto count = [&](const Uuid& gpu) {
    const auto found = users.find(gpu);
    return found == users.end() ? 0 : found->second.size();
  };
  std::size_t best = 0;
  for (std::size_t g = 1; g < sees.gpus.size(); ++g) {
    if (count(sees.gpus[g]) < count(sees.gpus[best])) best = g;
  }
  return best;
}

}  // namespace

std::string text_of(const Uuid& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

GpuAssignment assign_gpus(std::span<const VisibleGpus> ranks, bool share) {
  GpuAssignment assignment;
  UsersOf users;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const VisibleGpus& sees = ranks[r];
    const int rank = static_cast<int>(r);
    if (sees.gpus.empty()) return {.devices = {}, .sharers = {}, .refusal = refuse_blind_rank(rank, sees)};
    const std::size_t device = least_used(sees, users);
    std::vector<int>& of_gpu = users[sees.gpus[device]];
    if (!of_gpu.empty() && !share) {
      return {
          .devices = {}, .sharers = {}, .refusal = refuse_second_user(of_gpu.front(), rank, sees, sees.gpus[device])};
    }
    of_gpu.push_back(rank);
    assignment.devices.push_back(static_cast<int>(device));
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Uuid& gpu = ranks[r].gpus[static_cast<std::size_t>(assignment.devices[r])];
    assignment.sharers.push_back(static_cast<int>(users[gpu].size()));
  }
  return assignment;
}

}  // namespace ringmark::comm
