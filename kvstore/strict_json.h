// Small JSON documents of a fixed schema, read strictly: no duplicate keys, no unknown and no missing fields, whole
// numbers inside their limits. Every refusal is Error(kBadInput) in one line with the path, the field and its value.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ringmark::kvstore {

// An object of at most `max_depth` levels.
nlohmann::json parse_strict_json(const std::string& path, std::string_view text, int max_depth);

// A value for an error line: scalars as they are, cut; of lists and objects only what they are.
std::string shown(const nlohmann::json& value);

// The fields of one object. Each is asked for once; finish() refuses those that nobody asked for.
class JsonFields {
 public:
  // `where` stands in front of field names in error lines: empty, or like "shards[3].".
  JsonFields(const std::string& path, std::string where, const nlohmann::json& object);

  std::int64_t integer(const char* name, std::int64_t low, std::int64_t high);
  double number(const char* name, double low, double high);
  bool flag(const char* name);
  std::string text(const char* name);
  const nlohmann::json& array(const char* name);
  std::vector<std::int64_t> integers(const char* name, std::int64_t low, std::int64_t high);
  // A list of lists.
  std::vector<std::vector<std::int64_t>> integer_lists(const char* name, std::int64_t low, std::int64_t high);
  // For fields that may be missing.
  bool has(const char* name) const { return object_.contains(name); }
  void finish() const;

  [[noreturn]] void fail(const std::string& field, const nlohmann::json& value, const std::string& limit) const;

 private:
  const nlohmann::json& take(const char* name);
  std::vector<std::int64_t> integers_of(const std::string& name, const nlohmann::json& list, std::int64_t low,
                                        std::int64_t high) const;

  const std::string& path_;
  std::string where_;
  const nlohmann::json& object_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace ringmark::kvstore
