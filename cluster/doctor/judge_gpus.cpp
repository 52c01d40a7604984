#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cluster/doctor/judge.h"
#include "cluster/doctor/visible_devices.h"
#include "comm/assign_devices.h"

namespace ringmark::cluster {
namespace {

std::vector<comm::VisibleGpus> views_of(AllFacts ranks) {
  std::vector<comm::VisibleGpus> views;
  for (const RankFacts& facts : ranks) {
    comm::VisibleGpus view{.host = facts.host, .gpus = {}, .trouble = facts.gpu_trouble};
    for (const std::string& gpu : facts.gpus) view.gpus.push_back(uuid_of(gpu));
    views.push_back(std::move(view));
  }
  return views;
}

// What to type depends on how the ranks came to see what they see.
std::string fix_of_refusal(AllFacts ranks) {
  const auto blind = std::ranges::find_if(ranks, [](const RankFacts& facts) { return facts.gpus.empty(); });
  const bool by_mpirun = std::ranges::any_of(ranks, &RankFacts::mpirun_in_slurm);
  if (by_mpirun) return "start the ranks with srun --mpi=pmix --gpus-per-task=1 instead of mpirun";
  if (blind != ranks.end() && blind->visible_devices != "unset") {
    return "unset CUDA_VISIBLE_DEVICES, or let it name a GPU of the host; in Slurm ask for --gpus-per-task=1 in every "
           "component of the job; or use --backend cpu";
  }
  if (blind != ranks.end()) return "Slurm: --gpus-per-task=1; container: --gpus all; or use --backend cpu";
  const bool all_see_one = std::ranges::all_of(ranks, [](const RankFacts& facts) { return facts.gpus.size() == 1; });
  if (all_see_one) {
    return "Slurm: srun --gpus-per-task=1; mpirun: let every rank see all GPUs, or CUDA_VISIBLE_DEVICES="
           "$OMPI_COMM_WORLD_LOCAL_RANK";
  }
  return "start at most one rank a GPU (srun --ntasks-per-node, mpirun --map-by ppr:N:node), or pass --share-gpu";
}

Finding line_of_rank(AllFacts ranks, std::size_t rank, int device, int sharers) {
  const RankFacts& facts = ranks[rank];
  const auto index = static_cast<std::size_t>(device);
  return {Level::kInfo, "gpus",
          fmt::format("rank {} on {} takes GPU {} of {} visible (CUDA_VISIBLE_DEVICES {}): {}{}", rank, facts.host,
                      device, facts.gpus.size(), facts.visible_devices.empty() ? "empty" : facts.visible_devices,
                      index < facts.gpu_names.size() ? facts.gpu_names[index] : facts.gpus[index],
                      sharers > 1 ? fmt::format(", shared by {} ranks", sharers) : ""),
          ""};
}

}  // namespace

Findings judge_gpus(AllFacts ranks, const DoctorOptions& options) {
  const bool none = std::ranges::all_of(ranks, [](const RankFacts& facts) { return facts.gpus.empty(); });
  if (none && !options.gpus) {
    return {{Level::kInfo, "gpus", fmt::format("none, and none is needed: {}", ranks.front().gpu_trouble), ""}};
  }
  const comm::GpuAssignment assignment = comm::assign_gpus(views_of(ranks), options.share_gpu);
  if (!assignment.refusal.empty()) {
    if (!options.gpus) {
      return {{Level::kInfo, "gpus", fmt::format("--backend cuda would be refused: {}", assignment.refusal), ""}};
    }
    return {{Level::kFail, "gpus", assignment.refusal, fix_of_refusal(ranks)}};
  }
  Findings findings{
      {Level::kPass, "gpus", fmt::format("every rank has a GPU{}", options.share_gpu ? "" : " of its own"), ""}};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    findings.push_back(line_of_rank(ranks, rank, assignment.devices[rank], assignment.sharers[rank]));
  }
  return findings;
}

}  // namespace ringmark::cluster
