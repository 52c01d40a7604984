// The folders of a snapshot's generations: DIR/generation-000001, ... Whatever else lies in DIR is somebody else's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ringmark::kvstore {

inline constexpr std::string_view kManifestName = "manifest.json";

std::string generation_name(std::uint64_t generation);

// The generations in `folder`, newest first, whether complete or not. Throws Error(kBadInput) when it cannot be read.
std::vector<std::uint64_t> list_generations(const std::filesystem::path& folder);

}  // namespace ringmark::kvstore
