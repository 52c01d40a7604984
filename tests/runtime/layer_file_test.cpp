#include "runtime/layer_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "kvstore/safetensors_writer.h"
#include "tests/kvstore/temporary_folder.h"

namespace ringmark::runtime {
namespace {

using kvstore::SafetensorsWriter;
using kvstore::TensorToWrite;
using test::TemporaryFolder;

struct Content {
  std::vector<TensorToWrite> tensors = {{"q", "F32", {6, 2, 4}}, {"k", "F32", {6, 1, 4}}, {"v", "F32", {6, 1, 4}}};
  std::map<std::string, std::string> metadata;
  float value = 1.0f;  // of every element
};

std::string write(const TemporaryFolder& folder, const Content& content) {
  std::string path = folder.file("layer.safetensors");
  SafetensorsWriter writer = SafetensorsWriter::create(path, content.tensors, content.metadata);
  for (const TensorToWrite& tensor : content.tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) elements *= extent;
    if (tensor.shape.empty() || elements == 0) continue;
    std::vector<std::byte> bytes(static_cast<std::size_t>(elements * kvstore::safetensors_element_bytes(tensor.dtype)));
    if (tensor.dtype == "F32") {
      const std::vector<float> values(static_cast<std::size_t>(elements), content.value);
      std::memcpy(bytes.data(), values.data(), bytes.size());
    }
    writer.write_rows(tensor.name, {0, tensor.shape[0]}, bytes);
  }
  writer.flush();
  writer.commit();
  return path;
}

std::string refusal(const Content& content, const LayerOverrides& overrides = {}) {
  const TemporaryFolder folder;
  const std::string path = write(folder, content);
  try {
    const LayerFile file(path, overrides);
    const partition::SequenceGrid grid(file.problem(), file.policy());
    file.load(partition::make_layout(grid, 1, partition::Balance::kContiguous), RankId(0));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    return error.what();
  }
  return "accepted";
}

void expect_refusal(const std::string& part, const Content& content, const LayerOverrides& overrides = {}) {
  const std::string text = refusal(content, overrides);
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(LayerFile, takes_defaults_from_metadata_and_overrides_them) {
  const TemporaryFolder folder;
  Content content;
  content.metadata = {{"chunk_size", "2"}, {"window", "3"}, {"topk", "1"}, {"scale", "0.25"}, {"landmark_slots", "1"}};
  const std::string path = write(folder, content);
  const LayerFile file(path, {});
  EXPECT_EQ(file.problem().tokens, 6);
  EXPECT_EQ(file.problem().heads, 2);
  EXPECT_EQ(file.problem().kv_heads, 1);
  EXPECT_EQ(file.problem().chunk_size, 2);
  EXPECT_EQ(file.problem().scale, 0.25f);
  EXPECT_TRUE(file.problem().landmark_slots);
  EXPECT_EQ(file.policy().window, 3);
  EXPECT_EQ(file.policy().topk, 1);
  EXPECT_FALSE(file.has_retrieval_queries());
  LayerOverrides overrides;
  overrides.topk = 7;
  overrides.cu_seqlens = {0, 2, 6};
  const LayerFile changed(path, overrides);
  EXPECT_EQ(changed.policy().topk, 7);
  EXPECT_EQ(changed.problem().cu_seqlens, (std::vector<std::int64_t>{0, 2, 6}));
}

TEST(LayerFile, takes_logits_from_metadata_and_sinks_from_a_tensor) {
  const TemporaryFolder folder;
  Content content;
  content.value = 2.5f;
  content.metadata = {{"logit_cap", "30"}, {"alibi", "1"}};
  content.tensors.push_back({"sink_logits", "F32", {2}});
  LayerOverrides overrides;
  overrides.scorer = Scorer::kNone;
  const std::string path = write(folder, content);
  const LayerFile file(path, overrides);
  EXPECT_EQ(file.problem().logit_cap, 30.0f);
  EXPECT_TRUE(file.problem().alibi);
  EXPECT_EQ(file.problem().sink_logits, (std::vector<float>{2.5f, 2.5f}));
  EXPECT_EQ(file.policy().scorer, Scorer::kNone);
  overrides.logit_cap = 5.0;
  overrides.alibi = false;
  EXPECT_EQ(LayerFile(path, overrides).problem().logit_cap, 5.0f);
  EXPECT_FALSE(LayerFile(path, overrides).problem().alibi);
  expect_refusal("alibi = 1 does not go with scorer = hils", content);
  overrides.softmax_zero = true;
  expect_refusal("softmax-zero does not go with the tensor sink_logits", content, overrides);
  // In the storage type of a model, all zeros.
  content.tensors.back() = {"sink_logits", "BF16", {2}};
  EXPECT_EQ(LayerFile(write(folder, content), {.scorer = Scorer::kNone}).problem().sink_logits,
            (std::vector<float>{0.0f, 0.0f}));
  content.tensors.pop_back();
  EXPECT_EQ(LayerFile(write(folder, content), overrides).problem().sink_logits, (std::vector<float>{0.0f, 0.0f}));
  EXPECT_TRUE(LayerFile(write(folder, content), {.scorer = Scorer::kNone}).problem().sink_logits.empty());
  content.metadata["logit_cap"] = "-1";
  expect_refusal("logit_cap = -1.0", content, {.scorer = Scorer::kNone});
  content.metadata["logit_cap"] = "1";
  content.tensors.push_back({"sink_logits", "I32", {2}});
  expect_refusal("tensor sink_logits has dtype I32, not BF16, F16 or F32", content, {.scorer = Scorer::kNone});
}

TEST(LayerFile, scale_is_by_the_true_head_dim) {
  const TemporaryFolder folder;
  Content content;
  for (auto& tensor : content.tensors) tensor.shape[2] = 80;
  EXPECT_EQ(LayerFile(write(folder, content), {}).problem().scale, static_cast<float>(1.0 / std::sqrt(80.0)));
}

TEST(LayerFile, refuses_layers_that_make_no_sense) {
  const auto with = [](auto change) {
    Content content;
    change(content);
    return content;
  };
  expect_refusal("q", with([](auto& c) { c.tensors[0].name = "queries"; }));
  expect_refusal("shape [6, 8]", with([](auto& c) { c.tensors[0].shape = {6, 8}; }));
  expect_refusal("q is empty", with([](auto& c) {
                   for (auto& t : c.tensors) t.shape[0] = 0;
                 }));
  expect_refusal("tensor k has shape [5, 1, 4]", with([](auto& c) { c.tensors[1].shape = {5, 1, 4}; }));
  expect_refusal("tensor v has shape [6, 1, 5]", with([](auto& c) { c.tensors[2].shape = {6, 1, 5}; }));
  expect_refusal("tensor v has dtype BF16", with([](auto& c) { c.tensors[2].dtype = "BF16"; }));
  expect_refusal("dtype I32", with([](auto& c) {
                   for (auto& t : c.tensors) t.dtype = "I32";
                 }));
  expect_refusal("heads", with([](auto& c) { c.tensors[1].shape[1] = c.tensors[2].shape[1] = 4; }));
  expect_refusal("scale", with([](auto& c) { c.metadata = {{"scale", "nan"}}; }));
  expect_refusal("scale", with([](auto& c) { c.metadata = {{"scale", "-0.5"}}; }));
  expect_refusal("scale = 'half'", with([](auto& c) { c.metadata = {{"scale", "half"}}; }));
  expect_refusal("chunk_size = '64 '", with([](auto& c) { c.metadata = {{"chunk_size", "64 "}}; }));
  expect_refusal("chunk_size", with([](auto& c) { c.metadata = {{"chunk_size", "0"}}; }));
  expect_refusal("window", with([](auto& c) { c.metadata = {{"window", "-1"}}; }));
  expect_refusal("topk", with([](auto& c) { c.metadata = {{"topk", "99999999999999999999"}}; }));
  expect_refusal("landmark_slots", with([](auto& c) { c.metadata = {{"landmark_slots", "maybe"}}; }));
  expect_refusal("landmark_q", with([](auto& c) { c.tensors.push_back({"landmark_q", "F32", {6, 1, 4}}); }));
  expect_refusal("cu_seqlens", with([](auto& c) { c.tensors.push_back({"cu_seqlens", "F32", {3}}); }));
  expect_refusal("cu_seqlens", with([](auto& c) { c.tensors.push_back({"cu_seqlens", "I64", {3}}); }));  // zeros
  expect_refusal("tensor positions has shape [5], not [6]", with([](auto& c) {
                   c.tensors.push_back({"positions", "I64", {5}});
                 }));
  expect_refusal("tensor positions has dtype F32", with([](auto& c) {
                   c.tensors.push_back({"positions", "F32", {6}});
                 }));
  expect_refusal("q holds NaN or infinity at token 0",
                 with([](auto& c) { c.value = std::numeric_limits<float>::quiet_NaN(); }));
  expect_refusal("q holds NaN or infinity at token 0",
                 with([](auto& c) { c.value = std::numeric_limits<float>::infinity(); }));
  LayerOverrides overrides;
  overrides.cu_seqlens = {0, 7};
  expect_refusal("cu_seqlens ends at 7", {}, overrides);
}

// 6 tokens, 2 heads of 4, hidden states of 5 and a low rank of 3.
Content with_calibration() {
  Content content;
  for (const TensorToWrite& tensor : std::vector<TensorToWrite>{{"hidden", "F32", {6, 5}},
                                                                {"calibration.q", "F32", {8, 5}},
                                                                {"calibration.up", "F32", {8, 3}},
                                                                {"calibration.down", "F32", {3, 5}},
                                                                {"calibration.norm", "F32", {4}}}) {
    content.tensors.push_back(tensor);
  }
  return content;
}

// What a calibration says to the content after a change of the tensor `at`, or "accepted".
std::string calibration_refusal(std::size_t at, const TensorToWrite& changed) {
  const TemporaryFolder folder;
  Content content = with_calibration();
  content.tensors[at] = changed;
  try {
    LayerFile file(write(folder, content), {});
    file.take_calibration();
    EXPECT_TRUE(file.has_retrieval_queries());
    EXPECT_GT(file.calibration_bytes(1), 0);
    const partition::SequenceGrid grid(file.problem(), file.policy());
    const partition::Layout layout = partition::make_layout(grid, 1, partition::Balance::kContiguous);
    const LayerShard shard = file.load(layout, RankId(0));
    // Ones everywhere: x is 5 + 3 * 5 in every component, so q~ is 1.
    float value = 0.0f;
    std::memcpy(&value, shard.retrieval_queries().row(5, 1), sizeof value);
    EXPECT_NEAR(value, 1.0f, 1e-6f);
    return "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    return error.what();
  }
}

TEST(LayerFile, calibrates_and_names_what_does_not_fit) {
  const auto says = [](std::size_t at, const TensorToWrite& changed, const std::string& part) {
    const std::string text = calibration_refusal(at, changed);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  says(3, {"hidden", "F32", {6, 5}}, "accepted");
  says(3, {"hiddem", "F32", {6, 5}}, "hidden");
  says(3, {"hidden", "F32", {6}}, "tensor hidden has shape [6], which is no matrix");
  says(3, {"hidden", "F32", {5, 5}}, "tensor hidden has shape [5, 5], not [6, 5]");
  says(4, {"calibration.q", "F32", {8, 4}}, "tensor calibration.q has shape [8, 4], not [8, 5]");
  says(5, {"calibration.up", "F32", {8, 2}}, "tensor calibration.up has shape [8, 2], not [8, 3]");
  says(7, {"calibration.norm", "BF16", {4}}, "tensor calibration.norm has dtype BF16, but q has F32");
}

}  // namespace
}  // namespace ringmark::runtime
