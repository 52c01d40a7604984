#include "runtime/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "core/error.h"
#include "kernels/attend_chunks.h"
#include "kernels/attend_window.h"
#include "kernels/score_chunks.h"
#include "runtime/exchange_costs.h"
#include "runtime/row_needs.h"
#include "runtime/score_exchange.h"

namespace ringmark::runtime {
namespace {

using kernels::Selection;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

// Results to which nothing was added yet.
struct EmptyRows {
  EmptyRows(std::int64_t rows, std::int64_t heads, std::int64_t head_dim)
      : out(size(rows * heads * head_dim), 0.0f),
        lse(size(rows * heads), -std::numeric_limits<float>::infinity()),
        shape{rows, heads, head_dim} {}
  PartialRows view() { return {{out.data(), shape}, {lse.data(), {shape[0], shape[1]}}}; }

  std::vector<float> out;
  std::vector<float> lse;
  std::array<std::int64_t, 3> shape;
};

}  // namespace

DecodeTraffic& DecodeTraffic::operator+=(const DecodeTraffic& other) {
  bytes_pulled += other.bytes_pulled;
  bytes_pushed += other.bytes_pushed;
  bytes_gathered += other.bytes_gathered;
  bytes_of_plans += other.bytes_of_plans;
  blocks_pulled += other.blocks_pulled;
  blocks_pushed += other.blocks_pushed;
  cache_hits += other.cache_hits;
  return *this;
}

void DecodeStep::add(DecodeStep part, std::int64_t first_row) {
  if (tokens.empty() && first_row == 0) {  // usually the whole step
    *this = std::move(part);
    return;
  }
  for (std::int64_t& row : part.rows) row += first_row;
  const auto append = [](auto& all, const auto& more) { all.insert(all.end(), more.begin(), more.end()); };
  append(tokens, part.tokens);
  append(rows, part.rows);
  append(out, part.out);
  append(lse, part.lse);
  append(selection.chunks, part.selection.chunks);
  selection.rows += part.selection.rows;
  traffic += part.traffic;
  stop = stop || part.stop;
}

// A step's rows, or the part of them that is done at once.
struct Decoder::Tile {
  Tile(const NewTokens& new_rows, const KeptLayer& layer)
      : rows(new_rows),
        tokens(layer.place(new_rows.sequences)),
        result(new_rows.rows(), layer.problem().heads, layer.problem().head_dim) {
    for (const TokenId token : tokens) homes.push_back(layer.layout().owner(layer.grid().chunk_of(token)));
  }
  // hils scores with the retrieval queries, whose calibration was trained for it.
  const RowsView& scoring_queries(const AttentionPolicy& policy) const {
    return policy.scorer == Scorer::kHils ? rows.retrieval_queries : rows.queries;
  }

  const NewTokens& rows;
  std::vector<TokenId> tokens;
  std::vector<RankId> homes;
  EmptyRows result;  // of all rows; those of this rank are filled
  Selection selection;
  DecodeTraffic traffic;
  bool stop = false;
};

std::int64_t Decoder::least_cache_bytes(const KeptShape& shape, int ranks) {
  const bool decodes = shape.format != kvstore::BlockFormat::kAsInput;
  if (ranks == 1 && !decodes) return 0;
  const partition::SequenceGrid grid(shape.problem, shape.policy);
  return most_chunks_of_a_row(shape.problem, shape.policy, grid) * shape.problem.kv_heads *
         BlockReader::entry_bytes(shape);
}

Decoder::Decoder(comm::Communicator& communicator, comm::BlockTransport& transport, KeptLayer& layer,
                 const DecodeOptions& options)
    : communicator_(communicator),
      layer_(layer),
      options_(options),
      costs_(options.costs ? *options.costs : measure_exchange_costs(communicator, transport, layer)),
      cache_(options.cache_bytes, BlockReader::entry_bytes(layer.shape())),
      reader_(layer, transport, cache_),
      planner_(options.exchange, costs_) {
  const std::int64_t least = least_cache_bytes(layer.shape(), communicator.size());
  if (options.cache_bytes < least) {
    fail_bad_input(fmt::format("cache of {} bytes is below the {} bytes that one row may need at once",
                               options.cache_bytes, least));
  }
  clock_.record_in(options.trace);
}

std::string Decoder::stage(std::string_view work) const {
  return fmt::format("layer {} step {}: {}", layer_.shape().layer, steps_, work);
}

DecodeStep Decoder::step(const NewTokens& rows, bool stop) {
  layer_.place(rows.sequences);
  DecodeStep whole;
  whole.selection = Selection(0, layer_.problem().kv_heads, layer_.policy().selects() ? layer_.policy().topk : 0);
  for (std::int64_t begin = 0; begin < rows.rows(); begin += options_.tile_rows) {
    whole.add(run_tile(rows.slice(begin, std::min(rows.rows(), begin + options_.tile_rows)), stop), begin);
  }
  ++steps_;
  return whole;
}

DecodeStep Decoder::run_tile(const NewTokens& rows, bool stop) {
  Tile tile(rows, layer_);
  try {
    {
      const auto span = clock_.time("append");
      layer_.append(stage("append"), rows);  // K and V to their owners; chunks close
    }
    attend_window(tile);  // of the rows whose home is here
    select(tile, stop);   // one all-gather: every rank knows every row's choice
    attend_chosen(tile);  // blocks come here, or partial results do
  } catch (const Error& error) {
    // Reads and checksums do not know the step.
    const std::string text = error.what();
    if (text.find(stage("")) != std::string::npos) throw;
    throw Error(error.code(), fmt::format("{} ({})", text, stage("decode")));
  }
  return finish(tile);
}

void Decoder::attend_window(Tile& tile) {
  const auto span = clock_.time("window");
  const partition::SequenceGrid& grid = layer_.grid();
  const std::int64_t kv_heads = layer_.problem().kv_heads;
  const auto needs = [&](std::int64_t row, std::vector<BlockId>& blocks) {
    const TokenId query = tile.tokens[size(row)];
    const auto add = [&](Range<ChunkId> chunks) {
      for (ChunkId chunk = chunks.begin; chunk < chunks.end; ++chunk) {
        for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) blocks.push_back({chunk, kv_head});
      }
    };
    const Range<TokenId> sinks = grid.sinks_of(query);
    if (!sinks.empty()) add({grid.chunk_of(sinks.begin), grid.chunk_of(sinks.end - 1) + 1});
    add({grid.chunk_of(grid.window_of(query).begin), grid.chunk_of(query)});
  };
  const auto counts = [&](const BlockId& block) { return reader_.needs_cache(block); };
  // Rows of one chunk together: they read it raw, rows of later chunks read it as it is kept.
  for (std::int64_t begin = 0, end = 0; begin < tile.rows.rows(); begin = end) {
    const ChunkId chunk = grid.chunk_of(tile.tokens[size(begin)]);
    for (end = begin; end < tile.rows.rows() && grid.chunk_of(tile.tokens[size(end)]) == chunk;) ++end;
    if (tile.homes[size(begin)] != layer_.rank()) continue;
    for (const HeldRows& part : cut_rows({begin, end}, needs, counts, cache_.capacity())) {
      reader_.hold(part.needs);
      for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        reader_.table().set(chunk, kv_head, layer_.raw_block(chunk, kv_head));
      }
      const PartialRows into = tile.result.view();
      kernels::attend_window(layer_.problem(), grid, tile.rows.queries, tile.tokens, part.rows, reader_.table(),
                             into.out, into.lse, options_.threads);
      for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) reader_.table().set(chunk, kv_head, nullptr);
      reader_.release();
    }
  }
}

void Decoder::select(Tile& tile, bool stop) {
  const auto span = clock_.time("select");
  const bool selects = layer_.policy().selects();
  const std::int64_t topk = selects ? layer_.policy().topk : 0;
  kernels::CandidateLists scored(tile.rows.rows(), layer_.problem().heads, topk);
  if (selects) {
    const auto part = clock_.time("score");
    scored =
        kernels::score_chunks(layer_.problem(), layer_.policy(), layer_.grid(), tile.scoring_queries(layer_.policy()),
                              tile.tokens, layer_.landmarks(), options_.threads);
  }
  const StepScores scores =
      exchange_scores(communicator_, stage("gather scores"), scored, tile.homes, tile.result.lse, stop);
  tile.stop = scores.stop;
  tile.traffic.bytes_gathered = scores.bytes_received;
  tile.selection = Selection(tile.rows.rows(), layer_.problem().kv_heads, topk);
  kernels::select_chunks(scores.parts, scores.lse_window, 0, tile.selection, options_.threads);
}

// Who attends what, after the choice of every row is known.
struct Decoder::Exchanged {
  Selection here;                                       // by rows of this rank, on blocks that are here or come here
  Selection for_others;                                 // by rows of other ranks, on blocks of this rank
  std::vector<std::vector<PartialId>> sends, receives;  // by rank
};

Decoder::Exchanged Decoder::plan_exchange(Tile& tile) {
  const std::span<const RankId> homes = tile.homes;
  const auto is_mine = [&](std::int64_t row) { return homes[size(row)] == layer_.rank(); };
  Exchanged exchanged;
  if (options_.exchange == Exchange::kPull) {  // every block comes to its rows: nobody has to know what others want
    exchanged.here = part_of(tile.selection, [&](std::int64_t row, const BlockId&) { return is_mine(row); });
    return exchanged;
  }
  const std::vector<Demands> wanted = demands_of_home(tile.selection, homes, layer_.layout(), layer_.rank());
  const std::vector<Demands> on_me = demands_on_owner(tile.selection, homes, layer_.layout(), layer_.rank());
  Choices pushed_to_me, pushed_by_me;
  for (const Demands& demands : wanted) {
    pushed_to_me.push_back(planner_.plan(demands, [&](const BlockId& block) { return reader_.is_here(block); }));
  }
  std::vector<BlockId> to_me;
  for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
    exchanged.receives.push_back(partials_of(wanted[rank], pushed_to_me[rank]));
    const std::vector<BlockId> from_rank = pushed_blocks(wanted[rank], pushed_to_me[rank]);
    to_me.insert(to_me.end(), from_rank.begin(), from_rank.end());
  }
  std::sort(to_me.begin(), to_me.end());
  tile.traffic.blocks_pushed = static_cast<std::int64_t>(to_me.size());
  exchanged.here = part_of(tile.selection, [&](std::int64_t row, const BlockId& block) {
    return is_mine(row) && !std::binary_search(to_me.begin(), to_me.end(), block);
  });
  // The first blocks are on their way while the rest is planned and what others wait for is attended.
  const std::vector<HeldRows> parts = parts_of(exchanged.here);
  if (!parts.empty()) reader_.start(parts.front().needs);

  if (options_.exchange == Exchange::kAuto) {
    ReceivedChoices choices = exchange_choices(communicator_, stage("exchange choices"), pushed_to_me, on_me);
    pushed_by_me = std::move(choices.pushed);
    tile.traffic.bytes_of_plans = choices.bytes;
  } else {
    for (const Demands& demands : on_me) pushed_by_me.emplace_back(demands.size(), true);
  }
  std::vector<std::vector<BlockId>> by_me;  // by home
  for (std::size_t rank = 0; rank < on_me.size(); ++rank) {
    exchanged.sends.push_back(partials_of(on_me[rank], pushed_by_me[rank]));
    by_me.push_back(pushed_blocks(on_me[rank], pushed_by_me[rank]));
  }
  exchanged.for_others = part_of(tile.selection, [&](std::int64_t row, const BlockId& block) {
    const std::vector<BlockId>& blocks = by_me[size(homes[size(row)].value())];
    return !is_mine(row) && std::binary_search(blocks.begin(), blocks.end(), block);
  });
  return exchanged;
}

void Decoder::attend_chosen(Tile& tile) {
  const auto span = clock_.time("attend");
  if (tile.selection.topk == 0) return;
  const Exchanged exchanged = plan_exchange(tile);
  if (options_.exchange == Exchange::kPull) return attend(tile, exchanged.here, tile.result.view());
  // What others wait for comes first, and is on its way while this rank goes on.
  EmptyRows partial(tile.rows.rows(), layer_.problem().heads, layer_.problem().head_dim);
  attend(tile, exchanged.for_others, partial.view());
  PartialExchange partials(communicator_, stage("exchange partials"), layer_.problem().group(), exchanged.sends,
                           partial.view(), exchanged.receives);
  attend(tile, exchanged.here, tile.result.view());
  tile.traffic.bytes_pushed = partials.merge_into(tile.result.view());
}

std::vector<HeldRows> Decoder::parts_of(const Selection& chosen) const {
  const auto needs = [&](std::int64_t row, std::vector<BlockId>& blocks) {
    for (std::int64_t kv_head = 0; kv_head < chosen.choosers; ++kv_head) {
      for (const std::int32_t chunk : chosen.chosen(row, kv_head)) blocks.push_back({ChunkId(chunk), kv_head});
    }
  };
  const auto counts = [&](const BlockId& block) { return reader_.needs_cache(block); };
  return cut_rows({0, chosen.rows}, needs, counts, cache_.capacity());
}

void Decoder::attend(const Tile& tile, const Selection& chosen, const PartialRows& into) {
  for (const HeldRows& part : parts_of(chosen)) {
    if (part.needs.empty()) continue;
    reader_.hold(part.needs);
    kernels::attend_chunks(layer_.problem(), layer_.grid(), tile.rows.queries, tile.scoring_queries(layer_.policy()),
                           chosen, part.rows, reader_.table(), reader_.records(), into.out, into.lse, options_.threads);
    reader_.release();
  }
}

DecodeStep Decoder::finish(Tile& tile) {
  DecodeStep step;
  const std::int64_t heads = layer_.problem().heads;
  const std::int64_t width = heads * layer_.problem().head_dim;
  for (std::int64_t row = 0; row < tile.rows.rows(); ++row) {
    if (tile.homes[size(row)] != layer_.rank()) continue;
    step.rows.push_back(row);
    const auto out = tile.result.out.begin() + row * width;
    const auto lse = tile.result.lse.begin() + row * heads;
    step.out.insert(step.out.end(), out, out + width);
    step.lse.insert(step.lse.end(), lse, lse + heads);
  }
  const BlockReader::Counts counts = reader_.take_counts();
  tile.traffic.bytes_pulled = counts.bytes_pulled;
  tile.traffic.blocks_pulled = counts.blocks_pulled;
  tile.traffic.cache_hits = counts.cache_hits;
  step.tokens = std::move(tile.tokens);
  step.selection = std::move(tile.selection);
  step.traffic = tile.traffic;
  step.stop = tile.stop;
  return step;
}

}  // namespace ringmark::runtime
