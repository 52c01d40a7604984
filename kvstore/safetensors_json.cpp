#include "kvstore/safetensors_json.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "core/error.h"

namespace ringmark::kvstore {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxQuoted = 80;
constexpr std::size_t kMaxMetadataEntries = 100'000;

class HeaderEvents final : public nlohmann::json_sax<json> {
 public:
  explicit HeaderEvents(std::string_view path) : path_(path) {}

  SafetensorsJson take() { return std::move(result_); }

  bool null() override { reject("null"); }
  bool boolean(bool value) override { reject(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { reject(fmt::format("{}", value)); }
  bool number_float(number_float_t, const string_t& text) override { reject(printable(text, kMaxQuoted)); }
  bool binary(binary_t&) override { reject("binary data"); }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool start_object(std::size_t) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool key(string_t& name) override;
  bool parse_error(std::size_t position, const std::string& last_token, const nlohmann::detail::exception&) override {
    fail(fmt::format("header is not valid UTF-8 JSON at byte {} of it, near '{}'", position,
                     printable(last_token, kMaxQuoted)));
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kTensor, kShape, kOffsets };

  [[noreturn]] void fail(const std::string& what) const { fail_bad_input(fmt::format("{}: {}", path_, what)); }
  [[noreturn]] void fail_tensor(const std::string& what) const {
    fail(fmt::format("{}: {}", quoted_tensor(tensor_.name), what));
  }
  // The value that was just read cannot stand where the parser is.
  [[noreturn]] void reject(std::string_view value) const;
  void begin_entry(const std::string& name);
  void begin_field(const std::string& name);
  void finish_tensor();

  std::string_view path_;
  SafetensorsJson result_;
  Place place_ = Place::kOutside;
  std::unordered_set<std::string> names_;
  std::string metadata_key_;
  StoredTensor tensor_;
  std::vector<std::int64_t> offsets_;
  std::string field_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

void HeaderEvents::reject(std::string_view value) const {
  switch (place_) {
    case Place::kOutside: fail(fmt::format("header is {}, not a JSON object", value));
    case Place::kTop:
      if (tensor_.name == kSafetensorsMetadata) fail(fmt::format("__metadata__ is {}, not an object", value));
      fail_tensor(fmt::format("its entry is {}, not an object", value));
    case Place::kMetadata:
      fail(fmt::format("__metadata__ value of '{}' is {}, not a string", printable(metadata_key_, kMaxQuoted), value));
    case Place::kTensor:
      fail_tensor(fmt::format("{} is {}, not {}", field_, value, field_ == "dtype" ? "a string" : "an array"));
    case Place::kShape:
      fail_tensor(fmt::format("shape[{}] is {}, not an integer in [0, 2^63 - 1]", tensor_.shape.size(), value));
    case Place::kOffsets:
      fail_tensor(fmt::format("data_offsets[{}] is {}, not an integer in [0, 2^63 - 1]", offsets_.size(), value));
  }
  fail("header has a value in no known place");
}

bool HeaderEvents::number_unsigned(number_unsigned_t value) {
  const bool in_list = place_ == Place::kShape || place_ == Place::kOffsets;
  if (!in_list || value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
    reject(fmt::format("{}", value));
  }
  std::vector<std::int64_t>& list = place_ == Place::kShape ? tensor_.shape : offsets_;
  const std::size_t limit = place_ == Place::kShape ? kMaxSafetensorsRank : 2;
  if (list.size() == limit) fail_tensor(fmt::format("{} has more than {} numbers", field_, limit));
  list.push_back(static_cast<std::int64_t>(value));
  return true;
}

bool HeaderEvents::string(string_t& value) {
  if (place_ == Place::kMetadata) {
    result_.metadata.emplace(metadata_key_, std::move(value));
    return true;
  }
  if (place_ != Place::kTensor || field_ != "dtype") reject("a string");
  if (safetensors_element_bytes(value) == 0) {
    fail_tensor(fmt::format("dtype '{}' is not one this reader knows", printable(value, kMaxQuoted)));
  }
  tensor_.dtype = std::move(value);
  return true;
}

bool HeaderEvents::start_object(std::size_t) {
  if (place_ == Place::kOutside) {
    place_ = Place::kTop;
  } else if (place_ == Place::kTop) {
    place_ = tensor_.name == kSafetensorsMetadata ? Place::kMetadata : Place::kTensor;
  } else {
    reject("an object");
  }
  return true;
}

bool HeaderEvents::end_object() {
  if (place_ == Place::kTensor) finish_tensor();
  place_ = place_ == Place::kTop ? Place::kOutside : Place::kTop;
  return true;
}

bool HeaderEvents::start_array(std::size_t) {
  if (place_ != Place::kTensor || field_ == "dtype") reject("an array");
  place_ = field_ == "shape" ? Place::kShape : Place::kOffsets;
  return true;
}

bool HeaderEvents::end_array() {
  place_ = Place::kTensor;
  return true;
}

bool HeaderEvents::key(string_t& name) {
  if (place_ == Place::kTop) {
    begin_entry(name);
  } else if (place_ == Place::kTensor) {
    begin_field(name);
  } else {
    const std::string shown = printable(name, kMaxQuoted);
    if (result_.metadata.contains(name)) fail(fmt::format("__metadata__ has the key '{}' twice", shown));
    if (result_.metadata.size() == kMaxMetadataEntries) {
      fail(fmt::format("__metadata__ has more than {} entries", kMaxMetadataEntries));
    }
    metadata_key_ = name;
  }
  return true;
}

void HeaderEvents::begin_entry(const std::string& name) {
  if (!names_.insert(name).second) fail(fmt::format("{} is in the header twice", quoted_tensor(name)));
  if (name.find('\0') != std::string::npos) fail(fmt::format("{} has a NUL in its name", quoted_tensor(name)));
  if (result_.tensors.size() == kMaxSafetensorsTensors && name != kSafetensorsMetadata) {
    fail(fmt::format("header has more than {} tensors", kMaxSafetensorsTensors));
  }
  tensor_ = StoredTensor{};
  tensor_.name = name;
  offsets_.clear();
  has_dtype_ = has_shape_ = has_offsets_ = false;
}

void HeaderEvents::begin_field(const std::string& name) {
  bool* const seen = name == "dtype"          ? &has_dtype_
                     : name == "shape"        ? &has_shape_
                     : name == "data_offsets" ? &has_offsets_
                                              : nullptr;
  if (seen == nullptr) fail_tensor(fmt::format("unknown field '{}'", printable(name, kMaxQuoted)));
  if (*seen) fail_tensor(fmt::format("{} is given twice", name));
  *seen = true;
  field_ = name;
}

void HeaderEvents::finish_tensor() {
  if (!has_dtype_) fail_tensor("dtype is missing");
  if (!has_shape_) fail_tensor("shape is missing");
  if (!has_offsets_) fail_tensor("data_offsets is missing");
  if (offsets_.size() != 2) fail_tensor(fmt::format("data_offsets has {} numbers, not 2", offsets_.size()));
  tensor_.begin = offsets_[0];
  tensor_.end = offsets_[1];
  if (tensor_.begin > tensor_.end) {
    fail_tensor(fmt::format("data_offsets [{}, {}] end before they begin", tensor_.begin, tensor_.end));
  }
  std::string shape;
  for (const std::int64_t extent : tensor_.shape) shape += fmt::format("{}{}", shape.empty() ? "" : ", ", extent);
  const auto needed = safetensors_tensor_bytes(tensor_.dtype, tensor_.shape);
  if (!needed) fail_tensor(fmt::format("shape [{}] of {} has more than 2^63 - 1 bytes", shape, tensor_.dtype));
  if (*needed != tensor_.bytes()) {
    fail_tensor(fmt::format("shape [{}] of {} has {} bytes, data_offsets [{}, {}] span {}", shape, tensor_.dtype,
                            *needed, tensor_.begin, tensor_.end, tensor_.bytes()));
  }
  result_.tensors.push_back(std::move(tensor_));
}

}  // namespace

std::string printable(std::string_view text, std::size_t limit) {
  std::string shown;
  for (const char c : text) {
    const bool plain = c >= 0x20 && c < 0x7F;
    const std::string piece = plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    if (shown.size() + piece.size() > limit) return shown + "...";
    shown += piece;
  }
  return shown;
}

std::string quoted_tensor(std::string_view name) { return fmt::format("tensor '{}'", printable(name, kMaxQuoted)); }

SafetensorsJson parse_safetensors_json(std::string_view path, std::string_view text) {
  // The library skips a byte order mark and takes a NUL for the end of the text; neither is JSON.
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] != '{') {
    fail_bad_input(fmt::format("{}: header does not begin with '{{' but with '{}'", path,
                               first == std::string_view::npos ? "" : printable(text.substr(first, 8), 32)));
  }
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail_bad_input(fmt::format("{}: header is not valid UTF-8 JSON: NUL at byte {} of it", path, nul));
  }
  HeaderEvents events(path);
  try {
    if (!json::sax_parse(text.begin(), text.end(), &events)) {
      fail_bad_input(fmt::format("{}: header is not valid UTF-8 JSON", path));
    }
  } catch (const nlohmann::detail::exception& error) {
    fail_bad_input(fmt::format("{}: header is not valid UTF-8 JSON: {}", path, printable(error.what(), 160)));
  }
  return events.take();
}

}  // namespace ringmark::kvstore
