// The system calls behind reading and writing files: whole ranges or an error, interruptions and short transfers
// handled in one place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ringmark::kvstore {

// Owns an open file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  // Gives up ownership without closing.
  int release();

 private:
  int number_ = -1;
};

// Throws Error(kBadInput) with `path`.
Descriptor open_for_reading(const std::string& path);

// Size of an open regular file. Throws Error(kBadInput) with `path` when it is anything else.
std::int64_t regular_file_bytes(const Descriptor& file, const std::string& path);

// Fills `out` from `offset`. `what` names the bytes in the error: Error(kBadInput) where the file ends too early,
// Error(kEnvironment) where the system fails.
void read_range(const Descriptor& file, std::int64_t offset, std::span<std::byte> out, const std::string& what);

// Writes all of `data` at `offset`. Throws Error(kEnvironment), naming `what`.
void write_range(const Descriptor& file, std::int64_t offset, std::span<const std::byte> data, const std::string& what);

// Makes the names in a folder durable; "" is the current one. Throws Error(kEnvironment).
void sync_folder(const std::string& folder);

}  // namespace ringmark::kvstore
