#include "kernels/cuda/cudnn/attend_dense.h"

#include <cudnn_frontend.h>

#include <string>
#include <unordered_map>

#include "core/error.h"

namespace ringmark::kernels::cuda::cudnn {
namespace {

namespace fe = cudnn_frontend;

enum TensorUid : std::int64_t { kQ = 1, kK, kV, kOut, kLse };

void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) fail_environment(std::string(what) + ": " + cudnnGetErrorString(status));
}

void check(fe::error_t status, const char* what) {
  if (status.is_bad()) fail_environment(std::string(what) + ": " + status.get_message());
}

class Handle {
 public:
  Handle() { check(cudnnCreate(&handle_), "start cuDNN"); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { (void)cudnnDestroy(handle_); }
  operator cudnnHandle_t() const { return handle_; }

 private:
  cudnnHandle_t handle_ = nullptr;
};

// `heads` of the `row_heads` that a row holds, as cuDNN's [batch, heads, tokens, channels].
fe::graph::Tensor_attributes rows(const char* name, TensorUid uid, std::int64_t tokens, std::int64_t heads,
                                  std::int64_t row_heads, std::int64_t channels) {
  return fe::graph::Tensor_attributes()
      .set_name(name)
      .set_uid(uid)
      .set_dim({1, heads, tokens, channels})
      .set_stride({tokens * row_heads * channels, channels, row_heads * channels, 1});
}

// The largest divisor of kv_heads that keeps q and out below 2^31 elements, where 32-bit offsets would wrap.
std::int64_t choose_kv_heads_at_once(const LayerShape& shape, std::int64_t tokens) {
  const std::int64_t head_elements = tokens * shape.group * shape.head_dim;
  std::int64_t at_once = shape.kv_heads;
  while (at_once > 1 && (shape.kv_heads % at_once != 0 || at_once * head_elements >= std::int64_t{1} << 31)) --at_once;
  return at_once;
}

}  // namespace

struct DenseAttention::Plan {
  Handle handle;
  fe::graph::Graph graph;

  Plan(const LayerShape& shape, std::int64_t tokens, std::int64_t kv_heads, bool with_lse) {
    graph.set_io_data_type(shape.dtype == DType::kBfloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const std::int64_t heads = kv_heads * shape.group;
    const auto q = graph.tensor(rows("q", kQ, tokens, heads, shape.heads, shape.head_dim));
    const auto k = graph.tensor(rows("k", kK, tokens, kv_heads, shape.kv_heads, shape.head_dim));
    const auto v = graph.tensor(rows("v", kV, tokens, kv_heads, shape.kv_heads, shape.head_dim));
    const auto [out, lse] = graph.sdpa(q, k, v,
                                       fe::graph::SDPA_attributes()
                                           .set_name("dense attention")
                                           .set_generate_stats(with_lse)
                                           .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                           .set_diagonal_band_right_bound(0)
                                           .set_attn_scale(shape.scale));
    const auto out_rows = rows("out", kOut, tokens, heads, shape.heads, shape.head_dim);
    out->set_output(true).set_uid(kOut).set_dim(out_rows.get_dim()).set_stride(out_rows.get_stride());
    if (with_lse) {
      const auto lse_rows = rows("lse", kLse, tokens, heads, shape.heads, 1);
      lse->set_output(true)
          .set_uid(kLse)
          .set_dim(lse_rows.get_dim())
          .set_stride(lse_rows.get_stride())
          .set_data_type(fe::DataType_t::FLOAT);
    }
    check(graph.build(handle, {fe::HeurMode_t::A}), "plan dense attention with cuDNN");
  }
};

bool DenseAttention::supports(const LayerShape& shape) {
  return shape.dtype != DType::kFloat32 && shape.head_dim % 8 == 0 && shape.head_dim <= 256;
}

DenseAttention::DenseAttention(const LayerShape& shape, std::int64_t tokens, bool with_lse,
                               std::int64_t kv_heads_at_once)
    : shape_(shape),
      with_lse_(with_lse),
      kv_heads_at_once_(kv_heads_at_once > 0 ? kv_heads_at_once : choose_kv_heads_at_once(shape, tokens)) {
  require(supports(shape) && tokens > 0, "cuDNN attends bf16 or fp16 with channels a multiple of 8 up to 256");
  require(shape.kv_heads % kv_heads_at_once_ == 0, "kv_heads_at_once divides kv_heads");
  plan_ = std::make_unique<Plan>(shape, tokens, kv_heads_at_once_, with_lse);
  std::int64_t workspace = 0;
  check(plan_->graph.get_workspace_size(workspace), "size of cuDNN's workspace");
  workspace_ = ringmark::cuda::Buffer<std::byte>(workspace);
}

DenseAttention::DenseAttention(DenseAttention&&) noexcept = default;
DenseAttention& DenseAttention::operator=(DenseAttention&&) noexcept = default;
DenseAttention::~DenseAttention() = default;

void DenseAttention::attend(const DenseArrays& arrays, cudaStream_t stream) {
  attend(arrays, {0, shape_.kv_heads}, stream);
}

void DenseAttention::attend(const DenseArrays& arrays, Range<std::int64_t> kv_heads, cudaStream_t stream) {
  require(kv_heads.begin % kv_heads_at_once_ == 0 && kv_heads.size() % kv_heads_at_once_ == 0,
          "dense attention takes whole calls");
  require((arrays.lse != nullptr) == with_lse_, "lse goes with a plan that writes it");
  check(cudnnSetStream(plan_->handle, stream), "give cuDNN a stream");
  const std::int64_t head_bytes = shape_.head_dim * size_of(shape_.dtype);
  for (std::int64_t kv_head = kv_heads.begin; kv_head < kv_heads.end; kv_head += kv_heads_at_once_) {
    const std::int64_t head = kv_head * shape_.group;
    // cuDNN's variant pack takes plain void pointers, inputs too.
    const auto input = [](const std::byte* data) { return static_cast<void*>(const_cast<std::byte*>(data)); };
    std::unordered_map<std::int64_t, void*> tensors = {{kQ, input(arrays.q + head * head_bytes)},
                                                       {kK, input(arrays.k + kv_head * head_bytes)},
                                                       {kV, input(arrays.v + kv_head * head_bytes)},
                                                       {kOut, arrays.out + head * head_bytes}};
    if (with_lse_) tensors[kLse] = arrays.lse + head;
    check(plan_->graph.execute(plan_->handle, tensors, workspace_.data()), "attend densely with cuDNN");
  }
}

std::string version() {
  const std::size_t number = cudnnGetVersion();
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." + std::to_string(number % 100);
}

}  // namespace ringmark::kernels::cuda::cudnn
