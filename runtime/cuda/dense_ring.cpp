#include "runtime/cuda/dense_ring.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "kernels/cuda/attend.h"
#include "kvstore/block_store.h"
#include "runtime/cuda/dense_hop.h"
#include "runtime/cuda/own_blocks.h"
#include "runtime/cuda/own_chunks.h"
#include "runtime/cuda/timeline.h"
#include "runtime/dense/prefill.h"
#include "runtime/meeting.h"

namespace ringmark::runtime::cuda {
namespace {

using kvstore::BlockStore;

class Ring {
 public:
  Ring(comm::Communicator& communicator, comm::cuda::DeviceTransport& transport, const AttentionProblem& problem,
       const partition::SequenceGrid& grid, const partition::Layout& layout, DeviceShard& shard,
       const DenseRingOptions& options, Workspace& workspace, ProgressSink& progress)
      : communicator_(communicator),
        transport_(transport),
        problem_(problem),
        grid_(grid),
        layout_(layout),
        rank_(communicator.rank()),
        shard_(shard),
        options_(options),
        workspace_(workspace),
        progress_(progress),
        shape_(kernels::cuda::LayerShape::of(problem, dense::whole_window(problem), grid)),
        timeline_(workspace.stream, "gpu compute"),
        fetch_timeline_(transport.stream(), "gpu fetch"),
        attended_(static_cast<std::size_t>(communicator.size())) {
    result_.path = kernels::cuda::resolve_path(options.path, shape_);
    result_.clock.record_in(options.trace);
  }

  DenseRingResult run() {
    store_blocks();
    plan_hops();
    transport_.publish();  // from here on peers read
    attend_all();
    timeline_.collect(result_.clock, options_.trace);
    StageClock hidden;  // copies that ran beside the kernels
    fetch_timeline_.collect(hidden, options_.trace);
    meeting_.meet("end of the layer");
    transport_.retire();
    return std::move(result_);
  }

 private:
  cudaStream_t stream() const { return workspace_.stream; }
  std::int64_t rows() const { return shard_.rows; }
  std::int64_t chunk_bytes() const { return BlockStore::bytes_of(problem_, 1); }
  std::int64_t block_bytes() const { return chunk_bytes() / problem_.kv_heads; }
  int hops() const { return communicator_.size(); }
  const DenseHop& hop(int number) const { return hops_[static_cast<std::size_t>(number)]; }

  void store_blocks() {
    geometry_ = kernels::cuda::chunk_geometry(grid_, dense::whole_window(problem_));
    own_ =
        transport_.expose(BlockStore::bytes_of(problem_, static_cast<std::int64_t>(layout_.chunks_of(rank_).size())));
    const OwnChunks chunks = upload_own_chunks(grid_, layout_, rank_, geometry_, workspace_);
    result_.path =
        pack_own_blocks(communicator_, shape_, result_.path, chunks, shard_, own_.data(), workspace_, timeline_);
  }

  // All that kernels look up goes up before the first of them: a copy from the host waits for those before it.
  void plan_hops() {
    std::int64_t keys = 0, most = 0;
    for (int number = 0; number < hops(); ++number) {
      hops_.push_back(plan_dense_hop(grid_, layout_, rank_, (communicator_.rank() + number) % hops(), geometry_));
      const auto of_hop = static_cast<std::int64_t>(hop(number).keys.size());
      keys += of_hop;
      if (number > 0) most = std::max(most, of_hop);
    }
    const std::int64_t buffers = std::min(2, hops() - 1);
    Workspace::reserve(workspace_.fetched_blocks, buffers * most * chunk_bytes());
    buffer_bytes_ = most * chunk_bytes();
    Workspace::reserve(workspace_.rows, hops() * rows());
    Workspace::reserve(workspace_.chunks, keys);
    Workspace::reserve(workspace_.block_table, keys * problem_.kv_heads);
    std::int64_t first = 0;
    for (int number = 0; number < hops(); ++number) {
      const DenseHop& of = hop(number);
      const auto count = static_cast<std::int64_t>(of.keys.size());
      std::vector<const std::byte*> table;
      for (std::int64_t n = 0; n < count * problem_.kv_heads; ++n) table.push_back(place(number) + n * block_bytes());
      workspace_.rows.upload(of.rows.data(), rows(), stream(), number * rows());
      workspace_.chunks.upload(of.chunks.data(), count, stream(), first);
      workspace_.block_table.upload(table.data(), count * problem_.kv_heads, stream(), first * problem_.kv_heads);
      workspace_.stream.wait();  // `table` goes away
      first_key_.push_back(first);
      first += count;
    }
    Workspace::reserve(workspace_.out, rows() * problem_.heads * problem_.head_dim);
    Workspace::reserve(workspace_.lse, rows() * problem_.heads);
    if (hops() == 1) return;
    Workspace::reserve(workspace_.partial_out, workspace_.out.size());
    Workspace::reserve(workspace_.partial_lse, workspace_.lse.size());
  }

  // Where the keys of a hop lie.
  std::byte* place(int number) const {
    return number == 0 ? own_.data() : workspace_.fetched_blocks.data() + (number - 1) % 2 * buffer_bytes_;
  }

  void attend_all() {
    // A row that no kernel wrote must not look like a result: all bits set is a NaN.
    workspace_.out.fill_bytes(0xFF, stream());
    workspace_.lse.fill_bytes(0xFF, stream());
    progress_.begin("attend", hops() * rows());
    for (int number = 0; number < hops(); ++number) {
      if (number > 0) finish_reads(number);
      attend(number);
      if (number + 1 < hops()) start_reads(number + 1);
      progress_.advance((number + 1) * rows());
    }
    progress_.end();
  }

  void start_reads(int number) {
    const DenseHop& of = hop(number);
    std::vector<comm::RemoteRead> reads;
    std::byte* to = place(number);
    for (std::size_t n = 0; n < of.keys.size();) {
      const std::int64_t slot = layout_.slot(of.keys[n]);
      std::size_t end = n + 1;
      while (end < of.keys.size() && layout_.slot(of.keys[end]) == slot + static_cast<std::int64_t>(end - n)) ++end;
      const auto bytes = static_cast<std::size_t>(chunk_bytes()) * (end - n);
      reads.push_back({of.owner, 0, slot * chunk_bytes(), {to, bytes}});
      to += bytes;
      n = end;
    }
    if (number > 2) attended_at(number - 2).hold(transport_.stream());  // who used the buffer before
    const auto copying = fetch_timeline_.time("fetch");
    reads_ = transport_.get(reads);
    result_.bytes_received += static_cast<std::int64_t>(of.keys.size()) * chunk_bytes();
  }

  void finish_reads(int number) {
    if (number > 2) attended_at(number - 2).wait();  // own work is not the peer's delay
    reads_->wait();
    reads_.reset();
  }

  void attend(int number) {
    const DenseHop& of = hop(number);
    const std::int64_t first = first_key_[static_cast<std::size_t>(number)];
    kernels::cuda::LayerShape shape = shape_;
    shape.chunk_count = static_cast<std::int32_t>(of.keys.size());
    const kernels::cuda::Geometry geometry{workspace_.rows.data() + number * rows(), workspace_.chunks.data() + first,
                                           rows()};
    const kernels::cuda::DeviceBlocks blocks{workspace_.block_table.data() + first * problem_.kv_heads,
                                             kernels::cuda::block_order(result_.path)};
    float* out = number == 0 ? workspace_.out.data() : workspace_.partial_out.data();
    float* lse = number == 0 ? workspace_.lse.data() : workspace_.partial_lse.data();
    for (const RowRange seeing : of.seeing) {
      {
        const auto span = timeline_.time("attend");
        kernels::cuda::attend_window(result_.path, shape, geometry, blocks, shard_.q.data(), seeing, out, lse,
                                     stream());
      }
      if (number > 0) merge(seeing);
    }
    attended_at(number).record(stream());
  }

  void merge(RowRange range) {
    const auto span = timeline_.time("merge");
    const std::int64_t pair = range.begin * problem_.heads, element = pair * problem_.head_dim;
    kernels::cuda::merge_partials(range.size(), problem_.heads, problem_.head_dim, workspace_.out.data() + element,
                                  workspace_.lse.data() + pair, workspace_.partial_out.data() + element,
                                  workspace_.partial_lse.data() + pair, stream());
  }

  ringmark::cuda::Event& attended_at(int number) { return attended_[static_cast<std::size_t>(number)]; }

  comm::Communicator& communicator_;
  comm::cuda::DeviceTransport& transport_;
  const AttentionProblem& problem_;
  const partition::SequenceGrid& grid_;
  const partition::Layout& layout_;
  RankId rank_;
  DeviceShard& shard_;
  const DenseRingOptions& options_;
  Workspace& workspace_;
  ProgressSink& progress_;
  kernels::cuda::LayerShape shape_;
  Timeline timeline_;
  Timeline fetch_timeline_;
  std::vector<ringmark::cuda::Event> attended_;  // by hop
  std::vector<kernels::cuda::ChunkGeometry> geometry_;
  comm::Bytes own_;  // on the device
  std::vector<DenseHop> hops_;
  std::vector<std::int64_t> first_key_;  // by hop, of the arrays of all hops
  std::int64_t buffer_bytes_ = 0;
  std::unique_ptr<comm::PendingReads> reads_;  // of the next hop
  DenseRingResult result_;
  Meeting meeting_{communicator_, grid_, layout_};
};

}  // namespace

DenseRingResult attend_by_ring(comm::Communicator& communicator, comm::cuda::DeviceTransport& transport,
                               const AttentionProblem& problem, const partition::SequenceGrid& grid,
                               const partition::Layout& layout, DeviceShard& shard, const DenseRingOptions& options,
                               Workspace& workspace, ProgressSink& progress) {
  return Ring(communicator, transport, problem, grid, layout, shard, options, workspace, progress).run();
}

}  // namespace ringmark::runtime::cuda
