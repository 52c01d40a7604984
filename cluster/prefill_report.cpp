#include "cluster/prefill_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cluster/size_text.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

double ratio(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

std::string temporary_path(const std::string& path) { return fmt::format("{}.{}.tmp", path, getpid()); }

}  // namespace

std::string digest_text(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

std::string report_table(const PrefillReport& r) {
  const AttentionProblem& p = r.problem;
  std::string table;
  const auto row = [&](std::string_view name, const std::string& value) {
    table += fmt::format("{:<18}{}\n", name, value);
  };
  row("tokens", fmt::format("{} in {} document{}", p.tokens, r.documents, r.documents == 1 ? "" : "s"));
  row("heads", fmt::format("{} query, {} kv, d {}, {}", p.heads, p.kv_heads, p.head_dim, name_of(p.dtype)));
  row("policy",
      fmt::format("{}: chunk {}{}, window {}, top {}, sinks {}", name_of(r.policy.scorer), p.chunk_size,
                  p.landmark_slots ? " with landmark slot" : "", r.policy.window, r.policy.topk, r.policy.sinks));
  row("ranks",
      fmt::format("{} x {} thread{}, {} ({:.2f} max/mean), {} {}", r.ranks, r.threads, r.threads == 1 ? "" : "s",
                  r.balance, r.balance_max_over_mean, r.backend, r.instruction_set));
  if (!r.device.empty()) row("device", r.device);
  row("transport", r.transport_reason);
  if (!r.fetch.empty()) row("fetch", r.fetch);
  row("merge", r.merge);
  row("selection digest", digest_text(r.selection_digest));
  if (r.pairs > 0) {
    row("settled exactly",
        fmt::format("{} of {} choices ({:.2f}%)", r.exact_pairs, r.pairs, 100.0 * ratio(r.exact_pairs, r.pairs)));
  }
  std::string seconds;
  for (const auto& [stage, value] : r.seconds)
    seconds += fmt::format("{}{} {:.3f}", seconds.empty() ? "" : ", ", stage, value);
  row("seconds", seconds);
  row("bytes fetched", fmt::format("{} of a ring's {} ({:.1f}%)", bytes_text(r.bytes_fetched), bytes_text(r.bytes_ring),
                                   100.0 * ratio(r.bytes_fetched, r.bytes_ring)));
  row("bytes merged", bytes_text(r.bytes_merged));
  row("union ratio", fmt::format("{:.2f} at 16 queries, {:.2f} at 32, {:.2f} at 64", r.union_ratio[0], r.union_ratio[1],
                                 r.union_ratio[2]));
  row("peak memory", fmt::format("{} a rank", bytes_text(r.peak_memory_bytes)));
  if (r.needles_planted > 0) row("needles", fmt::format("{} of {} recovered", r.needles_recovered, r.needles_planted));
  return table;
}

std::string report_json(const PrefillReport& r) {
  nlohmann::ordered_json json;
  json["ringmark"] = RINGMARK_VERSION;
  json["tokens"] = r.problem.tokens;
  json["ranks"] = r.ranks;
  json["selection_digest"] = digest_text(r.selection_digest);
  for (const auto& [stage, value] : r.seconds) json["seconds"][stage] = value;
  json["bytes_fetched"] = r.bytes_fetched;
  json["bytes_ring"] = r.bytes_ring;
  json["bytes_ratio"] = ratio(r.bytes_fetched, r.bytes_ring);
  json["bytes_merged"] = r.bytes_merged;
  json["union_ratio"] = {{"16", r.union_ratio[0]}, {"32", r.union_ratio[1]}, {"64", r.union_ratio[2]}};
  json["peak_memory_bytes"] = r.peak_memory_bytes;
  json["needles_planted"] = r.needles_planted;
  json["needles_recovered"] = r.needles_recovered;
  json["transport"] = r.transport;
  json["merge"] = r.merge;
  json["balance"] = r.balance;
  json["balance_max_over_mean"] = r.balance_max_over_mean;
  json["backend"] = r.backend;
  json["instruction_set"] = r.instruction_set;
  json["threads"] = r.threads;
  if (!r.device.empty()) {
    json["device"] = r.device;
    json["fetch"] = r.fetch;
    json["choices"] = r.pairs;
    json["choices_settled_exactly"] = r.exact_pairs;
  }
  json["heads"] = r.problem.heads;
  json["kv_heads"] = r.problem.kv_heads;
  json["head_dim"] = r.problem.head_dim;
  json["dtype"] = name_of(r.problem.dtype);
  json["chunk_size"] = r.problem.chunk_size;
  json["window"] = r.policy.window;
  json["topk"] = r.policy.topk;
  json["sinks"] = r.policy.sinks;
  json["scorer"] = name_of(r.policy.scorer);
  return json.dump(2) + "\n";
}

void check_text_file(const std::string& path) {
  if (std::filesystem::is_directory(path)) fail_bad_input(fmt::format("{}: cannot be written: it is a folder", path));
  const std::string temporary = temporary_path(path);
  std::FILE* file = std::fopen(temporary.c_str(), "wx");
  if (file == nullptr) fail_bad_input(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  std::fclose(file);
  std::remove(temporary.c_str());
}

void write_text_file(const std::string& path, const std::string& text) {
  const std::string temporary = temporary_path(path);
  std::FILE* file = std::fopen(temporary.c_str(), "wx");
  bool good = file != nullptr;
  if (good) {
    good = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0 &&
           fsync(fileno(file)) == 0;
    good = std::fclose(file) == 0 && good;
  }
  if (good && std::rename(temporary.c_str(), path.c_str()) == 0) return;
  const std::string cause = std::strerror(errno);
  std::remove(temporary.c_str());
  fail_environment(fmt::format("{}: cannot write: {}", path, cause));
}

}  // namespace ringmark::cluster
