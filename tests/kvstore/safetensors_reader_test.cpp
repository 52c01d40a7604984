// The strict reader: what is valid is read exactly, what is not is refused with one line and without a crash.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "kvstore/safetensors_file.h"
#include "tests/kvstore/malformed_safetensors.h"
#include "tests/kvstore/temporary_folder.h"

namespace ringmark::kvstore {
namespace {

using ringmark::test::safetensors_bytes;
using ringmark::test::TemporaryFolder;
using ringmark::test::valid_safetensors;

// The error of opening `path`, or nothing.
std::optional<Error> error_of_opening(const std::string& path) {
  try {
    const SafetensorsFile file(path);
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

void expect_one_bad_input_line(const std::optional<Error>& error, const std::string& path) {
  ASSERT_TRUE(error.has_value()) << "accepted";
  const std::string text = error->what();
  EXPECT_EQ(error->code(), ExitCode::kBadInput) << text;
  EXPECT_TRUE(text.starts_with(path + ": ")) << text;
  EXPECT_LT(text.size(), path.size() + 400) << text;
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
  EXPECT_TRUE(printable) << text;
}

std::string error_text(std::string_view header, std::size_t data_bytes) {
  const std::string bytes = safetensors_bytes(header, data_bytes);
  try {
    parse_safetensors_header("f", bytes, static_cast<std::int64_t>(bytes.size()));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(SafetensorsReader, reads_names_shapes_metadata_and_rows) {
  const TemporaryFolder folder;
  const std::string bytes = valid_safetensors();
  const SafetensorsFile file(folder.write("valid", bytes));
  ASSERT_EQ(file.header().tensors.size(), 4u);
  EXPECT_EQ(file.header().metadata.at("chunk_size"), "4");
  EXPECT_EQ(file.header().metadata.at("note"), "caf\xC3\xA9");
  const StoredTensor& b = file.tensor("b");
  EXPECT_EQ(b.dtype, "BF16");
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{4, 2}));
  EXPECT_EQ(b.row_bytes(), 4);
  EXPECT_EQ(file.tensor("empty").bytes(), 0);
  EXPECT_EQ(file.tensor("scalar").bytes(), 4);

  std::string rows(8, '\0');
  file.read_rows(b, {1, 3}, std::as_writable_bytes(std::span(rows)));
  EXPECT_EQ(rows, bytes.substr(static_cast<std::size_t>(file.header().data_offset) + 32 + 4, 8));
  file.read_rows(file.tensor("empty"), {0, 0}, {});
}

TEST(SafetensorsReader, accepts_what_the_format_allows) {
  EXPECT_EQ(error_text("{}", 0), "");
  EXPECT_EQ(error_text(" \t\r\n{}   ", 0), "");
  EXPECT_EQ(error_text(R"({"__metadata__":{}})", 0), "");
  EXPECT_EQ(error_text(R"({"":{"dtype":"U8","shape":[1,1,1,1,1,1,1,4],"data_offsets":[0,4]}})", 4), "");
  EXPECT_EQ(error_text(R"({"z":{"dtype":"U8","shape":[0,9223372036854775807],"data_offsets":[0,0]}})", 0), "");
  // Listed out of order, with empty tensors at the start, between and at the end.
  EXPECT_EQ(error_text(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},)"
                       R"("e2":{"dtype":"U8","shape":[0],"data_offsets":[2,2]},)"
                       R"("e3":{"dtype":"U8","shape":[0],"data_offsets":[4,4]},)"
                       R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                       R"("e1":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                       4),
            "");
}

TEST(SafetensorsReader, knows_every_dtype) {
  const std::vector<std::pair<std::string, std::int64_t>> dtypes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
      {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
  for (const auto& [dtype, bytes] : dtypes) {
    EXPECT_EQ(safetensors_element_bytes(dtype), bytes) << dtype;
    const std::string header =
        "{\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":[3],\"data_offsets\":[0," + std::to_string(3 * bytes) + "]}}";
    EXPECT_EQ(error_text(header, static_cast<std::size_t>(3 * bytes)), "");
  }
  EXPECT_EQ(safetensors_element_bytes("F4"), 0);
}

TEST(SafetensorsReader, refuses_every_malformed_file) {
  const TemporaryFolder folder;
  const auto files = ringmark::test::malformed_safetensors();
  EXPECT_GE(files.size(), 100u);
  std::set<std::string> names;
  for (const auto& [name, bytes] : files) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(names.insert(name).second);
    const std::string path = folder.write(name, bytes);
    expect_one_bad_input_line(error_of_opening(path), path);
  }
}

TEST(SafetensorsReader, errors_name_tensor_value_and_limit) {
  EXPECT_EQ(error_text(R"({"q":{"dtype":"F32","shape":[32,8],"data_offsets":[0,65536]}})", 65536),
            "f: tensor 'q': shape [32, 8] of F32 has 1024 bytes, data_offsets [0, 65536] span 65536");
  EXPECT_EQ(error_text(R"({"q":{"dtype":"U8","shape":[4],"data_offsets":[5,1]}})", 5),
            "f: tensor 'q': data_offsets [5, 1] end before they begin");
  EXPECT_EQ(error_text(R"({"q":{"dtype":"U8","shape":[2.5],"data_offsets":[0,4]}})", 4),
            "f: tensor 'q': shape[0] is 2.5, not an integer in [0, 2^63 - 1]");
  EXPECT_EQ(error_text(R"({"__metadata__":{"topk":8}})", 0), "f: __metadata__ value of 'topk' is 8, not a string");
  EXPECT_EQ(error_text(R"({"k\u001b[2J":{"dtype":"X9","shape":[4],"data_offsets":[0,4]}})", 4),
            "f: tensor 'k\\x1b[2J': dtype 'X9' is not one this reader knows");
  const std::string long_name(500, 'n');
  EXPECT_EQ(error_text("{\"" + long_name + "\":3}", 0),
            "f: tensor '" + long_name.substr(0, 80) + "...': its entry is 3, not an object");
}

TEST(SafetensorsReader, refuses_a_valid_file_cut_at_every_byte) {
  const TemporaryFolder folder;
  const std::string bytes = valid_safetensors();
  const std::string path = folder.write("cut", bytes);
  ASSERT_FALSE(error_of_opening(path).has_value());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    SCOPED_TRACE(size);
    folder.write("cut", bytes.substr(0, size));
    expect_one_bad_input_line(error_of_opening(path), path);
  }
  folder.write("cut", bytes + '\0');
  expect_one_bad_input_line(error_of_opening(path), path);
}

void mutate(int rounds, std::uint32_t seed) {
  const std::string valid = valid_safetensors();
  std::mt19937 random(seed);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  for (int round = 0; round < rounds; ++round) {
    std::string bytes = valid;
    const std::size_t flips = 1 + below(4);
    for (std::size_t i = 0; i < flips; ++i) {
      const std::size_t at = below(bytes.size() - 52);
      bytes[at] = below(2) == 0 ? static_cast<char>(bytes[at] ^ (1 << below(8))) : static_cast<char>(below(256));
    }
    try {
      const auto header = parse_safetensors_header("f", bytes, static_cast<std::int64_t>(bytes.size()));
      for (const StoredTensor& tensor : header.tensors) {
        EXPECT_LE(header.data_offset + tensor.end, static_cast<std::int64_t>(bytes.size()));
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
}

TEST(SafetensorsReader, survives_mutated_files) { mutate(2000, 20240607); }
TEST(SafetensorsReaderFull, survives_mutated_files) { mutate(500'000, 7); }

TEST(SafetensorsReader, parses_a_head_that_is_cut_as_an_error) {
  const std::string bytes = valid_safetensors();
  const auto file_bytes = static_cast<std::int64_t>(bytes.size());
  EXPECT_THROW(parse_safetensors_header("f", std::string_view(bytes).substr(0, 40), file_bytes), Error);
  EXPECT_THROW(parse_safetensors_header("f", std::string_view(bytes).substr(0, 5), file_bytes), Error);
}

TEST(SafetensorsReader, refuses_what_is_not_a_file) {
  const TemporaryFolder folder;
  const std::string missing = folder.file("missing");
  expect_one_bad_input_line(error_of_opening(missing), missing);
  EXPECT_NE(std::string(error_of_opening(missing)->what()).find("No such file"), std::string::npos);

  const std::string directory = folder.file("directory");
  std::filesystem::create_directory(directory);
  expect_one_bad_input_line(error_of_opening(directory), directory);

  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_one_bad_input_line(error_of_opening(pipe), pipe);

  expect_one_bad_input_line(error_of_opening("/dev/zero"), "/dev/zero");
}

TEST(SafetensorsReader, names_the_missing_tensor) {
  const TemporaryFolder folder;
  const SafetensorsFile file(folder.write("valid", valid_safetensors()));
  try {
    file.tensor("landmark_q");
    FAIL() << "found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_NE(std::string(error.what()).find("tensor 'landmark_q'"), std::string::npos);
  }
}

TEST(SafetensorsReader, a_file_that_shrinks_after_opening_is_an_error_with_the_tensor) {
  const TemporaryFolder folder;
  const std::string path = folder.write("shrinks", valid_safetensors());
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 10);
  std::vector<std::byte> rows(16);
  try {
    file.read_rows(file.tensor("b"), {0, 4}, rows);
    FAIL() << "read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_NE(std::string(error.what()).find(path + ": tensor 'b': file ends"), std::string::npos) << error.what();
  }
}

TEST(SafetensorsReader, rows_outside_the_tensor_are_a_broken_promise) {
  const TemporaryFolder folder;
  const SafetensorsFile file(folder.write("valid", valid_safetensors()));
  std::vector<std::byte> out(16);
  const StoredTensor& b = file.tensor("b");
  EXPECT_THROW(file.read_rows(b, {1, 5}, out), Error);
  EXPECT_THROW(file.read_rows(b, {-1, 3}, out), Error);
  EXPECT_THROW(file.read_rows(b, {0, 3}, out), Error);
  EXPECT_THROW(file.read_rows(file.tensor("scalar"), {0, 0}, {}), Error);
}

}  // namespace
}  // namespace ringmark::kvstore
