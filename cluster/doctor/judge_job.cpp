#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cluster/doctor/judge.h"
#include "cluster/launch/launch_settings.h"
#include "cluster/options/size_text.h"

namespace ringmark::cluster {
namespace {

// Ranks by a text of theirs.
template <class TextOf>
std::map<std::string, std::vector<int>> group(AllFacts ranks, TextOf text_of) {
  std::map<std::string, std::vector<int>> groups;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    groups[text_of(ranks[rank])].push_back(static_cast<int>(rank));
  return groups;
}

std::string plural(std::size_t count) { return count == 1 ? "" : "s"; }

std::string hosts_of(AllFacts ranks, std::span<const int> of) {
  std::vector<std::string> hosts;
  for (const int rank : of) {
    const std::string& host = ranks[static_cast<std::size_t>(rank)].host;
    if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
  }
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(hosts.size(), kShown); ++i) text += (i == 0 ? "" : ", ") + hosts[i];
  return hosts.size() > kShown ? fmt::format("{} and {} more", text, hosts.size() - kShown) : text;
}

std::string interfaces_text(const RankFacts& facts) {
  std::string text;
  for (const NetworkInterface& interface : facts.interfaces) {
    if (interface.loopback) continue;
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", interface.name, interface.up ? "" : " (down)");
  }
  return fmt::format("{}{}", text.empty() ? "no network interface but the loopback" : text,
                     facts.rdma ? ", InfiniBand or RoCE" : "");
}

// A difference here changes what ranks say to each other.
bool must_agree(const std::string& product, const DoctorOptions& options) {
  if (product == "ringmark" || product == "MPI") return true;
  if (product == "UCX") return options.transport == TransportName::kUcx;
  return options.gpus && product == "NCCL";
}

std::string difference_text(const std::string& product, const std::map<std::string, std::vector<int>>& groups) {
  std::string text;
  for (const auto& [version, of] : groups) {
    text += fmt::format("{}{} on rank{} {}", text.empty() ? "" : ", ", version.empty() ? "none" : version,
                        plural(of.size()), ranges_text(of));
  }
  return fmt::format("{} differs: {}", product == "binary" ? "the executable (a hash of it)" : product, text);
}

Level level_of(const LaunchSetting& setting, bool started) {
  if (setting.harm == Harm::kSlows) return Level::kWarn;
  // NCCL is not asked by ranks that have met over MPI.
  return started && !setting.name.starts_with("NCCL_") ? Level::kWarn : Level::kFail;
}

}  // namespace

std::string ranges_text(std::span<const int> numbers) {
  std::string text;
  for (std::size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    for (end = begin + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1; ++end) {
    }
    text += text.empty() ? "" : ",";
    text +=
        end - begin == 1 ? fmt::format("{}", numbers[begin]) : fmt::format("{}-{}", numbers[begin], numbers[end - 1]);
  }
  return text;
}

Findings judge_hosts(AllFacts ranks) {
  Findings findings;
  for (const auto& [host, of] : group(ranks, [](const RankFacts& facts) { return facts.host; })) {
    findings.push_back(
        {Level::kInfo, "host", fmt::format("{}: rank{} {}", host, plural(of.size()), ranges_text(of)), ""});
  }
  for (const auto& [topology, of] : group(ranks, [](const RankFacts& facts) { return facts.topology; })) {
    findings.push_back({Level::kInfo, "topology", fmt::format("{}: {}", hosts_of(ranks, of), topology), ""});
  }
  for (const auto& [text, of] : group(ranks, interfaces_text)) {
    findings.push_back({Level::kInfo, "interfaces", fmt::format("{}: {}", hosts_of(ranks, of), text), ""});
  }
  return findings;
}

Findings judge_versions(AllFacts ranks, const DoctorOptions& options) {
  std::set<std::string> products;
  for (const RankFacts& facts : ranks) {
    for (const auto& [product, version] : facts.versions) products.insert(product);
  }
  Findings findings;
  std::string same;
  for (const std::string& product : products) {
    const auto groups = group(ranks, [&](const RankFacts& facts) {
      const auto found = facts.versions.find(product);
      return found == facts.versions.end() ? std::string() : found->second;
    });
    if (groups.size() == 1) {
      const std::string& version = groups.begin()->first;
      if (product == "binary") continue;
      same += fmt::format("{}{}", same.empty() ? "" : ", ",
                          product == "MPI" ? version : fmt::format("{} {}", product, version));
      continue;
    }
    findings.push_back({must_agree(product, options) ? Level::kFail : Level::kWarn, "versions",
                        difference_text(product, groups),
                        product == "ringmark" || product == "binary"
                            ? "start the same file on every host, from a shared folder or freshly copied"
                            : fmt::format("install one version of {} on all hosts, or load one module", product)});
  }
  findings.insert(findings.begin(),
                  {Level::kPass, "versions", fmt::format("{}{}", same, ranks.size() == 1 ? "" : " on all ranks"), ""});
  return findings;
}

Findings judge_settings(AllFacts ranks, bool started) {
  Findings findings;
  for (const LaunchSetting& setting : launch_settings()) {
    std::map<std::string, std::vector<int>> by_words;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const FoundSetting& found : ranks[rank].settings) {
        if (found.name == setting.name) by_words[found.found].push_back(static_cast<int>(rank));
      }
    }
    for (const auto& [found, of] : by_words) {
      findings.push_back({level_of(setting, started), "settings",
                          fmt::format("{} (on {}): {}", found, hosts_of(ranks, of), setting.why),
                          std::string(setting.fix)});
    }
  }
  if (!findings.empty()) return findings;
  return {{Level::kPass, "settings", fmt::format("none of {} is known to do harm here", launch_settings().size()), ""}};
}

}  // namespace ringmark::cluster
