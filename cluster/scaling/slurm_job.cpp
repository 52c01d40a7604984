#include "cluster/scaling/slurm_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string_view>

#include "cluster/scaling/launched_program.h"

namespace ringmark::cluster {
namespace {

// A word for the shell that can only be a word: what Slurm itself calls hosts and jobs.
bool is_plain(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("-_.,[]").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

std::string field_of(const std::string& record, const std::string& name) {
  const std::size_t at = record.find(name + "=");
  if (at == std::string::npos) return "";
  const std::size_t begin = at + name.size() + 1;
  return record.substr(begin, record.find_first_of(" \n", begin) - begin);
}

}  // namespace

std::optional<std::string> slurm_job() {
  const char* const job = std::getenv("SLURM_JOB_ID");
  if (job == nullptr) return std::nullopt;
  return job;
}

std::vector<std::string> slurm_hosts() {
  const char* const list = std::getenv("SLURM_JOB_NODELIST");
  if (list == nullptr || !is_plain(list)) return {};
  std::istringstream names(output_of(fmt::format("scontrol show hostnames '{}'", list)));
  std::vector<std::string> hosts;
  for (std::string name; names >> name;) hosts.push_back(name);
  return hosts;
}

bool SlurmNode::usable() const {
  constexpr std::array<std::string_view, 6> kUnusable = {"down", "drain", "drng", "fail", "boot", "unk"};
  return state.find('*') == std::string::npos &&
         std::none_of(kUnusable.begin(), kUnusable.end(), [&](std::string_view s) { return state.starts_with(s); });
}

std::vector<SlurmNode> slurm_nodes(const std::vector<std::string>& hosts) {
  std::string list;
  for (const std::string& host : hosts) list += (list.empty() ? "" : ",") + host;
  if (!is_plain(list)) return {};
  std::istringstream lines(output_of(fmt::format("sinfo -h -N -n '{}' -o '%N %t %E'", list)));
  std::vector<SlurmNode> nodes;
  std::set<std::string> seen;  // a node is listed once a partition
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    SlurmNode node;
    words >> node.name >> node.state >> std::ws;
    std::getline(words, node.reason);
    if (seen.insert(node.name).second) nodes.push_back(node);
  }
  return nodes;
}

std::string slurm_end_of(const std::string& job) {
  if (!is_plain(job)) return "";
  const std::string record = output_of(fmt::format("scontrol -o show job '{}'", job));
  const std::string state = field_of(record, "JobState");
  const std::string reason = field_of(record, "Reason");
  if (state.empty()) return "";
  return reason.empty() || reason == "None" ? state : fmt::format("{}: {}", state, reason);
}

}  // namespace ringmark::cluster
