// What decoding promises, as functions of a communicator: run with ranks as threads and, the same bodies, under mpirun.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "runtime/decode.h"
#include "tests/support/test_layer.h"

namespace ringmark::test {

// By step: which sequence each row continues.
using Steps = std::vector<std::vector<std::int64_t>>;

struct DecodeRun : DecodeSetting {
  Steps steps;
  std::filesystem::path snapshot = {};  // where to go on from; empty: nothing is kept yet
  std::filesystem::path save = {};      // where to write what is kept at the end; empty: nowhere
  kvstore::BlockFormat format = kvstore::BlockFormat::kAsInput;
};

struct DecodeOutcome {
  GatheredResult result;           // in token order; rows of tokens that were not decoded mean nothing
  std::vector<TokenId> tokens;     // that were decoded, in order of time
  runtime::DecodeTraffic traffic;  // of all ranks
};

inline constexpr std::int64_t kChunk = 16;
// A random layer of one sequence in chunks of kChunk.
TestLayer one_sequence(std::int64_t tokens, std::int64_t window, std::uint64_t seed);

// Lengths of the packed sequences of a layer.
std::vector<std::int64_t> sequence_lengths(const TestLayer& layer);

// `first` tokens of every sequence (as far as it goes) in one step, the rest in steps of at most `most` rows of
// sequences picked at random. most = 1: token by token.
Steps make_steps(const std::vector<std::int64_t>& lengths, std::int64_t first, std::int64_t most, std::uint64_t seed);

// Decodes tokens of a layer. Collective.
DecodeOutcome run_decode(comm::Communicator& communicator, const TestLayer& layer, const DecodeRun& run);

// The rows of these tokens, and what owns them.
struct TokenRows {
  std::vector<std::byte> q, retrieval_q, k, v;
  runtime::NewTokens view(const AttentionProblem& problem, const std::vector<std::int64_t>& sequences) const;
};
TokenRows take_rows(const TestLayer& layer, const std::vector<TokenId>& tokens);

// Decoding a layer equals one prefill of the whole: the same digest and chosen chunks; out and lse within
// decode_error() of the engine. Returns the traffic of all ranks.
runtime::DecodeTraffic check_decode(comm::Communicator& communicator, const TestLayer& layer, const DecodeRun& run);

// On ranks as threads, that many of them.
DecodeRun run_of(const TestLayer& layer, runtime::Exchange exchange, std::int64_t first, std::int64_t most,
                 std::uint64_t seed);
void check_on(std::initializer_list<int> counts, const TestLayer& layer, const DecodeRun& run);

// Three sequences of different lengths, one of them empty at first sight: it ends before the others have begun.
TestLayer batch_layer(std::int64_t group, Scorer scorer, std::uint64_t seed);

}  // namespace ringmark::test
