#include "runtime/cuda/own_blocks.h"

#include <array>

#include "kernels/cuda/blocks.h"

namespace ringmark::runtime::cuda {

using kernels::cuda::Path;

Path pack_own_blocks(comm::Communicator& communicator, const kernels::cuda::LayerShape& shape, Path path,
                     const OwnChunks& own, DeviceShard& shard, std::byte* arena, Workspace& workspace,
                     Timeline& timeline) {
  // Collective: whether no value of V of any rank is beyond the range of the tensor core kernels.
  const auto pack = [&](Path as) {
    const auto span = timeline.time("store");
    std::int32_t* beyond_fp16 = Workspace::reserve(workspace.beyond_fp16, 1);
    workspace.beyond_fp16.fill_bytes(0, workspace.stream);
    kernels::cuda::pack_blocks(shape, shard.k.data(), shard.v.data(), own.first_rows, own.slots, own.count,
                               kernels::cuda::block_order(as), arena, beyond_fp16, workspace.stream);
    std::int32_t beyond = 0;
    workspace.beyond_fp16.download(&beyond, 1, workspace.stream);
    workspace.stream.wait();
    std::array<std::int64_t, 1> anywhere = {beyond};
    if (communicator.size() > 1) communicator.all_reduce_max("agree on the kernels", anywhere);
    return anywhere[0] == 0;
  };
  if (!pack(path)) {
    path = Path::kSimt;
    pack(path);
  }
  shard.k = {};
  shard.v = {};
  return path;
}

}  // namespace ringmark::runtime::cuda
