#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cluster/doctor/judge.h"
#include "cluster/options/size_text.h"

namespace ringmark::cluster {
namespace {

// Of Open MPI's btl_vader, a rank: below this it says "not enough space for /dev/shm/vader_segment".
constexpr std::int64_t kMpiSegment = std::int64_t{4} << 20;
// What a container engine gives by itself. Blocks of a real job are larger, and then the slower transport is taken.
constexpr std::int64_t kContainerDefault = std::int64_t{64} << 20;
// Registered buffers of a network adapter; NCCL and UCX pin tens of MiB.
constexpr std::uint64_t kPinned = std::uint64_t{64} << 20;
// Files and libraries' own, and what a connection to each peer may take.
constexpr std::uint64_t kOwnFiles = 256;
constexpr std::uint64_t kFilesAPeer = 4;

struct Host {
  std::vector<int> ranks;
  const RankFacts* first = nullptr;
};

std::map<std::string, Host> by_host(AllFacts ranks) {
  std::map<std::string, Host> hosts;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    Host& host = hosts[ranks[rank].host];
    if (host.first == nullptr) host.first = &ranks[rank];
    host.ranks.push_back(static_cast<int>(rank));
  }
  return hosts;
}

std::string limit_text(std::uint64_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : bytes_text(static_cast<std::int64_t>(limit));
}

// Of one host, without its name: hosts that are alike share a line.
Findings judge_host_limits(const Host& host, std::size_t all, const DoctorOptions& options) {
  Findings findings;
  const RankFacts& facts = *host.first;
  const bool pins = facts.rdma || options.transport == TransportName::kUcx;
  if (pins && facts.locked_memory != RLIM_INFINITY && facts.locked_memory < kPinned) {
    findings.push_back({Level::kWarn, "limits",
                        fmt::format("{} of locked memory (ulimit -l): a network adapter cannot pin its buffers",
                                    limit_text(facts.locked_memory)),
                        "ulimit -l unlimited; for Slurm LimitMEMLOCK=infinity in the unit of slurmd"});
  }
  const std::uint64_t files = kOwnFiles + kFilesAPeer * all;
  if (facts.open_files < files) {
    findings.push_back({Level::kWarn, "limits",
                        fmt::format("{} open files (ulimit -n), {} rank{} may need {}", facts.open_files, all,
                                    all == 1 ? "" : "s", files),
                        "ulimit -n $(ulimit -Hn); for Slurm LimitNOFILE=65536 in the unit of slurmd"});
  }
  return findings;
}

Finding judge_leftovers(const std::vector<std::string>& files) {
  const bool one = files.size() == 1;
  return {Level::kWarn, "shm",
          fmt::format("{} of dead jobs, used by nobody: {}{}", one ? "a file" : fmt::format("{} files", files.size()),
                      files.front(), one ? "" : ", ..."),
          one ? "rm " + files.front() : "rm /dev/shm/{vader_segment,osc_rdma,ucx_shm_posix,nccl}*"};
}

Findings judge_shared_memory(const Host& host) {
  const RankFacts& facts = *host.first;
  const std::int64_t needed = kMpiSegment * static_cast<std::int64_t>(host.ranks.size());
  const std::string sizes =
      fmt::format("/dev/shm of {}, {} free", bytes_text(facts.shared_bytes), bytes_text(facts.shared_free));
  const char* fix = "mount -o remount,size=50% /dev/shm; in a container: docker run --shm-size=16g";
  Findings findings;
  if (facts.shared_bytes == 0) {
    findings.push_back({Level::kWarn, "shm", "no /dev/shm", "mount -t tmpfs tmpfs /dev/shm"});
  } else if (facts.shared_free < needed) {
    findings.push_back({Level::kWarn, "shm", fmt::format("{}: MPI alone takes {}", sizes, bytes_text(needed)), fix});
  } else if (facts.shared_bytes <= kContainerDefault) {
    findings.push_back({Level::kWarn, "shm", sizes + ": blocks above that go by request instead of rma", fix});
  } else {
    findings.push_back({Level::kPass, "shm", sizes, ""});
  }
  if (!facts.leftovers.empty()) findings.push_back(judge_leftovers(facts.leftovers));
  return findings;
}

// Adds each finding once, with the hosts that have it in front.
class Merged {
 public:
  void add(const std::string& host, Findings findings) {
    for (Finding& finding : findings) {
      const auto same = std::ranges::find_if(findings_, [&](const Finding& other) {
        return other.level == finding.level && other.found == finding.found && other.fix == finding.fix;
      });
      if (same == findings_.end()) {
        hosts_.push_back({host});
        findings_.push_back(std::move(finding));
      } else {
        hosts_[static_cast<std::size_t>(same - findings_.begin())].push_back(host);
      }
    }
  }
  Findings take() {
    constexpr std::size_t kShown = 8;
    for (std::size_t i = 0; i < findings_.size(); ++i) {
      std::string names = hosts_[i].front();
      for (std::size_t h = 1; h < std::min(hosts_[i].size(), kShown); ++h) names += ", " + hosts_[i][h];
      if (hosts_[i].size() > kShown) names += fmt::format(" and {} more", hosts_[i].size() - kShown);
      findings_[i].found = fmt::format("{}: {}", names, findings_[i].found);
    }
    return std::move(findings_);
  }

 private:
  Findings findings_;
  std::vector<std::vector<std::string>> hosts_;
};

std::string plural(std::size_t count) { return count == 1 ? "" : "s"; }

// Threads of one rank against the processors that it may use.
void judge_binding(AllFacts ranks, Findings& findings) {
  std::map<std::string, std::vector<int>> tight;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankFacts& facts = ranks[rank];
    const auto bound = facts.bound_cpus.size();
    if (bound == 0 || facts.threads <= static_cast<int>(bound) || static_cast<int>(bound) == facts.cpus) continue;
    tight[fmt::format("{} threads on {} of {} processor{}", facts.threads, bound, facts.cpus,
                      plural(static_cast<std::size_t>(facts.cpus)))]
        .push_back(static_cast<int>(rank));
  }
  for (const auto& [words, of] : tight) {
    findings.push_back({Level::kWarn, "processors",
                        fmt::format("rank{} {}: {}", plural(of.size()), ranges_text(of), words),
                        "srun --cpus-per-task=N; mpirun --map-by slot:PE=N, or --bind-to none; or fewer --threads"});
  }
}

}  // namespace

Findings judge_processors(AllFacts ranks) {
  Findings findings;
  judge_binding(ranks, findings);
  std::string fine;
  for (const auto& [name, host] : by_host(ranks)) {
    std::set<int> cpus;
    int threads = 0;
    for (const int rank : host.ranks) {
      const RankFacts& facts = ranks[static_cast<std::size_t>(rank)];
      cpus.insert(facts.bound_cpus.begin(), facts.bound_cpus.end());
      threads += facts.threads;
    }
    const std::string words = fmt::format("{}: {} rank{}, {} thread{} in all, {} processor{}", name, host.ranks.size(),
                                          plural(host.ranks.size()), threads, plural(static_cast<std::size_t>(threads)),
                                          cpus.size(), plural(cpus.size()));
    if (threads <= static_cast<int>(cpus.size())) {
      fine += (fine.empty() ? "" : "; ") + words;
      continue;
    }
    findings.push_back({Level::kWarn, "processors", fmt::format("{}: oversubscribed", words),
                        fmt::format("at most {} ranks a host of one thread each (srun --ntasks-per-node, mpirun "
                                    "--map-by ppr:{}:node), or fewer --threads",
                                    cpus.size(), cpus.size())});
  }
  if (findings.empty()) findings.push_back({Level::kPass, "processors", fine, ""});
  return findings;
}

Findings judge_limits(AllFacts ranks, const DoctorOptions& options) {
  Merged limits, shared;
  for (const auto& [name, host] : by_host(ranks)) {
    limits.add(name, judge_host_limits(host, ranks.size(), options));
    shared.add(name, judge_shared_memory(host));
  }
  const RankFacts& first = ranks.front();
  Findings findings{{Level::kInfo, "limits",
                     fmt::format("{}: locked memory {}, open files {}, core files {} to '{}', {} of memory to be had",
                                 first.host, limit_text(first.locked_memory), first.open_files,
                                 limit_text(first.core_bytes), first.core_pattern, bytes_text(first.memory)),
                     ""}};
  append(findings, limits.take());
  append(findings, shared.take());
  return findings;
}

}  // namespace ringmark::cluster
