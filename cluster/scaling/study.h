// A scaling study: what was asked for, and its points. Lives in the folder that docs/scaling.md describes, is written
// once and never changes.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ringmark::cluster {

enum class ScalingMode { kStrong, kWeak };

inline const char* name_of(ScalingMode mode) { return mode == ScalingMode::kStrong ? "strong" : "weak"; }

struct StudyPoint {
  int index = 0;
  ScalingMode mode = ScalingMode::kStrong;
  std::string arm;
  int nodes = 1;
  std::int64_t tokens = 0;  // of the whole sequence
};

struct Study {
  std::vector<int> nodes;  // ascending; the first is N0, to which efficiency is relative
  int ranks_per_node = 1;
  std::vector<ScalingMode> modes;
  std::int64_t tokens = 0;  // strong: at every node count; weak: at N0, and in proportion to nodes above
  std::vector<std::string> arms;
  int repeats = 5;
  int warmups = 1;
  bool traced = true;               // one more launch a point, not counted, writes a trace
  double point_seconds = 600;       // longest time of one launch
  std::vector<std::string> shared;  // options of prefill for all arms that understand them

  // By mode, then nodes, then arm: those that are compared run after each other.
  std::vector<StudyPoint> points() const;
  int first_nodes() const { return nodes.front(); }
};

nlohmann::ordered_json study_json(const Study& study);
// Throws Error(kBadInput) naming `path` and the field.
Study parse_study(const std::string& text, const std::string& path);

// Names of the places in a study's folder.
std::string study_file(const std::string& folder);
std::string result_file(const std::string& folder, int point);
std::string lock_file(const std::string& folder, int point);
std::string attempts_folder(const std::string& folder, int point);

bool study_exists(const std::string& folder);
Study read_study(const std::string& folder);
// Writes study.json and the folders. When another process has written one first, or it was there: that one must be
// equal, else Error(kBadInput) names the first field that is not.
void create_study(const std::string& folder, const Study& study);

}  // namespace ringmark::cluster
