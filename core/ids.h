// Ids are types: a token, a chunk and a rank do not convert into each other. Positions are 64-bit everywhere.
// Ranges are half-open.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <ios>
#include <type_traits>

namespace ringmark {

template <class Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(std::int64_t value) : value_(value) {}
  constexpr std::int64_t value() const { return value_; }

  constexpr Id& operator++() {
    ++value_;
    return *this;
  }
  constexpr auto operator<=>(const Id&) const = default;
  friend constexpr Id operator+(Id id, std::int64_t steps) { return Id(id.value_ + steps); }
  friend constexpr Id operator-(Id id, std::int64_t steps) { return Id(id.value_ - steps); }
  friend constexpr std::int64_t operator-(Id later, Id earlier) { return later.value_ - earlier.value_; }

  // Written with a template stream: nvcc rejects an in-class friend with auto parameters.
  template <class Stream>
  requires std::is_base_of_v<std::ios_base, Stream>
  friend Stream& operator<<(Stream& out, Id id) {
    out << id.value_;
    return out;
  }

 private:
  std::int64_t value_ = 0;
};

using TokenId = Id<struct TokenTag>;  // slot of the sequence, 0-based, global
using ChunkId = Id<struct ChunkTag>;  // chunk of the sequence, 0-based, global over all packed documents
using RankId = Id<struct RankTag>;    // rank of the ring

template <class T>
struct Range {
  T begin{};
  T end{};

  constexpr std::int64_t size() const { return end > begin ? end - begin : 0; }
  constexpr bool empty() const { return !(end > begin); }
  constexpr bool contains(T id) const { return begin <= id && id < end; }
  constexpr bool operator==(const Range&) const = default;
};

// Rows of a shard: local positions, not tokens.
using RowRange = Range<std::int64_t>;

template <class T>
constexpr Range<T> intersect(Range<T> a, Range<T> b) {
  const T begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace ringmark
