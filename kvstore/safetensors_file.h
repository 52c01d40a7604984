// Reading: a shard reads only its own rows. pread, not mmap: a file that shrinks under a mapping kills the process with
// SIGBUS, a short read is an error with words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/ids.h"
#include "kvstore/safetensors_header.h"
#include "kvstore/safetensors_io.h"

namespace ringmark::kvstore {

// The header of an open file. Throws Error(kBadInput) with `path`.
SafetensorsHeader read_safetensors_header(const Descriptor& file, const std::string& path);

class SafetensorsFile {
 public:
  // Opens, checks and parses the header. Throws Error(kBadInput) with the path: missing file, broken rule.
  explicit SafetensorsFile(std::string path);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  // Throws Error(kBadInput) naming the path and the tensor when it is not there.
  const StoredTensor& tensor(std::string_view name) const;
  // Rows [begin, end) of the first dimension into `out`, whose size must be exactly theirs. Throws Error(kBadInput)
  // with path and tensor when the file has become shorter than its header says.
  void read_rows(const StoredTensor& tensor, RowRange rows, std::span<std::byte> out) const;

 private:
  std::string path_;
  Descriptor file_;
  SafetensorsHeader header_;
};

}  // namespace ringmark::kvstore
