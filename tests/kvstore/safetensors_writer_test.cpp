// The writer: several ranks fill one file that appears whole or not at all.
#include "kvstore/safetensors_writer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "kvstore/safetensors_file.h"
#include "tests/kvstore/temporary_folder.h"

namespace ringmark::kvstore {
namespace {

using ringmark::test::TemporaryFolder;

const std::vector<TensorToWrite> some_tensors = {
    {"out", "F32", {6, 2}}, {"b", "U8", {3}}, {"none", "I32", {0, 4}}, {"a", "BF16", {5, 1, 3}}};

std::vector<std::byte> pattern(std::size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((i * 31 + static_cast<std::size_t>(seed)));
  return bytes;
}

std::vector<std::byte> rows_of(const SafetensorsFile& file, std::string_view name) {
  const StoredTensor& tensor = file.tensor(name);
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
  file.read_rows(tensor, {0, tensor.shape[0]}, bytes);
  return bytes;
}

ExitCode code_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.code();
  }
  return ExitCode::kOk;
}

TEST(SafetensorsWriter, two_ranks_write_one_file) {
  const TemporaryFolder folder;
  const std::string path = folder.file("result.safetensors");
  const auto out = pattern(48, 1);
  const auto a = pattern(30, 2);
  const auto b = pattern(3, 3);
  {
    auto creator = SafetensorsWriter::create(path, some_tensors, {{"topk", "8"}, {"quote", "\"\\\n\xC3\xA9"}});
    auto other = SafetensorsWriter::join(path, creator.temporary_token());
    EXPECT_EQ(other.temporary_path(), creator.temporary_path());
    const std::span all(out);
    other.write_rows("out", {4, 6}, all.subspan(32, 16));
    creator.write_rows("out", {0, 2}, all.subspan(0, 16));
    other.write_rows("out", {2, 4}, all.subspan(16, 16));
    creator.write_rows("a", {0, 5}, a);
    creator.write_rows("none", {0, 0}, {});
    other.write_rows("b", {0, 3}, b);
    other.flush();
    creator.flush();
    EXPECT_FALSE(std::filesystem::exists(path));
    creator.commit();
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"result.safetensors"});
  const SafetensorsFile file(path);
  EXPECT_EQ(rows_of(file, "out"), out);
  EXPECT_EQ(rows_of(file, "a"), a);
  EXPECT_EQ(rows_of(file, "b"), b);
  EXPECT_EQ(file.header().metadata.at("quote"), "\"\\\n\xC3\xA9");
}

TEST(SafetensorsWriter, keeps_the_order_given_and_aligns_the_data) {
  const TemporaryFolder folder;
  const std::string path = folder.file("f");
  for (std::size_t extra = 0; extra < 9; ++extra) {
    auto writer = SafetensorsWriter::create(path, some_tensors, {{"pad", std::string(extra, 'x')}});
    writer.flush();
    writer.commit();
    const SafetensorsFile file(path);
    EXPECT_EQ(file.header().data_offset % 8, 0);
    EXPECT_EQ(file.tensor("out").begin, 0);
    EXPECT_EQ(file.tensor("b").begin, 48);
    EXPECT_EQ(file.tensor("none").begin, 51);
    EXPECT_EQ(file.tensor("a").begin, 51);
  }
}

TEST(SafetensorsWriter, without_tensors_the_file_is_still_valid) {
  const TemporaryFolder folder;
  const std::string path = folder.file("f");
  auto writer = SafetensorsWriter::create(path, {}, {});
  writer.flush();
  writer.commit();
  EXPECT_TRUE(SafetensorsFile(path).header().tensors.empty());
}

TEST(SafetensorsWriter, leaves_the_target_alone_unless_committed) {
  const TemporaryFolder folder;
  const std::string path = folder.write("f", "the result of yesterday");
  {
    auto creator = SafetensorsWriter::create(path, some_tensors, {});
    EXPECT_EQ(folder.names().size(), 2u);
    auto other = SafetensorsWriter::join(path, creator.temporary_token());
    creator.flush();
    other.flush();
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"f"});
  EXPECT_EQ(TemporaryFolder::read(path), "the result of yesterday");
}

TEST(SafetensorsWriter, a_moved_from_writer_removes_nothing) {
  const TemporaryFolder folder;
  const std::string path = folder.file("f");
  auto first = std::make_unique<SafetensorsWriter>(SafetensorsWriter::create(path, some_tensors, {}));
  SafetensorsWriter second(std::move(*first));
  first.reset();
  second.write_rows("b", {0, 3}, pattern(3, 0));
  second.flush();
  second.commit();
  EXPECT_EQ(folder.names(), std::vector<std::string>{"f"});
}

TEST(SafetensorsWriter, hides_the_temporary_file_and_gives_the_result_the_usual_mode) {
  const TemporaryFolder folder;
  const std::string path = folder.file("f");
  const mode_t before = ::umask(027);
  auto writer = SafetensorsWriter::create(path, some_tensors, {});
  struct stat status {};
  ASSERT_EQ(::stat(writer.temporary_path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_TRUE(std::filesystem::path(writer.temporary_path()).filename().string().starts_with(".f."));
  writer.flush();
  writer.commit();
  EXPECT_EQ(::umask(before), 027u);
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST(SafetensorsWriter, takes_a_relative_path_and_a_long_name) {
  const TemporaryFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.file(""));
  const std::string path(250, 'n');
  auto writer = SafetensorsWriter::create(path, some_tensors, {});
  auto other = SafetensorsWriter::join(path, writer.temporary_token());
  writer.flush();
  writer.commit();
  EXPECT_EQ(folder.names(), std::vector<std::string>{path});
  std::filesystem::current_path(before);
}

TEST(SafetensorsWriter, refuses_targets_that_cannot_be_replaced) {
  const TemporaryFolder folder;
  const auto create = [&](const std::string& path) {
    return code_of([&] { SafetensorsWriter::create(path, some_tensors, {}); });
  };
  EXPECT_EQ(create(folder.file("")), ExitCode::kBadInput);
  EXPECT_EQ(create(folder.file("missing/f")), ExitCode::kBadInput);
  EXPECT_EQ(create("/dev/null"), ExitCode::kBadInput);
  EXPECT_EQ(create(""), ExitCode::kBadInput);
  std::filesystem::create_directory(folder.file("d"));
  EXPECT_EQ(create(folder.file("d")), ExitCode::kBadInput);
}

TEST(SafetensorsWriter, refuses_tensors_that_make_no_valid_header) {
  const TemporaryFolder folder;
  const auto create = [&](const std::vector<TensorToWrite>& tensors) {
    return code_of([&] { SafetensorsWriter::create(folder.file("f"), tensors, {}); });
  };
  EXPECT_EQ(create({{"a", "F32", {2}}, {"a", "F32", {2}}}), ExitCode::kBadInput);
  EXPECT_EQ(create({{"a", "FLOAT", {2}}}), ExitCode::kBadInput);
  EXPECT_EQ(create({{"a", "F32", {-2}}}), ExitCode::kBadInput);
  EXPECT_EQ(create({{"__metadata__", "F32", {2}}}), ExitCode::kBadInput);
  EXPECT_EQ(create({{"a", "U8", {std::int64_t{1} << 62}}, {"b", "U8", {std::int64_t{1} << 62}}}), ExitCode::kBadInput);
  EXPECT_TRUE(folder.names().empty());
}

TEST(SafetensorsWriter, a_full_disk_is_known_before_anything_is_written) {
  const TemporaryFolder folder;
  try {
    SafetensorsWriter::create(folder.file("f"), {{"a", "U8", {std::int64_t{1} << 60}}}, {});
    FAIL() << "reserved 2^60 bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("1152921504606847"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(SafetensorsWriter, joining_nothing_is_an_environment_error) {
  const TemporaryFolder folder;
  EXPECT_EQ(code_of([&] { SafetensorsWriter::join(folder.file("f"), 7); }), ExitCode::kEnvironment);
}

TEST(SafetensorsWriter, misuse_is_a_broken_promise) {
  const TemporaryFolder folder;
  const std::string path = folder.file("f");
  auto creator = SafetensorsWriter::create(path, some_tensors, {});
  auto other = SafetensorsWriter::join(path, creator.temporary_token());
  EXPECT_EQ(code_of([&] { creator.write_rows("b", {0, 4}, pattern(4, 0)); }), ExitCode::kInternal);
  EXPECT_EQ(code_of([&] { creator.write_rows("b", {0, 2}, pattern(3, 0)); }), ExitCode::kInternal);
  EXPECT_EQ(code_of([&] { creator.write_rows("missing", {0, 0}, {}); }), ExitCode::kInternal);
  EXPECT_EQ(code_of([&] { creator.commit(); }), ExitCode::kInternal);
  creator.flush();
  other.flush();
  EXPECT_EQ(code_of([&] { creator.write_rows("b", {0, 3}, pattern(3, 0)); }), ExitCode::kInternal);
  EXPECT_EQ(code_of([&] { other.commit(); }), ExitCode::kInternal);
}

}  // namespace
}  // namespace ringmark::kvstore
