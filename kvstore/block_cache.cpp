#include "kvstore/block_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <list>
#include <map>
#include <utility>

#include "core/error.h"

namespace ringmark::kvstore {
namespace {

constexpr std::int64_t kAlignment = 64;

}  // namespace

struct BlockCache::Entry {
  std::byte* memory = nullptr;
  std::list<Entry>::iterator self;
  BlockKey key;
  bool committed = false;
  std::int64_t pins = 0;
};

// Every entry is in one of three lists. Entries never move in memory.
struct BlockCache::State {
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  State(std::int64_t budget, std::int64_t bytes_of_block) : block_bytes(bytes_of_block) {
    require(budget >= 0 && block_bytes > 0, "a cache has a budget and its blocks a size");
    const std::int64_t stride = (block_bytes - 1) / kAlignment * kAlignment + kAlignment;
    capacity = budget / stride;
    if (capacity == 0) return;
    arena.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, static_cast<std::size_t>(capacity * stride))));
    if (arena == nullptr) fail_environment(fmt::format("no memory for a block cache of {} bytes", capacity * stride));
    for (std::int64_t i = 0; i < capacity; ++i) {
      Entry& entry = unused.emplace_back();
      entry.memory = arena.get() + i * stride;
      entry.self = std::prev(unused.end());
    }
  }

  std::span<std::byte> bytes_of(const Entry* entry) const {
    return {entry->memory, static_cast<std::size_t>(block_bytes)};
  }

  void pin(Entry* entry) {
    if (entry->pins++ != 0) return;
    statistics.most_pinned = std::max(statistics.most_pinned, ++pinned);
  }
  void unpin(Entry* entry) {
    if (--entry->pins != 0) return;
    --pinned;
    idle.splice(idle.end(), held, entry->self);
  }
  void give_up(Entry* entry) {
    known.erase(entry->key);
    unused.splice(unused.end(), held, entry->self);
  }

  std::int64_t block_bytes;
  std::int64_t capacity = 0;
  std::unique_ptr<std::byte, Free> arena;
  std::list<Entry> unused;
  std::list<Entry> idle;  // committed and not pinned, the least recently used first
  std::list<Entry> held;  // pinned, or reserved and not yet committed
  std::map<BlockKey, Entry*> known;
  std::int64_t pinned = 0;
  BlockCacheStatistics statistics;
};

BlockCache::BlockCache(std::int64_t budget, std::int64_t block_bytes)
    : state_(std::make_unique<State>(budget, block_bytes)) {}

BlockCache::~BlockCache() = default;

std::int64_t BlockCache::capacity() const { return state_->capacity; }

const BlockCacheStatistics& BlockCache::statistics() const { return state_->statistics; }

std::optional<BlockCache::Pin> BlockCache::find(const BlockKey& key) {
  const auto found = state_->known.find(key);
  if (found == state_->known.end() || !found->second->committed) {
    ++state_->statistics.misses;
    return std::nullopt;
  }
  ++state_->statistics.hits;
  Entry* const entry = found->second;
  if (entry->pins == 0) state_->held.splice(state_->held.end(), state_->idle, entry->self);
  return Pin(state_.get(), entry);
}

std::optional<BlockCache::Place> BlockCache::reserve(const BlockKey& key) {
  require(!state_->known.contains(key), "a block is reserved once");
  auto& from = state_->unused.empty() ? state_->idle : state_->unused;
  if (from.empty()) return std::nullopt;
  Entry* const entry = &from.front();
  if (entry->committed) {
    state_->known.erase(entry->key);
    entry->committed = false;
    ++state_->statistics.evictions;
  }
  entry->key = key;
  state_->held.splice(state_->held.end(), from, entry->self);
  state_->known.emplace(key, entry);
  return Place(state_.get(), entry);
}

BlockCache::Pin::Pin(State* state, Entry* entry) : state_(state), entry_(entry) { state_->pin(entry_); }

BlockCache::Pin::Pin(Pin&& other) noexcept : state_(other.state_), entry_(std::exchange(other.entry_, nullptr)) {}

BlockCache::Pin& BlockCache::Pin::operator=(Pin&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(entry_, other.entry_);
  return *this;
}

BlockCache::Pin::~Pin() {
  if (entry_ != nullptr) state_->unpin(entry_);
}

std::span<const std::byte> BlockCache::Pin::block() const {
  require(entry_ != nullptr, "a pin that was moved from holds no block");
  return state_->bytes_of(entry_);
}

BlockCache::Place::Place(State* state, Entry* entry) : state_(state), entry_(entry) {}

BlockCache::Place::Place(Place&& other) noexcept : state_(other.state_), entry_(std::exchange(other.entry_, nullptr)) {}

BlockCache::Place& BlockCache::Place::operator=(Place&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(entry_, other.entry_);
  return *this;
}

BlockCache::Place::~Place() {
  if (entry_ != nullptr) state_->give_up(entry_);
}

std::span<std::byte> BlockCache::Place::bytes() const {
  require(entry_ != nullptr, "a place that was moved from or committed has no bytes");
  return state_->bytes_of(entry_);
}

BlockCache::Pin BlockCache::Place::commit() && {
  require(entry_ != nullptr, "a place is committed once");
  entry_->committed = true;
  return Pin(state_, std::exchange(entry_, nullptr));
}

}  // namespace ringmark::kvstore
