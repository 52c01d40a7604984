// The kept K and V of one layer that still grows, as one rank of a job sees it.
//
// A growing chunk stands raw in private memory of its owner, who alone reads it. When its last token comes, the owner
// encodes its blocks into the exposed arena and builds its landmark from the raw ones; the checksums become known to
// all ranks. From then on it never changes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "core/ids.h"
#include "core/problem.h"
#include "kernels/block_table.h"
#include "kernels/landmarks.h"
#include "kvstore/block_codec.h"
#include "kvstore/block_tags.h"
#include "kvstore/snapshot.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"
#include "runtime/block_parcel.h"
#include "runtime/kept_sequences.h"
#include "runtime/new_tokens.h"

namespace ringmark::runtime {

struct KeptShape {
  std::int64_t layer = 0;
  AttentionProblem problem;  // tokens and cu_seqlens: the capacities
  AttentionPolicy policy;
  kvstore::BlockFormat format = kvstore::BlockFormat::kAsInput;
  std::uint64_t generation = 0;

  // Without heads where nothing is selected.
  kernels::LandmarkShape landmark_shape() const {
    return kernels::LandmarkShape::of(problem, policy.selects() ? policy.scorer : Scorer::kNone);
  }
};

// A closed chunk of a snapshot, its blocks in the format of `shape`: blocks [Hkv][encoded bytes]; landmark: a record,
// left alone where the snapshot has none. Throws Error(kBadInput) for a damaged one.
void read_closed_chunk(const kvstore::Snapshot& snapshot, ChunkId kept, const KeptShape& shape,
                       std::span<std::byte> blocks, std::span<float> landmark);

// The shape in which a snapshot goes on growing. `capacities`: the final length of every sequence of the snapshot.
// Throws Error(kBadInput) naming a sequence whose capacity is below what is kept of it.
KeptShape grown_shape(const kvstore::SnapshotManifest& manifest, std::span<const std::int64_t> capacities);

class KeptLayer {
 public:
  // Regions of the transport, which has nothing exposed yet.
  static constexpr int kBlockRegion = 0;
  static constexpr int kLandmarkRegion = 1;

  // Bytes that one of `ranks` ranks exposes, the fullest.
  static std::int64_t exposed_bytes(const KeptShape& shape, int ranks);

  // Collective: an empty layer; exposes and publishes its arenas. Throws Error(kBadInput) for a policy that decode does
  // not know.
  KeptLayer(comm::Communicator& communicator, comm::BlockTransport& transport, const KeptShape& shape, int threads);

  // Collective: everything that a snapshot holds, into an empty layer of the same sequences. The formats may differ:
  // blocks are converted. Throws Error(kBadInput) for a damaged snapshot.
  void load(const kvstore::Snapshot& snapshot);

  const KeptShape& shape() const { return shape_; }
  const AttentionProblem& problem() const { return shape_.problem; }
  const AttentionPolicy& policy() const { return shape_.policy; }
  const partition::SequenceGrid& grid() const { return sequences_.grid(); }
  const partition::Layout& layout() const { return sequences_.layout(); }
  const kvstore::BlockCodec& codec() const { return codec_; }
  const kernels::LandmarkShape& landmark_shape() const { return landmark_shape_; }
  const BlockParcel& parcel() const { return parcel_; }
  const kvstore::BlockTags& tags() const { return tags_; }
  RankId rank() const { return rank_; }

  const KeptSequences& sequences() const { return sequences_; }
  std::vector<TokenId> place(std::span<const std::int64_t> sequences) const { return sequences_.place(sequences); }

  // Collective. When it returns, peers may read what was closed. `stage` names the step.
  void append(std::string_view stage, const NewTokens& rows);

  // Own chunks. Raw blocks: of growing chunks and of those that the last append closed; null of others.
  const std::byte* raw_block(ChunkId chunk, std::int64_t kv_head) const;
  std::span<const std::byte> kept_block(ChunkId chunk, std::int64_t kv_head) const;
  std::span<const float> record(ChunkId chunk) const;
  // Landmarks of this rank's chunks, packed for scoring; those of growing chunks are not set, and no row that is there
  // may choose them.
  const kernels::PackedLandmarks& landmarks() const { return landmarks_; }

  // What this rank has to write; valid until the next append.
  kvstore::SnapshotContents contents() const;

 private:
  using RawChunk = std::vector<std::byte>;  // [Hkv][block]

  bool owns(ChunkId chunk) const { return layout().owner(chunk) == rank_; }
  RawChunk& raw_chunk(ChunkId chunk);
  void store(TokenId token, std::int64_t row, const NewTokens& rows);
  void close(ChunkId chunk, const RowsView& landmark_query);
  std::span<std::byte> kept_chunk(ChunkId chunk) const;
  std::span<float> record_place(ChunkId chunk) const;
  std::vector<ChunkId> own_landmarks() const;
  void pack_landmark(ChunkId chunk);
  std::uint32_t checksum(ChunkId chunk, std::int64_t kv_head) const;
  void load_chunk(const kvstore::Snapshot& snapshot, const ChunkPlace& place);
  void share_checksums(std::string_view stage, std::span<const ChunkId> closed);

  comm::Communicator& communicator_;
  comm::BlockTransport& transport_;
  KeptShape shape_;
  int threads_;
  RankId rank_;
  KeptSequences sequences_;
  kvstore::BlockCodec codec_;
  kernels::LandmarkShape landmark_shape_;
  BlockParcel parcel_;
  kvstore::BlockTags tags_;
  kernels::BlockTable closing_;         // of the chunk that is being closed
  comm::Bytes blocks_;                  // [chunk slot][kv_head][encoded block]
  std::span<float> records_;            // [chunk slot][record]
  std::map<ChunkId, RawChunk> raw_;     // growing, or closed by the last append
  std::vector<ChunkId> just_closed_;    // own chunks, by the last append
  kernels::PackedLandmarks landmarks_;  // of own chunks, set as they close
};

}  // namespace ringmark::runtime
