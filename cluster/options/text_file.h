// Reports and traces: small text files that appear whole or not at all.
#pragma once

#include <string>

namespace ringmark::cluster {

// Throws Error(kBadInput) when `path` could not be written as things stand. Leaves nothing behind.
void check_text_file(const std::string& path);

// Writes `text` to `path` by a temporary file and rename, and waits until both are on disk. Throws Error(kEnvironment)
// with path and cause.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace ringmark::cluster
