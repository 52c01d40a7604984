#include "cluster/prefill/policy_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cluster/options/option_values.h"
#include "cluster/prefill/policy_table.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
constexpr std::int64_t kUsualSinks = 4;  // StreamingLLM's
// They keep or measure what the sparse engine leaves, or are for its kernels on a GPU; or they show what was chosen.
constexpr std::array kOfSparseEngine = {"snapshot", "kv-dtype", "reuse", "kernels", "fetch", "share-gpu", "recall"};
constexpr std::array kOfChoices = {"topk-chunks", "digest"};
constexpr std::array kChoices = {Choice::kGroup, Choice::kHead, Choice::kAll};
constexpr std::array kLandmarkPositions = {LandmarkPositions::kTrue, LandmarkPositions::kStingy};

// The policies of the sparse engine, as it knows them.
struct SparseForm {
  std::string_view name;
  Scorer scorer;
  Fusion fusion;
  Choice choice;  // unless asked otherwise
  WindowEdge edge;
  bool own_chunk;  // the window is the current chunk, there are no sinks
};

constexpr std::array kSparseForms = {
    SparseForm{"hils", Scorer::kHils, Fusion::kHierarchical, Choice::kGroup, WindowEdge::kChunk, false},
    SparseForm{"mean", Scorer::kMean, Fusion::kHierarchical, Choice::kGroup, WindowEdge::kChunk, false},
    SparseForm{"oracle", Scorer::kOracle, Fusion::kHierarchical, Choice::kGroup, WindowEdge::kChunk, false},
    SparseForm{"landmark", Scorer::kLandmark, Fusion::kHierarchical, Choice::kHead, WindowEdge::kChunk, true},
    SparseForm{"moba", Scorer::kMean, Fusion::kUnion, Choice::kHead, WindowEdge::kChunk, true},
    SparseForm{"quest", Scorer::kQuest, Fusion::kUnion, Choice::kHead, WindowEdge::kChunk, true},
    SparseForm{"window", Scorer::kNone, Fusion::kHierarchical, Choice::kGroup, WindowEdge::kToken, false},
    SparseForm{"sinks", Scorer::kNone, Fusion::kHierarchical, Choice::kGroup, WindowEdge::kToken, false},
    SparseForm{"xl", Scorer::kNone, Fusion::kHierarchical, Choice::kGroup, WindowEdge::kSegment, false},
};

const SparseForm* find_form(std::string_view name) {
  const auto found =
      std::find_if(kSparseForms.begin(), kSparseForms.end(), [&](const SparseForm& form) { return form.name == name; });
  return found == kSparseForms.end() ? nullptr : &*found;
}

// The names in the cell of options, without their dashes.
std::set<std::string> options_of(const PolicyRow& row) {
  std::istringstream cell{std::string(row.options)};
  std::set<std::string> names;
  for (std::string word; cell >> word;) names.insert(word.substr(2));
  return names;
}

void refuse_options_of_others(const OptionValues& values, const PolicyRow& policy) {
  const std::set<std::string> own = options_of(policy);
  for (const PolicyRow& other : policy_table()) {
    for (const std::string& name : options_of(other)) {
      const OptionValue* const given = find_value(values, name);
      if (own.contains(name) || given == nullptr || given->text == "false") continue;
      fail_bad_input(fmt::format("{} = {} has no meaning with --policy {}", given->origin, given->text, policy.name));
    }
  }
}

const PolicyRow& read_row(const OptionValues& values) {
  std::vector<std::string> names;
  for (const PolicyRow& row : policy_table()) names.emplace_back(row.name);
  return policy_table()[read_choice_index(values, "policy", names).value_or(0)];
}

}  // namespace

bool is_sparse_engine_policy(std::string_view name) { return find_form(name) != nullptr; }

bool is_kept_policy(const PolicyOptions& policy) {
  const SparseForm* const form = find_form(policy.name);
  return form != nullptr && form->fusion == Fusion::kHierarchical && form->edge == WindowEdge::kChunk &&
         policy.choice.value_or(form->choice) == Choice::kGroup;
}

void refuse_options(const OptionValues& values, std::span<const char* const> names, std::string_view policy) {
  for (const char* const name : names) {
    const OptionValue* const given = find_value(values, name);
    if (given == nullptr || given->text == "false") continue;
    fail_bad_input(fmt::format("{} = {} has no meaning with --policy {}", given->origin, given->text, policy));
  }
}

void refuse_sparse_engine_options(const OptionValues& values, std::string_view policy) {
  refuse_options(values, kOfSparseEngine, policy);
  if (!options_of(*find_policy(policy)).contains("topk")) refuse_options(values, kOfChoices, policy);
  const OptionValue* const backend = find_value(values, "backend");
  if (backend == nullptr || backend->text != "cuda") return;
  fail_bad_input(
      fmt::format("{} = cuda does not go with --policy {}; limit: cpu or reference", backend->origin, policy));
}

AttentionPolicy PolicyOptions::apply(AttentionPolicy stored) const {
  const SparseForm* const form = find_form(name);
  require(form != nullptr, "a policy of the sparse engine");
  AttentionPolicy policy = stored;
  policy.topk = topk.value_or(stored.topk);
  policy.window = form->own_chunk ? 0 : window.value_or(stored.window);
  policy.sinks = form->own_chunk ? 0 : sinks.value_or(stored.sinks);
  policy.scorer = form->scorer;
  policy.choice = choice.value_or(form->choice);
  policy.fusion = form->fusion;
  policy.edge = form->edge;
  policy.segment = segment.value_or(0);
  policy.landmark_positions = landmark_positions;
  if (form->scorer == Scorer::kNone) policy.topk = 0;
  if (name == "window" || name == "xl") policy.sinks = 0;
  if (name == "sinks" && policy.sinks == 0) {
    if (sinks) fail_bad_input("sinks = 0 leaves --policy sinks without any; limit: at least 1");
    policy.sinks = kUsualSinks;
  }
  if (form->edge == WindowEdge::kSegment && !segment) fail_bad_input("--policy xl needs --segment TOKENS");
  return policy;
}

OptionGroup policy_options() {
  const AttentionPolicy policy;
  const AttentionProblem problem;
  const auto from_file = [](std::int64_t fallback) {
    return fmt::format(" (default: the file's metadata, else {})", fallback);
  };
  std::string names;
  for (const PolicyRow& row : policy_table()) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  OptionGroup group("Attention (ringmark policies tells what each policy is and honours)");
  group.add("policy", "NAME", fmt::format("which keys a query attends to: {} (default: hils)", names))
      .add("topk", "K", "chunks that are chosen" + from_file(policy.topk))
      .add("window", "TOKENS",
           "exact local window; for hils, mean and oracle 0 is the current chunk" + from_file(policy.window))
      .add("chunk", "TOKENS", "tokens of a chunk" + from_file(problem.chunk_size))
      .add("sinks", "TOKENS", "first tokens of a document that are always attended" + from_file(policy.sinks))
      .add("scale", "X", "factor of q.k (default: the file's metadata, else 1/sqrt(head_dim))")
      .add("choice", "NAME",
           "who agrees on the chunks: group (the query heads of a kv head), head or all (default: group; head for "
           "landmark, moba and quest)")
      .add("landmark-positions", "NAME",
           "landmark: where a query meets landmarks and chosen chunks: true, where they are in the text, or stingy, in "
           "a "
           "cache of topk chunks; stingy needs --rope, and gives landmark slots positions of their own (default: true)")
      .add("segment", "TOKENS", "xl, compressive: tokens of a segment (no default)")
      .add("memory", "TOKENS",
           "xl, compressive: tokens before the segment that are attended (default: the file's window)");
  return group;
}

PolicyOptions read_policy(const OptionValues& values) {
  const PolicyRow& row = read_row(values);
  refuse_options_of_others(values, row);
  PolicyOptions policy;
  policy.name = row.name;
  policy.topk = read_count(values, "topk", 0, kMaxTopk);
  policy.window = read_count(values, "window", 0, kMaxTokens);
  if (!policy.window) policy.window = read_count(values, "memory", 0, kMaxTokens);
  policy.sinks = read_count(values, "sinks", 0, kMaxTokens);
  policy.segment = read_count(values, "segment", 1, kMaxTokens);
  policy.choice = read_choice<Choice>(values, "choice", kChoices, [](Choice choice) { return name_of(choice); });
  policy.landmark_positions =
      read_choice<LandmarkPositions>(values, "landmark-positions", kLandmarkPositions, [](LandmarkPositions positions) {
        return name_of(positions);
      }).value_or(policy.landmark_positions);
  return policy;
}

}  // namespace ringmark::cluster
