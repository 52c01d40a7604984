#include "bench/gpu/score_times.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/gpu/device_layer.h"
#include "bench/gpu/planted_device.h"
#include "bench/gpu/roofline.h"
#include "bench/gpu/transfer.h"
#include "kernels/cuda/score.h"

namespace ringmark::bench {
namespace {

using kernels::Candidate;
using kernels::cuda::LandmarkTiles;
using kernels::cuda::LayerShape;
using kernels::cuda::Path;
using ringmark::cuda::Buffer;

// Of the approximate scores and of their lse; scores are about 1, biases 4.
constexpr float kScoreBound = 2e-4f;
constexpr float kLseBound = 3e-4f;
constexpr std::int64_t kCheckedRows = 8;

// Records of all chunks and what split_landmarks makes of them.
struct Landmarks {
  Landmarks(const LayerShape& shape, cudaStream_t stream)
      : terms(LandmarkTiles::term_bytes(shape)),
        bias(std::int64_t{shape.landmark_heads} * LandmarkTiles::tiles_of(shape.chunk_count) *
             LandmarkTiles::kTileChunks),
        numbers(3 * shape.landmark_heads) {
    const kernels::LandmarkShape record = shape.landmark_shape();
    std::vector<float> host(static_cast<std::size_t>(shape.chunk_count * record.record_floats()));
#pragma omp parallel for schedule(static)
    for (std::int64_t chunk = 0; chunk < shape.chunk_count; ++chunk) {
      std::mt19937 random(static_cast<std::uint32_t>(chunk));
      std::normal_distribution<float> normal;
      float* at = host.data() + chunk * record.record_floats();
      std::generate_n(at, record.bias_offset(), [&] { return normal(random); });
      std::generate_n(at + record.bias_offset(), record.heads, [&] { return 4.0f + 0.1f * normal(random); });
    }
    records = upload(host, stream);
    std::vector<const float*> addresses;
    for (std::int64_t at = 0; at < records.size(); at += record.record_floats())
      addresses.push_back(records.data() + at);
    table = upload(addresses, stream);
    tiles = {LandmarkTiles::tiles_of(shape.chunk_count),
             terms.data(),
             bias.data(),
             numbers.data(),
             numbers.data() + shape.landmark_heads,
             numbers.data() + 2 * shape.landmark_heads};
    split_landmarks(shape, table.data(), tiles, stream);
    ringmark::cuda::check(cudaStreamSynchronize(stream), "split the landmarks");
  }

  Buffer<float> records;
  Buffer<const float*> table;
  Buffer<std::byte> terms;
  Buffer<float> bias, numbers;
  LandmarkTiles tiles;
};

class ScoreBench {
 public:
  explicit ScoreBench(const KernelOptions& options)
      : repeats_(options.repeats),
        problem_{options.quick ? 65536 : 1048576, 32, 8, 128, 64, DType::kBfloat16, 1.0f / std::sqrt(128.0f), true, {}},
        rows_(options.quick ? 1024 : 16384),
        landmarks_(shape_of(16), stream_),
        queries_(rows_ * problem_.heads * row_bytes()) {
    for (std::int64_t row = 0; row < rows_; ++row) tokens_.emplace_back(problem_.tokens - rows_ + row);
    const partition::SequenceGrid grid(problem_, policy(16));
    geometry_ = upload(kernels::cuda::row_geometry(grid, tokens_), stream_);
    chunks_ = upload(kernels::cuda::chunk_geometry(grid, policy(16)), stream_);
    work_ = 2.0 * static_cast<double>(problem_.head_dim * problem_.heads) *
            count_work(grid, problem_.tokens - rows_, problem_.tokens).eligible_chunks;
    stream_.wait();
  }

  // Queries that turn to a new direction at every token, or one in fifty times to one of eight.
  void ask(bool neighbours_agree) {
    runtime::PlantedOptions planted;
    if (!neighbours_agree) planted.agreement = 0.0, planted.topics = 0;
    const Buffer<std::byte> keys(rows_ * problem_.kv_heads * row_bytes()), values(keys.size());
    PlantedDevice(problem_, policy(16), planted).fill(tokens_, queries_.data(), keys.data(), values.data(), stream_);
  }

  std::vector<Path> families() const { return tensor_families(shape_of(16)); }

  KernelTime time(Path path, std::int64_t topk) {
    const LayerShape shape = shape_of(topk);
    kernels::cuda::ApproximateLists lists;
    lists.capacity = kernels::cuda::ApproximateLists::capacity_of(shape.topk);
    const std::int64_t pairs = rows_ * problem_.heads;
    const Buffer<Candidate> candidates(pairs * lists.capacity);
    const Buffer<float> cuts(pairs);
    const Buffer<float2> sums(pairs);
    lists.candidates = candidates.data();
    lists.cut = cuts.data();
    lists.sum = sums.data();
    KernelTime time;
    time.kernel = "scoring";
    time.family = name_of(path);
    time.ms = time_on(stream_, repeats_, [&] {
      score_approximately(path, shape, geometry(), queries_.data(), {0, rows_}, landmarks_.tiles, lists, stream_);
    });
    time.work = work_;
    time.ceiling = kTwoTermRate;
    for (std::int64_t row = 0; row < rows_ && time.wrong.empty(); row += rows_ / kCheckedRows) {
      time.wrong = first_difference(shape, row, {candidates, cuts, sums});
    }
    return time;
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t landmark_count() const { return shape_of(16).chunk_count; }

 private:
  struct Lists {
    const Buffer<Candidate>& candidates;
    const Buffer<float>& cuts;
    const Buffer<float2>& sums;
  };

  AttentionPolicy policy(std::int64_t topk) const { return {512, topk, 0, Scorer::kHils}; }
  LayerShape shape_of(std::int64_t topk) const {
    return LayerShape::of(problem_, policy(topk), partition::SequenceGrid(problem_, policy(topk)));
  }
  std::int64_t row_bytes() const { return problem_.head_dim * size_of(problem_.dtype); }
  kernels::cuda::Geometry geometry() const { return {geometry_.data(), chunks_.data(), rows_}; }

  // Every one of the exact top-K must be listed with its score, or be below the cut; the lse must agree.
  std::string first_difference(const LayerShape& shape, std::int64_t row, const Lists& lists) {
    std::vector<kernels::cuda::ScoringItem> items;
    for (std::int32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) items.push_back({row, kv_head, 0});
    const Buffer<kernels::cuda::ScoringItem> device_items = upload(items, stream_);
    const Buffer<Candidate> exact(std::int64_t{shape.heads} * shape.topk);
    const Buffer<kernels::LogSum> exact_sums(shape.heads);
    score_exactly(shape, geometry(), queries_.data(), device_items.data(), device_items.size(), landmarks_.table.data(),
                  exact.data(), exact_sums.data(), stream_);
    const auto want = download(exact, 0, exact.size(), stream_);
    const auto want_sums = download(exact_sums, 0, shape.heads, stream_);
    const std::int64_t capacity = kernels::cuda::ApproximateLists::capacity_of(shape.topk);
    const std::int64_t pair = row * shape.heads;
    const auto listed = download(lists.candidates, pair * capacity, shape.heads * capacity, stream_);
    const auto cuts = download(lists.cuts, pair, shape.heads, stream_);
    const auto sums = download(lists.sums, pair, shape.heads, stream_);
    for (std::size_t head = 0; head < cuts.size(); ++head) {
      const float lse = sums[head].x + std::log(sums[head].y), exact_lse = want_sums[head].value();
      if (!(std::fabs(lse - exact_lse) <= kLseBound)) {
        return fmt::format("lse of row {} head {} is {}, not {}", row, head, lse, exact_lse);
      }
      const auto first = listed.begin() + static_cast<std::ptrdiff_t>(head) * capacity;
      for (std::size_t place = 0; place < static_cast<std::size_t>(shape.topk); ++place) {
        const Candidate& best = want[head * static_cast<std::size_t>(shape.topk) + place];
        const auto found =
            std::find_if(first, first + capacity, [&](const Candidate& c) { return c.chunk == best.chunk; });
        const float bound = found == first + capacity ? cuts[head] : found->score;
        const bool good = found == first + capacity ? best.score <= bound + kScoreBound
                                                    : std::fabs(best.score - bound) <= kScoreBound;
        if (!good) return fmt::format("row {} head {} chunk {} scores {}", row, head, best.chunk, best.score);
      }
    }
    return "";
  }

  int repeats_;
  AttentionProblem problem_;
  std::int64_t rows_;  // the last ones of the sequence
  ringmark::cuda::Stream stream_;
  Landmarks landmarks_;
  Buffer<std::byte> queries_;
  std::vector<TokenId> tokens_;
  Buffer<kernels::cuda::RowGeometry> geometry_;
  Buffer<kernels::cuda::ChunkGeometry> chunks_;
  double work_ = 0.0;
};

}  // namespace

void time_scoring_kernels(const KernelOptions& options, KernelTable& table) {
  ScoreBench bench(options);
  for (const bool neighbours_agree : {false, true}) {
    bench.ask(neighbours_agree);
    for (const std::int64_t topk : {16, 32, 64}) {
      for (const Path path : bench.families()) {
        KernelTime time = bench.time(path, topk);
        time.input = fmt::format("{} rows x {} landmarks, K={}, {}", bench.rows(), bench.landmark_count(), topk,
                                 neighbours_agree ? "neighbours agree" : "random");
        table.add(time);
      }
    }
  }
}

}  // namespace ringmark::bench
