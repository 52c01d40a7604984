// What a machine can do, in the numbers that the cost model needs: measured by `ringmark calibrate` and kept in a file
// (docs/formats.md, "A machine profile"), or shipped (cluster/planning/profiles).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringmark::cluster {

// A stage of a layer on one rank: seconds = fixed + row * rows + unit * units. What a unit is, is the stage's
// (planning/cost_model.h).
struct StageRate {
  double fixed = 0.0;
  double row = 0.0;
  double unit = 0.0;

  double seconds(double rows, double units) const { return fixed + row * rows + unit * units; }
};

struct ComputeRates {
  StageRate store;      // unit: a byte of own K and V packed into blocks
  StageRate landmarks;  // unit: a byte of own K and V summarised
  StageRate window;     // unit: a flop
  StageRate pack;       // unit: a byte of landmark records made ready for scoring
  StageRate score;      // unit: a flop
  StageRate plan;       // unit: a (row, kv head, chosen chunk of another rank)
  StageRate attend;     // unit: a flop; on GPUs one of a tile's union
  StageRate dense;      // unit: a flop of exact causal attention
  StageRate rest;       // no unit: memory, meetings, output: wall time that no stage has
  // A GPU loads and multiplies each chunk of a tile's union for all rows of the tile; on cores a row computes only the
  // chunks that it chose. Follows from the backend.
  bool attends_unions = false;
};

// What lies between two ranks.
enum class LinkClass : std::uint8_t {
  kHost,    // ranks of one host over its memory
  kNvlink,  // GPUs of one host
  kFabric,  // hosts: InfiniBand or Ethernet
};
inline constexpr std::array kLinkClasses = {LinkClass::kHost, LinkClass::kNvlink, LinkClass::kFabric};
std::string_view name_of(LinkClass link);

// One direction, as one rank sees it alone.
struct LinkRate {
  double latency = 0.0;    // seconds, of one message
  double request = 0.0;    // seconds that each read adds beyond its bytes
  double streamed = 0.0;   // bytes a second: shards, collectives
  double scattered = 0.0;  // bytes a second: chosen blocks
  double node = 0.0;       // bytes a second that all ranks of a node have together; 0: each has its own link
  std::string source;      // "measured ..." or "assumed: ...", one line

  bool known() const { return streamed > 0.0; }
  // What one of `ranks` ranks of a node has left when all of them receive at `rate` at once.
  double shared(double rate, int ranks) const { return node > 0.0 && rate * ranks > node ? node / ranks : rate; }
};

struct MachineProfile {
  std::string name;               // "h200"
  std::string backend;            // "cpu" or "cuda"
  std::string measured;           // date and machine, one line
  int ranks_per_node = 1;         // usual here
  int threads = 1;                // of a rank, with which the rates were measured
  int cores_per_node = 0;         // ranks of a node share them; 0: each rank has its own processor
  std::int64_t memory_bytes = 0;  // that a node's ranks together may take (cpu), or each rank (cuda)
  double agreement = 0.98;        // of the planted layers that were measured
  ComputeRates compute;           // of a rank with a core for each thread, or a GPU, of its own
  std::array<LinkRate, kLinkClasses.size()> links;

  const LinkRate& link(LinkClass which) const { return links[static_cast<std::size_t>(which)]; }
  LinkRate& link(LinkClass which) { return links[static_cast<std::size_t>(which)]; }
  // Between ranks of one host: NVLink for GPUs, memory for cores.
  LinkClass inside() const { return backend == "cuda" ? LinkClass::kNvlink : LinkClass::kHost; }
  // Times that computing takes longer with so many ranks on a node than with a core for each thread.
  double slowdown(int ranks_on_node) const;
  // That one of so many ranks on a node may take.
  std::int64_t memory_of_rank(int ranks_on_node) const;
};

// The file's text as a profile. Throws Error(kBadInput) in one line naming `path`, field, value and limit: for what is
// no JSON, an unknown, missing or repeated field, a number that is not finite, negative, or 0 where a rate is needed.
MachineProfile parse_profile(const std::string& text, const std::string& path);
MachineProfile read_profile(const std::string& path);

// The names of profiles that come with Ringmark.
std::vector<std::string> shipped_profiles();
// A shipped profile by its name, or the file at a path. Throws Error(kBadInput) naming what there is.
MachineProfile find_profile(const std::string& name_or_path);

std::string profile_text(const MachineProfile& profile);
// By temporary file and rename.
void write_profile(const MachineProfile& profile, const std::string& path);

}  // namespace ringmark::cluster
