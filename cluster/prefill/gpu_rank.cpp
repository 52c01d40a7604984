#include "cluster/prefill/gpu_rank.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "cluster/job/gpu_device.h"
#include "runtime/agreement.h"
#include "runtime/cuda/memory_plan.h"
#include "runtime/cuda/prefill.h"

namespace ringmark::cluster {
namespace {

using kernels::cuda::LayerShape;
using kernels::cuda::Path;

std::optional<Path> path_named(const std::string& name) {
  for (const Path path : {Path::kHopper, Path::kMma, Path::kSimt}) {
    if (name == kernels::cuda::name_of(path)) return path;
  }
  return std::nullopt;
}

class Gpu final : public GpuRank {
 public:
  Gpu(comm::Communicator& ranks, const PrefillOptions& options) : ranks_(ranks), options_(options) {
    GpuDevice device = choose_gpu(ranks, options.gpu.share);
    report_.device = std::move(device.why);
    report_.device_name = std::move(device.name);
    limit_ = device.limit;
  }

  std::int64_t memory_limit() const override { return limit_; }

  runtime::MemoryPlan plan(const AttentionProblem& problem, const AttentionPolicy& policy,
                           const partition::SequenceGrid& grid, const runtime::ShardSize& shard,
                           bool has_retrieval_queries, runtime::Merge merge) const override {
    const Path path =
        kernels::cuda::resolve_path(path_named(options_.gpu.kernels), LayerShape::of(problem, policy, grid));
    return runtime::cuda::plan_device_memory(problem, policy, shard, has_retrieval_queries, merge, path,
                                             options_.fetch_mib ? *options_.fetch_mib << 20 : limit_ / 4);
  }

  runtime::PrefillResult prefill(const AttentionProblem& problem, const AttentionPolicy& policy,
                                 const partition::Layout& layout, runtime::LayerShard& shard,
                                 const runtime::PrefillOptions& options, runtime::ProgressSink& progress,
                                 runtime::Trace* trace) override {
    comm::cuda::ChosenDeviceTransport chosen;
    runtime::agree(ranks_, "choose the transport",
                   [&] { chosen = comm::cuda::choose_device_transport(ranks_, device_transport(options_.transport)); });
    report_.transport = chosen.transport->name();
    report_.transport_reason = chosen.why;
    runtime::cuda::DevicePrefillOptions device;
    device.merge = options.merge;
    device.fetch_budget = options.fetch_budget;
    device.table_budget = options.table_budget;
    device.fetch = options_.gpu.fetch;
    device.path = path_named(options_.gpu.kernels);
    device.trace = trace;
    runtime::cuda::DevicePrefillResult details;
    runtime::PrefillResult result = runtime::cuda::prefill_on_gpu(ranks_, *chosen.transport, problem, policy, layout,
                                                                  shard, device, progress, &details);
    report_.kernels = kernels::cuda::name_of(details.path);
    report_.fetch = details.fetch.why;
    report_.pairs = details.pairs;
    report_.exact_pairs = details.exact_pairs;
    return result;
  }

  const GpuReport& report() const override { return report_; }

 private:
  comm::Communicator& ranks_;
  const PrefillOptions& options_;
  std::int64_t limit_ = 0;
  GpuReport report_;
};

}  // namespace

std::unique_ptr<GpuRank> make_gpu_rank(comm::Communicator& ranks, const PrefillOptions& options) {
  return std::make_unique<Gpu>(ranks, options);
}

}  // namespace ringmark::cluster
