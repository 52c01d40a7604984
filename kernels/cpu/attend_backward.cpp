#include "kernels/attend_backward.h"

#include <omp.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/chunk_readers.h"
#include "kernels/cpu/gradient_lanes.h"
#include "kernels/cpu/online_tile.h"

namespace ringmark::kernels {
namespace {

using cpu::ChunkReaders;

constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();

// What both kernels do with a chunk: its readers go through the lanes in batches.
class ChunkBackward {
 public:
  ChunkBackward(const BackwardRows& rows, const ChunkReaders& readers, const BlockTable& blocks,
                const LandmarkRecords& landmarks)
      : rows_(rows),
        readers_(readers),
        blocks_(blocks),
        landmarks_(landmarks),
        chunk_(BlockShape::of(rows.problem)),
        lanes_(rows) {
    batch_.reserve(cpu::kPanelWidth);
  }

  // Differentiates the rows of a range that read the chunk; take_window and take_chosen see every batch of lanes.
  template <class TakeWindow, class TakeChosen>
  void differentiate(ChunkId chunk, std::int64_t kv_head, RowRange range, TakeWindow&& take_window,
                     TakeChosen&& take_chosen) {
    const ChunkReaders::Nearby& nearby = readers_.nearby(chunk);
    loaded_ = false;
    const auto attend_window = [&] {
      load(chunk, kv_head, nearby.keys);
      lanes_.attend_window(chunk_, kv_head, batch_);
      take_window(lanes_, chunk_);
    };
    const RowRange window = intersect(nearby.window, range);
    for (std::int64_t row = window.begin; row < window.end; ++row) {
      add_row(kv_head, row, nearby.visible(rows_.tokens[static_cast<std::size_t>(row)]), attend_window);
    }
    const RowRange sinks = intersect(nearby.sinks, range);
    for (std::int64_t row = sinks.begin; row < sinks.end; ++row) {
      add_row(kv_head, row, nearby.sink_keys, attend_window);
    }
    flush(attend_window);

    const Range<TokenId> keys = rows_.grid.keys_of(chunk);
    const auto attend_chosen = [&] {
      load(chunk, kv_head, nearby.keys);
      lanes_.attend_chosen(chunk_, kv_head, batch_, keys.begin - nearby.first, keys.size(), landmarks_.shape,
                           landmarks_.of(chunk));
      take_chosen(lanes_, chunk_);
    };
    for (const std::int64_t row : readers_.chosen_by(chunk, kv_head, range)) {
      add_row(kv_head, row, keys.size(), attend_chosen);
    }
    flush(attend_chosen);
  }

  std::int64_t column_floats() const { return lanes_.column_floats(); }

 private:
  void load(ChunkId chunk, std::int64_t kv_head, std::int64_t keys) {
    if (!loaded_) chunk_.load(cpu::tile_kernels(), blocks_, chunk, kv_head, keys);
    loaded_ = true;
  }

  // A row that saw nothing has no weights that could be differentiated.
  template <class Attend>
  void add_row(std::int64_t kv_head, std::int64_t row, std::int64_t keys, Attend&& attend) {
    const std::int64_t group = rows_.problem.group();
    if (keys == 0) return;
    for (std::int64_t head = 0; head < group; ++head) {
      if (rows_.lse(row, kv_head * group + head) == kEmptyLse) continue;
      batch_.push_back({row, head, keys});
      if (static_cast<std::int64_t>(batch_.size()) == cpu::kPanelWidth) flush(attend);
    }
  }

  template <class Attend>
  void flush(Attend&& attend) {
    if (!batch_.empty()) attend();
    batch_.clear();
  }

  const BackwardRows& rows_;
  const ChunkReaders& readers_;
  const BlockTable& blocks_;
  const LandmarkRecords& landmarks_;
  cpu::WideChunk chunk_;
  cpu::GradientLanes lanes_;
  bool loaded_ = false;
  std::vector<cpu::Lane> batch_;
};

// Copies between rows of head_dim and rows of whole panels.
void copy_rows(const float* from, std::int64_t from_stride, std::int64_t rows, std::int64_t head_dim, float* to,
               std::int64_t to_stride) {
  for (std::int64_t r = 0; r < rows; ++r) std::copy_n(from + r * from_stride, head_dim, to + r * to_stride);
}

std::vector<ChunkBackward> make_workers(const BackwardRows& rows, const ChunkReaders& readers, const BlockTable& blocks,
                                        const LandmarkRecords& landmarks, int threads) {
  std::vector<ChunkBackward> workers;
  workers.reserve(static_cast<std::size_t>(threads));
  for (int t = 0; t < threads; ++t) workers.emplace_back(rows, readers, blocks, landmarks);
  return workers;
}

ChunkBackward& own(std::vector<ChunkBackward>& workers) {
  return workers[static_cast<std::size_t>(omp_get_thread_num())];
}

// By task, which is a tile of rows and a kv head: the chunks that some row of it reads, ascending.
std::vector<std::vector<ChunkId>> chunks_by_task(const BackwardRows& rows, const ChunkReaders& readers,
                                                 Range<ChunkId> chunks, std::int64_t tile) {
  const auto row_count = static_cast<std::int64_t>(rows.tokens.size());
  const std::int64_t kv_heads = rows.problem.kv_heads;
  std::vector<std::vector<ChunkId>> tasks(static_cast<std::size_t>((row_count + tile - 1) / tile * kv_heads));
  for (ChunkId chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    const ChunkReaders::Nearby& nearby = readers.nearby(chunk);
    for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      const auto list = [&](std::int64_t row) {
        std::vector<ChunkId>& task = tasks[static_cast<std::size_t>(row / tile * kv_heads + kv_head)];
        if (task.empty() || task.back() != chunk) task.push_back(chunk);
      };
      for (const RowRange& range : {nearby.window, nearby.sinks}) {
        for (std::int64_t row = range.begin; row < range.end; row = (row / tile + 1) * tile) list(row);
      }
      for (const std::int64_t row : readers.chosen_by(chunk, kv_head, {0, row_count})) list(row);
    }
  }
  return tasks;
}

// One (chunk, kv head) of key_gradients. The sums stand in whole panels meanwhile.
class KeySums {
 public:
  KeySums(const GradientShape& shape, std::int64_t column_floats)
      : shape_(shape),
        columns_(column_floats),
        keys_(static_cast<std::size_t>(shape.chunk_size * column_floats)),
        values_(keys_.size()) {}

  void add(ChunkBackward& worker, ChunkId chunk, std::int64_t kv_head, RowRange rows, float* record) {
    bool loaded = false;
    const auto take = [&](cpu::GradientLanes& lanes, const cpu::WideChunk&) {
      if (!loaded) load(record);
      loaded = true;
      lanes.add_to_keys(keys_.data(), values_.data());
    };
    worker.differentiate(chunk, kv_head, rows, take, [&](cpu::GradientLanes& lanes, const cpu::WideChunk& wide) {
      take(lanes, wide);
      lanes.add_to_landmark(shape_, record);
    });
    if (loaded) store(record);
  }

 private:
  void load(const float* record) {
    copy_rows(record, shape_.head_dim, shape_.chunk_size, shape_.head_dim, keys_.data(), columns_);
    copy_rows(record + shape_.values_at(), shape_.head_dim, shape_.chunk_size, shape_.head_dim, values_.data(),
              columns_);
  }
  void store(float* record) const {
    copy_rows(keys_.data(), columns_, shape_.chunk_size, shape_.head_dim, record, shape_.head_dim);
    copy_rows(values_.data(), columns_, shape_.chunk_size, shape_.head_dim, record + shape_.values_at(),
              shape_.head_dim);
  }

  GradientShape shape_;
  std::int64_t columns_;
  cpu::AlignedFloats keys_;
  cpu::AlignedFloats values_;
};

}  // namespace

void row_deltas(TensorView<const float, 3> out, TensorView<const float, 3> out_gradient, TensorView<float, 2> delta,
                int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t row = 0; row < out.dim(0); ++row) {
    for (std::int64_t head = 0; head < out.dim(1); ++head) {
      double sum = 0.0;
      for (std::int64_t x = 0; x < out.dim(2); ++x) sum += double{out(row, head, x)} * out_gradient(row, head, x);
      delta(row, head) = static_cast<float>(sum);
    }
  }
}

std::vector<ReaderCount> count_readers(const BackwardRows& rows, Range<ChunkId> chunks, int threads) {
  const ChunkReaders readers(rows, chunks, threads);
  const RowRange all{0, static_cast<std::int64_t>(rows.tokens.size())};
  std::vector<ReaderCount> counts;
  for (ChunkId chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    const ChunkReaders::Nearby& nearby = readers.nearby(chunk);
    for (std::int64_t kv_head = 0; kv_head < rows.problem.kv_heads; ++kv_head) {
      counts.push_back(
          {nearby.window.size() + nearby.sinks.size(), std::ssize(readers.chosen_by(chunk, kv_head, all))});
    }
  }
  return counts;
}

void query_gradients(const BackwardRows& rows, Range<ChunkId> chunks, const BlockTable& blocks,
                     const LandmarkRecords& landmarks, TensorView<float, 3> query_gradient,
                     TensorView<float, 3> scoring_gradient, int threads) {
  require(query_gradient.stride(2) == 1 && scoring_gradient.stride(2) == 1, "gradients have contiguous components");
  const auto row_count = static_cast<std::int64_t>(rows.tokens.size());
  if (row_count == 0 || chunks.empty()) return;
  const ChunkReaders readers(rows, chunks, threads);
  const std::int64_t kv_heads = rows.problem.kv_heads;
  const std::int64_t tile = cpu::tile_tokens(row_count * kv_heads, rows.problem.group(), threads);
  std::vector<ChunkBackward> workers = make_workers(rows, readers, blocks, landmarks, threads);
  const std::vector<std::vector<ChunkId>> tasks = chunks_by_task(rows, readers, chunks, tile);
  // Last tiles first: they read the most chunks.
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t task = std::ssize(tasks) - 1; task >= 0; --task) {
    const std::int64_t first = task / kv_heads * tile;
    const auto take = [&](cpu::GradientLanes& lanes, const cpu::WideChunk& chunk) {
      lanes.add_to_queries(chunk, query_gradient);
    };
    for (const ChunkId chunk : tasks[static_cast<std::size_t>(task)]) {
      own(workers).differentiate(chunk, task % kv_heads, {first, std::min(row_count, first + tile)}, take,
                                 [&](cpu::GradientLanes& lanes, const cpu::WideChunk& wide) {
                                   take(lanes, wide);
                                   lanes.add_to_scoring_queries(scoring_gradient);
                                 });
    }
  }
}

void key_gradients(const BackwardRows& rows, Range<ChunkId> chunks, const BlockTable& blocks,
                   const LandmarkRecords& landmarks, const GradientTable& gradients, int threads) {
  const auto row_count = static_cast<std::int64_t>(rows.tokens.size());
  if (row_count == 0 || chunks.empty()) return;
  const ChunkReaders readers(rows, chunks, threads);
  const std::int64_t kv_heads = rows.problem.kv_heads;
  std::vector<ChunkBackward> workers = make_workers(rows, readers, blocks, landmarks, threads);
  std::vector<KeySums> sums(static_cast<std::size_t>(threads), {gradients.shape(), workers[0].column_floats()});
  const std::int64_t tasks = chunks.size() * kv_heads;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t task = 0; task < tasks; ++task) {
    const ChunkId chunk = chunks.begin + task / kv_heads;
    const std::int64_t kv_head = task % kv_heads;
    sums[static_cast<std::size_t>(omp_get_thread_num())].add(own(workers), chunk, kv_head, {0, row_count},
                                                             gradients.of(chunk, kv_head));
  }
}

}  // namespace ringmark::kernels
