#include "runtime/cuda/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "kernels/cuda/attend.h"
#include "kernels/select_chunks.h"
#include "runtime/cuda/workspace.h"
#include "runtime/row_needs.h"
#include "runtime/score_exchange.h"

namespace ringmark::runtime::cuda {
namespace {

using kernels::Candidate;
using kernels::CandidateLists;
using kernels::LogSum;
using kernels::Selection;
using kernels::cuda::BlockOrder;
using kernels::cuda::ChunkSplits;
using kernels::cuda::few::PartRoom;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

template <class T>
constexpr auto kSizeOf = static_cast<std::int64_t>(sizeof(T));

int processors_of_device() {
  int device = 0, processors = 0;
  ringmark::cuda::check(cudaGetDevice(&device), "ask for the device");
  ringmark::cuda::check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
                        "ask for the number of processors");
  return processors;
}

// Rows done at once: no more than their fetched blocks have room for.
std::int64_t tile_rows(const KeptShape& shape, int ranks, const DeviceDecodeOptions& options, bool fetches) {
  const std::int64_t row = fetches ? PeerBlocks::most_bytes_of_a_row(shape, ranks) : 0;
  if (row == 0) return options.tile_rows;
  if (options.receive_bytes < row) {
    fail_bad_input(fmt::format("cache of {} bytes is below the {} bytes that one row may need at once",
                               options.receive_bytes, row));
  }
  return std::min(options.tile_rows, options.receive_bytes / row);
}

}  // namespace

// A step's rows, or the part of them that is done at once.
struct DeviceDecoder::Tile {
  std::vector<TokenId> tokens;      // of all rows
  std::vector<TokenId> own_tokens;  // in the order of the device
  std::vector<RankId> homes;
  Selection selection;  // of all rows, where several ranks choose
  DecodeTraffic traffic;
  bool stop = false;
};

// Lists of all rows, in the order of the device.
struct DeviceDecoder::Lists {
  std::int64_t rows = 0;
  const Candidate* candidates = nullptr;  // [rows, H, K]
  const LogSum* sums = nullptr;           // [rows, H]
};

DeviceDecoder::DeviceDecoder(comm::Communicator& communicator, comm::cuda::DeviceTransport& transport,
                             const KeptShape& shape, const DeviceDecodeOptions& options)
    : communicator_(communicator),
      options_(options),
      layer_(communicator, transport, shape, stream_),
      peers_(layer_, transport),
      rows_(layer_.sequences(), layer_.rank(), shape.problem.kv_heads),
      tile_rows_(tile_rows(shape, communicator.size(), options, transport.collective_get())),
      processors_(processors_of_device()) {
  clock_.record_in(options.trace);
}

DeviceDecoder::~DeviceDecoder() = default;

MemoryPlan DeviceDecoder::plan(const KeptShape& shape, int ranks, const DeviceDecodeOptions& options) {
  const AttentionProblem& problem = shape.problem;
  const std::int64_t rows = options.tile_rows;
  const std::int64_t topk = shape.policy.selects() ? shape.policy.topk : 0;
  const std::int64_t row_heads = rows * problem.heads;
  const std::int64_t row_elements = rows * (2 * problem.heads + 2 * problem.kv_heads) * problem.head_dim;
  const std::int64_t list_bytes = topk * kSizeOf<Candidate> + kSizeOf<LogSum>;
  const std::int64_t lists = ChunkSplits::most_lists(row_heads, processors_of_device()) + row_heads;
  const std::int64_t parts = row_heads * kernels::cuda::few::kMostParts;
  const partition::SequenceGrid grid(problem, shape.policy);
  const std::int64_t addresses = grid.chunk_count() * (problem.kv_heads + 2) * kSizeOf<void*>;
  return {{{"kept blocks", KeptLayer::exposed_bytes(shape, ranks)},
           {"received blocks", ranks > 1 ? options.receive_bytes : 0},
           {"addresses", addresses},
           {"rows of a step", row_elements * size_of(problem.dtype)},
           {"score lists", lists * list_bytes},
           {"results", row_heads * (problem.head_dim + 2 + 2 * topk) * kSizeOf<float>},
           {"parts of results", parts * (problem.head_dim * kSizeOf<float> + kSizeOf<float2>)}}};
}

std::string DeviceDecoder::stage(std::string_view work) const {
  return fmt::format("layer {} step {}: {}", layer_.shape().layer, steps_, work);
}

const std::byte* DeviceDecoder::scoring_queries() const {
  return layer_.shape().policy.scorer == Scorer::kHils ? rows_.retrieval_queries() : rows_.queries();
}

DecodeStep DeviceDecoder::step(const NewTokens& rows, bool stop) {
  layer_.sequences().place(rows.sequences);
  DecodeStep whole;
  whole.selection = Selection(0, layer_.problem().kv_heads, layer_.layer().topk);
  for (std::int64_t begin = 0; begin < rows.rows(); begin += tile_rows_) {
    whole.add(run_tile(rows.slice(begin, std::min(rows.rows(), begin + tile_rows_)), stop), begin);
  }
  ++steps_;
  return whole;
}

std::int64_t DeviceDecoder::result_words(std::int64_t rows) const {
  const kernels::cuda::LayerShape& layer = layer_.layer();
  return rows * (layer.heads * (layer.head_dim + 1) + std::int64_t{layer.kv_heads} * layer.topk);
}

void DeviceDecoder::reserve(std::int64_t rows) {
  const kernels::cuda::LayerShape& layer = layer_.layer();
  const std::int64_t heads = rows * layer.heads;
  result_heads_ = heads;
  Workspace::reserve(results_, result_words(rows));
  Workspace::reserve(chosen_scores_, heads * layer.topk);
  Workspace::reserve(window_weights_, heads);
  Workspace::reserve(part_out_, PartRoom::floats_of(layer, rows));
  Workspace::reserve(part_mass_, PartRoom::masses_of(layer, rows));
}

DecodeStep DeviceDecoder::run_tile(const NewTokens& rows, bool stop) {
  Tile tile;
  tile.tokens = layer_.sequences().place(rows.sequences);
  const partition::SequenceGrid& grid = layer_.sequences().grid();
  for (const TokenId token : tile.tokens) {
    tile.homes.push_back(layer_.sequences().layout().owner(grid.chunk_of(token)));
  }
  try {
    {
      const auto span = clock_.time("append");
      rows_.upload(rows, tile.tokens, stream());
      reserve(rows_.own());
      layer_.append(rows, rows_);  // K and V of the own rows; chunks close
    }
    for (const std::int64_t row : std::span(rows_.order()).first(size(rows_.own()))) {
      tile.own_tokens.push_back(tile.tokens[size(row)]);
    }
    attend_window(tile);
    select(tile, stop);
    attend_chosen();
  } catch (const Error& error) {
    // Reads and kernels do not know the step.
    const std::string text = error.what();
    if (text.find(stage("")) != std::string::npos) throw;
    throw Error(error.code(), fmt::format("{} ({})", text, stage("decode")));
  }
  return finish(tile);
}

void DeviceDecoder::attend_window(Tile& tile) {
  const auto span = clock_.time("window");
  if (!alone()) {
    peers_.bring(rows_.own(), window_needs(layer_.problem(), layer_.sequences().grid(), tile.own_tokens), false,
                 stream(), tile.traffic);
  }
  kernels::cuda::few::attend_window(layer_.layer(), {rows_.geometry(), layer_.chunks(), rows_.own()},
                                    {layer_.blocks(), BlockOrder::kPlain}, rows_.queries(), {0, rows_.own()},
                                    rows_.most_window_chunks(), {part_out_.data(), part_mass_.data()}, out(), lse(),
                                    stream());
}

// Every rank scores its own landmarks, for all rows.
DeviceDecoder::Lists DeviceDecoder::score(std::int64_t rows) {
  const kernels::cuda::LayerShape& own = layer_.own_layer();
  const ChunkSplits splits = ChunkSplits::of(own, rows_.eligible_slots(), rows, processors_);
  const std::int64_t lists = rows * own.heads, pairs = rows * own.kv_heads;
  Candidate* split_candidates = Workspace::reserve(split_candidates_, splits.count * lists * own.topk);
  LogSum* split_sums = Workspace::reserve(split_sums_, splits.count * lists);
  Candidate* candidates = Workspace::reserve(candidates_, lists * own.topk);
  LogSum* sums = Workspace::reserve(sums_, lists);
  score_splits_exactly(own, {rows_.slot_geometry(), layer_.chunks(), rows}, scoring_queries(), rows_.items(), pairs,
                       layer_.own_records(), splits, split_candidates, split_sums, stream());
  join_lists(own, pairs, splits.count, layer_.own_ids(), split_candidates, split_sums, candidates, sums, stream());
  return {rows, candidates, sums};
}

void DeviceDecoder::select(Tile& tile, bool stop) {
  const auto span = clock_.time("select");
  Lists lists;
  if (layer_.layer().topk > 0) lists = score(rows_.count());
  tile.selection = Selection(rows_.count(), layer_.problem().kv_heads, layer_.layer().topk);
  if (!alone()) return select_together(tile, lists, stop);
  tile.stop = stop;
  if (layer_.layer().topk > 0) select_alone(lists);
}

void DeviceDecoder::select_alone(const Lists& lists) {
  select_exactly(layer_.layer(), scoring_queries(), rows_.items(), lists.rows * layer_.problem().kv_heads,
                 layer_.records(), lists.candidates, lists.sums, lse(), selection(), nullptr, stream());
}

void DeviceDecoder::select_together(Tile& tile, const Lists& lists, bool stop) {
  const kernels::cuda::LayerShape& layer = layer_.layer();
  const std::int64_t heads = layer.heads, topk = layer.topk, own = rows_.own(), rows = rows_.count();
  std::vector<Candidate> candidates(size(lists.rows * heads * topk));
  std::vector<LogSum> sums(size(lists.rows * heads));
  std::vector<float> own_lse(size(own * heads)), all_lse(size(rows * heads));
  candidates_.download(candidates.data(), static_cast<std::int64_t>(candidates.size()), stream());
  sums_.download(sums.data(), static_cast<std::int64_t>(sums.size()), stream());
  results_.download(own_lse.data(), own * heads, stream(), lse() - results_.data());
  stream_.wait();
  CandidateLists scored(rows, heads, topk);
  for (std::int64_t n = 0; n < rows; ++n) {
    const std::int64_t row = rows_.order()[size(n)];
    if (topk > 0) {
      std::copy_n(candidates.begin() + n * heads * topk, heads * topk, scored.candidates.begin() + row * heads * topk);
      std::copy_n(sums.begin() + n * heads, heads, scored.sums.begin() + row * heads);
    }
    if (n < own) std::copy_n(own_lse.begin() + n * heads, heads, all_lse.begin() + row * heads);
  }
  const StepScores scores = exchange_scores(communicator_, stage("gather scores"), scored, tile.homes, all_lse, stop);
  tile.stop = scores.stop;
  tile.traffic.bytes_gathered = scores.bytes_received;
  kernels::select_chunks(scores.parts, scores.lse_window, 0, tile.selection, 1);
  if (topk == 0) return;

  Selection own_selection(own, layer.kv_heads, topk);
  const std::int64_t width = layer.kv_heads * topk;
  for (std::int64_t n = 0; n < own; ++n) {
    std::copy_n(tile.selection.chunks.begin() + rows_.order()[size(n)] * width, width,
                own_selection.chunks.begin() + n * width);
  }
  ringmark::cuda::check(cudaMemcpyAsync(selection(), own_selection.chunks.data(),
                                        size(own * width) * sizeof(std::int32_t), cudaMemcpyHostToDevice, stream()),
                        "upload the choice");
  peers_.bring(own, chosen_needs(layer_.problem(), own_selection, 0), true, stream(), tile.traffic);
}

void DeviceDecoder::attend_chosen() {
  const auto span = clock_.time("attend");
  const kernels::cuda::LayerShape& layer = layer_.layer();
  if (layer.topk == 0) return;
  const RowRange own{0, rows_.own()};
  kernels::cuda::few::score_chosen(layer, scoring_queries(), own, selection(), layer_.records(), chosen_scores_.data(),
                                   stream());
  kernels::cuda::weigh_chunks(layer, own, chosen_scores_.data(), lse(), window_weights_.data(), stream());
  kernels::cuda::few::attend_chosen(layer, {rows_.geometry(), layer_.chunks(), rows_.own()},
                                    {layer_.blocks(), BlockOrder::kPlain}, rows_.queries(), own, selection(),
                                    chosen_scores_.data(), window_weights_.data(),
                                    {part_out_.data(), part_mass_.data()}, out(), stream());
}

DecodeStep DeviceDecoder::finish(Tile& tile) {
  const auto span = clock_.time("attend");
  const std::int64_t heads = layer_.problem().heads, own = rows_.own();
  const std::int64_t words = result_words(own) - (alone() ? 0 : own * layer_.layer().kv_heads * layer_.layer().topk);
  auto* host = reinterpret_cast<float*>(host_results_.reserve(words * kSizeOf<float>));
  results_.download(host, words, stream());
  stream_.wait();
  const float* const host_lse = host + (lse() - results_.data());
  DecodeStep step;
  step.out.assign(static_cast<const float*>(host), host_lse);
  step.lse.assign(host_lse, host_lse + own * heads);
  if (alone() && layer_.layer().topk > 0) {  // the rows stand in the order of the step
    std::memcpy(tile.selection.chunks.data(), host_lse + own * heads,
                tile.selection.chunks.size() * sizeof(std::int32_t));
  }
  step.rows.assign(rows_.order().begin(), rows_.order().begin() + own);
  step.tokens = std::move(tile.tokens);
  step.selection = std::move(tile.selection);
  step.traffic = tile.traffic;
  step.stop = tile.stop;
  return step;
}

}  // namespace ringmark::runtime::cuda
