#include "kvstore/block_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"

namespace ringmark::kvstore {
namespace {

constexpr std::int64_t kBlock = 100;  // bytes; 128 in the arena
constexpr std::int64_t kStride = 128;

static_assert(std::is_nothrow_move_constructible_v<BlockCache::Pin> && !std::is_copy_constructible_v<BlockCache::Pin>);
static_assert(!std::is_copy_constructible_v<BlockCache::Place> && !std::is_copy_assignable_v<BlockCache::Place>);
// Only a place that is given away can be committed.
template <class Place>
concept CommitsWhereItStands = requires(Place& place) {
  place.commit();
};
static_assert(!CommitsWhereItStands<BlockCache::Place>);

BlockKey key_of(std::int64_t chunk, std::uint64_t generation = 1) {
  return {.layer = 0, .chunk = ChunkId(chunk), .kv_head = 0, .generation = generation};
}

BlockCache::Pin insert(BlockCache& cache, const BlockKey& key, int mark) {
  auto place = cache.reserve(key);
  EXPECT_TRUE(place.has_value());
  std::memset(place->bytes().data(), mark, place->bytes().size());
  return std::move(*place).commit();
}

TEST(BlockCache, holds_what_the_budget_says) {
  EXPECT_EQ(BlockCache(0, kBlock).capacity(), 0);
  EXPECT_EQ(BlockCache(kStride - 1, kBlock).capacity(), 0);
  EXPECT_EQ(BlockCache(3 * kStride, kBlock).capacity(), 3);
  BlockCache none(0, kBlock);
  EXPECT_FALSE(none.find(key_of(1)).has_value());
  EXPECT_FALSE(none.reserve(key_of(1)).has_value());
  try {
    BlockCache(std::int64_t{1} << 60, kBlock);
    FAIL() << "a quintillion bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("1152921504606846976"), std::string::npos) << error.what();
  }
}

TEST(BlockCache, evicts_the_least_recently_used) {
  BlockCache cache(2 * kStride, kBlock);
  insert(cache, key_of(1), 1);
  insert(cache, key_of(2), 2);
  EXPECT_TRUE(cache.find(key_of(1)).has_value());  // now 2 is the older one
  insert(cache, key_of(3), 3);
  EXPECT_FALSE(cache.find(key_of(2)).has_value());
  EXPECT_EQ(cache.find(key_of(1))->block()[99], std::byte{1});
  EXPECT_EQ(cache.find(key_of(3))->block()[0], std::byte{3});
  EXPECT_EQ(cache.statistics().hits, 3);
  EXPECT_EQ(cache.statistics().misses, 1);
  EXPECT_EQ(cache.statistics().evictions, 1);
  EXPECT_EQ(cache.statistics().most_pinned, 1);
}

TEST(BlockCache, never_evicts_what_is_pinned) {
  BlockCache cache(2 * kStride, kBlock);
  auto one = insert(cache, key_of(1), 1);
  auto again = cache.find(key_of(1));
  auto two = insert(cache, key_of(2), 2);
  EXPECT_FALSE(cache.reserve(key_of(3)).has_value());
  one = std::move(two);  // swaps: both blocks stay pinned
  EXPECT_FALSE(cache.reserve(key_of(3)).has_value());
  EXPECT_EQ(one.block()[0], std::byte{2});
  {
    const auto gone = std::move(one);
    EXPECT_THROW(one.block(), Error);
  }
  EXPECT_TRUE(cache.reserve(key_of(3)).has_value());  // in the place of 2
  EXPECT_EQ(again->block()[0], std::byte{1});
  EXPECT_EQ(cache.statistics().most_pinned, 2);
}

TEST(BlockCache, a_block_is_not_there_before_it_is_committed) {
  BlockCache cache(kStride, kBlock);
  {
    auto place = cache.reserve(key_of(1));
    EXPECT_FALSE(cache.find(key_of(1)).has_value());
    EXPECT_THROW(cache.reserve(key_of(1)), Error);
    EXPECT_FALSE(cache.reserve(key_of(2)).has_value());
    auto moved = std::move(*place);
    EXPECT_THROW(place->bytes(), Error);
    EXPECT_THROW(std::move(*place).commit(), Error);
  }
  EXPECT_FALSE(cache.find(key_of(1)).has_value());
  insert(cache, key_of(1), 7);
  EXPECT_EQ(cache.find(key_of(1))->block()[0], std::byte{7});
}

TEST(BlockCache, contents_of_another_generation_are_another_block) {
  BlockCache cache(4 * kStride, kBlock);
  insert(cache, key_of(1, 1), 1);
  EXPECT_FALSE(cache.find(key_of(1, 2)).has_value());
  insert(cache, key_of(1, 2), 2);
  EXPECT_EQ(cache.find(key_of(1, 1))->block()[0], std::byte{1});
  EXPECT_EQ(cache.find(key_of(1, 2))->block()[0], std::byte{2});
  EXPECT_FALSE(cache.find({.layer = 1, .chunk = ChunkId(1), .kv_head = 0, .generation = 1}).has_value());
  EXPECT_FALSE(cache.find({.layer = 0, .chunk = ChunkId(1), .kv_head = 1, .generation = 1}).has_value());
}

// The same steps on the cache and on vectors that are searched from one end to the other.
class Model {
 public:
  explicit Model(std::size_t capacity) : capacity_(capacity) {}

  struct Block {
    std::int64_t chunk;
    int mark;
    int pins = 0;
    bool committed = false;
  };
  Block* find(std::int64_t chunk) {
    const auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) { return b.chunk == chunk; });
    return found == blocks_.end() ? nullptr : &*found;
  }
  bool reserve(std::int64_t chunk, int mark) {
    if (blocks_.size() == capacity_) {
      const auto oldest =
          std::find_if(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.committed && b.pins == 0; });
      if (oldest == blocks_.end()) return false;
      blocks_.erase(oldest);
      ++evictions;
    }
    blocks_.push_back({chunk, mark});
    return true;
  }
  void pin(std::int64_t chunk) { ++find(chunk)->pins; }
  // A block counts as used when its last pin goes.
  void unpin(std::int64_t chunk) {
    if (--find(chunk)->pins != 0) return;
    const Block block = *find(chunk);
    remove(chunk);
    blocks_.push_back(block);
  }
  void remove(std::int64_t chunk) {
    std::erase_if(blocks_, [&](const Block& b) { return b.chunk == chunk; });
  }
  std::int64_t pinned() const {
    return std::count_if(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.pins > 0; });
  }

  std::int64_t evictions = 0;

 private:
  std::size_t capacity_;
  std::vector<Block> blocks_;  // the least recently used first
};

struct HeldPin {
  std::int64_t chunk;
  int mark;
  BlockCache::Pin pin;
};

struct HeldPlace {
  std::int64_t chunk;
  int mark;
  BlockCache::Place place;
};

template <class Held>
Held take(std::vector<Held>& from, std::size_t index) {
  Held taken = std::move(from[index]);
  from.erase(from.begin() + static_cast<std::ptrdiff_t>(index));
  return taken;
}

void run_random_steps(std::uint64_t seed, std::size_t capacity, int steps) {
  std::mt19937_64 random(seed);
  BlockCache cache(static_cast<std::int64_t>(capacity) * kStride, kBlock);
  Model model(capacity);
  std::vector<HeldPin> pins;
  std::vector<HeldPlace> places;
  std::int64_t hits = 0, misses = 0, most_pinned = 0;
  for (int step = 0; step < steps; ++step) {
    const auto chunk = static_cast<std::int64_t>(random() % (2 * capacity + 1));
    const int mark = step % 251;
    Model::Block* const known = model.find(chunk);
    switch (random() % 5) {
      case 0: {
        auto pin = cache.find(key_of(chunk));
        ASSERT_EQ(pin.has_value(), known != nullptr && known->committed);
        ++(pin.has_value() ? hits : misses);
        if (!pin.has_value()) break;
        model.pin(chunk);
        pins.push_back({chunk, known->mark, std::move(*pin)});
        break;
      }
      case 1: {
        if (known != nullptr) break;
        auto place = cache.reserve(key_of(chunk));
        ASSERT_EQ(place.has_value(), model.reserve(chunk, mark));
        if (!place.has_value()) break;
        std::memset(place->bytes().data(), mark, place->bytes().size());
        places.push_back({chunk, mark, std::move(*place)});
        break;
      }
      case 2: {
        if (places.empty()) break;
        HeldPlace held = take(places, random() % places.size());
        model.find(held.chunk)->committed = true;
        model.pin(held.chunk);
        pins.push_back({held.chunk, held.mark, std::move(held.place).commit()});
        break;
      }
      case 3: {
        if (places.empty() || random() % 4 != 0) break;
        model.remove(take(places, random() % places.size()).chunk);
        break;
      }
      default: {
        if (pins.empty()) break;
        model.unpin(take(pins, random() % pins.size()).chunk);
        break;
      }
    }
    most_pinned = std::max(most_pinned, model.pinned());
    std::set<const std::byte*> addresses;
    for (const HeldPin& held : pins) {
      ASSERT_EQ(held.pin.block().size(), static_cast<std::size_t>(kBlock));
      ASSERT_EQ(held.pin.block().front(), std::byte{static_cast<std::uint8_t>(held.mark)});
      ASSERT_EQ(held.pin.block().back(), std::byte{static_cast<std::uint8_t>(held.mark)});
      addresses.insert(held.pin.block().data());
    }
    ASSERT_EQ(std::ssize(addresses), model.pinned());
    ASSERT_EQ(cache.statistics().hits, hits);
    ASSERT_EQ(cache.statistics().misses, misses);
    ASSERT_EQ(cache.statistics().evictions, model.evictions);
    ASSERT_EQ(cache.statistics().most_pinned, most_pinned);
  }
  EXPECT_GT(hits, 0);
  EXPECT_GT(misses, 0);
}

TEST(BlockCache, behaves_like_the_model) {
  for (const std::size_t capacity : {1u, 2u, 5u, 16u}) run_random_steps(capacity, capacity, 20000);
}

}  // namespace
}  // namespace ringmark::kvstore
