// Writing: all ranks write their rows into one temporary file beside the target; the target appears by rename after
// every byte is on disk, so that no reader and no crash ever sees half a file.
//
//     creator                                          others
//     auto writer = SafetensorsWriter::create(...)
//     token = writer.temporary_token()      -------->  auto writer = SafetensorsWriter::join(path, token)
//     writer.write_rows(...); writer.flush()           writer.write_rows(...); writer.flush()
//     ------------------------------- barrier -------------------------------
//     writer.commit()
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "kvstore/safetensors_header.h"
#include "kvstore/safetensors_io.h"

namespace ringmark::kvstore {

struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
};

class SafetensorsWriter {
 public:
  // The creating rank passes the whole header; it creates `temporary_path()` with its full size (disk space reserved,
  // so that a full disk is known now: Error(kEnvironment) with path and bytes) and writes the header. Tensors lie in
  // the order given, the data section starts at a multiple of 8. Throws Error(kBadInput) for a target that cannot be
  // replaced and for tensors that make no valid header.
  static SafetensorsWriter create(const std::string& path, const std::vector<TensorToWrite>& tensors,
                                  const std::map<std::string, std::string>& metadata);
  // Other ranks join after the creating rank has returned (a barrier between them is the caller's). `token` is the
  // creator's temporary_token().
  static SafetensorsWriter join(const std::string& path, std::uint64_t token);

  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  ~SafetensorsWriter();  // the creator removes the temporary file unless committed

  // Names the temporary file between ranks: pid of the creator in the upper half, a random number in the lower.
  std::uint64_t temporary_token() const { return token_; }
  const std::string& temporary_path() const { return temporary_path_; }
  // Rows [begin, end) of the first dimension; `data` has exactly their size. Any rank, any order, each row once.
  void write_rows(std::string_view tensor, RowRange rows, std::span<const std::byte> data);
  // Every rank: makes its bytes durable and closes. The creator commits only after every rank has flushed.
  void flush();
  // Creator only: rename and fsync of the folder.
  void commit();

 private:
  SafetensorsWriter() = default;
  void create_temporary();
  void reserve(std::int64_t bytes);

  std::string path_;
  std::string temporary_path_;
  std::uint64_t token_ = 0;
  bool removes_temporary_ = false;  // the creator, until the rename
  Descriptor file_;
  SafetensorsHeader header_;
};

}  // namespace ringmark::kvstore
