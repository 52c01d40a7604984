// A selection problem in memory and on the device: retrieval queries of some rows, landmark records of some chunks, and
// the window's lse. The records are random numbers: what they summarise does not matter to what chooses among them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/score.h"
#include "kernels/score_chunks.h"
#include "kernels/select_chunks.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/cuda/device_case.h"

namespace ringmark::kernels::cuda {

struct SelectionCase {
  SelectionCase(const AttentionProblem& p, const AttentionPolicy& wanted, std::vector<TokenId> rows, std::uint64_t seed)
      : problem(p),
        policy(wanted),
        grid(problem, policy),
        landmarks(LandmarkShape::of(problem, policy.scorer)),
        random(seed),
        tokens(std::move(rows)),
        queries(p.dtype, row_count(), p.heads, p.head_dim, normal_floats(random, row_count() * p.heads * p.head_dim)),
        lse_window(normal_floats(random, row_count() * p.heads)) {
    for (ChunkId chunk(0); chunk.value() < grid.chunk_count(); ++chunk) {
      if (grid.has_landmark(chunk)) chunks.push_back(chunk);
    }
    for (float& lse : lse_window) lse = one_in(9) ? kMinusInfinity : lse + 3.0f;
  }

  std::int64_t row_count() const { return static_cast<std::int64_t>(tokens.size()); }
  bool one_in(int count) { return random() % static_cast<std::uint64_t>(count) == 0; }

  // Forgets about every other run of seven chunks.
  void leave_gaps() {
    std::erase_if(chunks, [](ChunkId chunk) { return chunk.value() / 7 % 2 == 1; });
  }

  // One in `duplicates` chunks repeats the one before it, so that their scores are equal.
  void fill_records(int duplicates) {
    records.clear();
    for (const ChunkId chunk : chunks) {
      std::vector<float> record = normal_floats(random, landmarks.record_floats());
      for (std::int64_t head = 0; head < landmarks.heads; ++head) {
        if (landmarks.vectors > 1) record[index(landmarks.bias_offset() + head)] = 0.0f;
        for (std::int64_t v = grid.keys_of(chunk).size(); landmarks.vectors > 1 && v < landmarks.vectors; ++v) {
          record[index((head * landmarks.vectors + v) * landmarks.head_dim)] = std::numeric_limits<float>::infinity();
        }
      }
      if (duplicates > 0 && !records.empty() && one_in(duplicates)) {
        std::copy(records.end() - static_cast<std::ptrdiff_t>(record.size()), records.end(), record.begin());
      }
      records.insert(records.end(), record.begin(), record.end());
    }
  }

  CandidateLists score(std::int64_t topk) const {
    AttentionPolicy with_topk = policy;
    with_topk.topk = topk;
    return score_chunks(problem, with_topk, grid, queries.view(), tokens, PackedLandmarks(landmarks, chunks, records),
                        threads());
  }
  Selection select(const CandidateLists& lists) const {
    Selection selection(row_count(), problem.kv_heads, policy.topk);
    select_chunks({&lists, 1}, lse_window, 0, selection, threads());
    return selection;
  }

  static int threads() { return static_cast<int>(std::thread::hardware_concurrency()); }
  static std::size_t index(std::int64_t at) { return static_cast<std::size_t>(at); }

  AttentionProblem problem;
  AttentionPolicy policy;
  partition::SequenceGrid grid;
  LandmarkShape landmarks;
  std::mt19937_64 random;
  std::vector<TokenId> tokens;
  StoredTensor queries;
  std::vector<float> lse_window;
  std::vector<ChunkId> chunks;  // those with a record
  std::vector<float> records;
};

struct DeviceSelectionCase {
  explicit DeviceSelectionCase(const SelectionCase& c)
      : shape(LayerShape::of(c.problem, c.policy, c.grid)),
        queries(upload(c.queries.view(), stream)),
        lse_window(upload(c.lse_window, stream)),
        selection(c.row_count() * shape.kv_heads * shape.topk),
        chosen_scores(c.row_count() * shape.heads * shape.topk),
        rows(upload(row_geometry(c.grid, c.tokens), stream)),
        floats(upload(c.records, stream)) {
    selection.fill_bytes(0x55, stream);
    chosen_scores.fill_bytes(0xFF, stream);
    std::vector<const float*> addresses(SelectionCase::index(c.grid.chunk_count()), nullptr);
    for (std::size_t n = 0; n < c.chunks.size(); ++n) {
      addresses[SelectionCase::index(c.chunks[n].value())] =
          floats.data() + static_cast<std::int64_t>(n) * c.landmarks.record_floats();
    }
    records = upload(addresses, stream);
    stream.wait();
  }

  Geometry geometry() const { return {rows.data(), nullptr, rows.size()}; }

  ringmark::cuda::Stream stream;  // first: everything below is uploaded on it
  LayerShape shape;
  ringmark::cuda::Buffer<std::byte> queries;
  ringmark::cuda::Buffer<float> lse_window;
  ringmark::cuda::Buffer<std::int32_t> selection;
  ringmark::cuda::Buffer<float> chosen_scores;
  ringmark::cuda::Buffer<RowGeometry> rows;
  ringmark::cuda::Buffer<float> floats;
  ringmark::cuda::Buffer<const float*> records;
};

// Text of the first few differences that a test finds.
class Differences {
 public:
  template <class T>
  void add(const std::string& where, const T& got, const T& want) {
    if (++count_ <= 5) text_ += where + ": got " + std::to_string(got) + ", want " + std::to_string(want) + "\n";
  }
  std::int64_t count() const { return count_; }
  std::string text() const {
    return count_ == 0 ? "" : std::to_string(count_) + " differences, the first ones\n" + text_;
  }

 private:
  std::int64_t count_ = 0;
  std::string text_;
};

inline void compare_selections(const std::vector<std::int32_t>& got, const Selection& want, Differences& differences) {
  for (std::size_t i = 0; i < want.chunks.size(); ++i) {
    if (got[i] == want.chunks[i]) continue;
    const auto at = static_cast<std::int64_t>(i) / want.topk;
    differences.add("selection of row " + std::to_string(at / want.choosers) + " kv head " +
                        std::to_string(at % want.choosers) + " slot " +
                        std::to_string(static_cast<std::int64_t>(i) % want.topk),
                    got[i], want.chunks[i]);
  }
}

inline std::vector<TokenId> all_tokens(std::int64_t count) {
  std::vector<TokenId> tokens;
  for (std::int64_t token = 0; token < count; ++token) tokens.emplace_back(token);
  return tokens;
}

}  // namespace ringmark::kernels::cuda
