#include "kvstore/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "core/error.h"
#include "kvstore/safetensors_file.h"

namespace ringmark::kvstore {
namespace {

constexpr std::size_t kMaxNameInTemporary = 200;  // file systems allow 255 bytes; pid, random number and dots need 30
constexpr std::size_t kDataAlignment = 8;

struct TargetPath {
  std::string folder;  // ends in '/' unless empty
  std::string name;
};

TargetPath split(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {"", path};
  return {path.substr(0, slash + 1), path.substr(slash + 1)};
}

std::string temporary_path_of(const std::string& path, std::uint64_t token) {
  const TargetPath target = split(path);
  return fmt::format("{}.{}.{}.{:08x}.tmp", target.folder, target.name.substr(0, kMaxNameInTemporary), token >> 32,
                     token & 0xFFFFFFFFu);
}

// Asked before hours of work rather than by the rename after them; a device such as /dev/null must not be replaced.
void check_target(const std::string& path) {
  if (split(path).name.empty()) fail_bad_input(fmt::format("output '{}' names no file", path));
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    fail_bad_input(fmt::format("{}: exists and is not a regular file, it will not be replaced", path));
  }
}

struct HeaderText {
  std::string text;  // length word, JSON, padding
  std::int64_t data_bytes = 0;
};

HeaderText render_header(const std::string& path, const std::vector<TensorToWrite>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  const auto quote = [](const std::string& text) { return nlohmann::json(text).dump(-1, ' ', false, kReplace); };
  std::string json = "{";
  if (!metadata.empty()) {
    json += fmt::format("\"{}\":{}", kSafetensorsMetadata, nlohmann::json(metadata).dump(-1, ' ', false, kReplace));
  }
  std::int64_t end = 0;
  for (const TensorToWrite& tensor : tensors) {
    const std::int64_t begin = end;
    const auto bytes = safetensors_tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes || __builtin_add_overflow(begin, *bytes, &end)) {
      fail_bad_input(fmt::format("{}: {}: unknown dtype '{}' or more than 2^63 - 1 bytes", path,
                                 quoted_tensor(tensor.name), tensor.dtype));
    }
    json += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", json.size() > 1 ? "," : "",
                        quote(tensor.name), tensor.dtype, nlohmann::json(tensor.shape).dump(), begin, end);
  }
  json += "}";
  json.resize((json.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  std::string length(static_cast<std::size_t>(kSafetensorsLengthBytes), '\0');
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>((json.size() >> (8 * i)) & 0xFFu);
  return {length + json, end};
}

mode_t current_umask() {
  // It can only be read by setting it; the strict value cannot open a file that another thread creates meanwhile.
  const mode_t mask = ::umask(077);
  ::umask(mask);
  return mask;
}

}  // namespace

SafetensorsWriter SafetensorsWriter::create(const std::string& path, const std::vector<TensorToWrite>& tensors,
                                            const std::map<std::string, std::string>& metadata) {
  check_target(path);
  const HeaderText header = render_header(path, tensors, metadata);
  std::int64_t file_bytes = 0;
  if (__builtin_add_overflow(header.data_bytes, static_cast<std::int64_t>(header.text.size()), &file_bytes)) {
    fail_bad_input(fmt::format("{}: file would have more than 2^63 - 1 bytes", path));
  }
  SafetensorsWriter writer;
  writer.path_ = path;
  // What the strict reader would refuse must not be written.
  writer.header_ = parse_safetensors_header(path, header.text, file_bytes);
  writer.create_temporary();
  writer.reserve(file_bytes);
  write_range(writer.file_, 0, std::as_bytes(std::span(header.text)), writer.temporary_path_);
  // On a network file system the other ranks read the header from the server.
  if (::fdatasync(writer.file_.number()) != 0) {
    fail_environment(fmt::format("{}: cannot sync: {}", writer.temporary_path_, std::strerror(errno)));
  }
  return writer;
}

void SafetensorsWriter::create_temporary() {
  std::random_device random;
  for (int attempt = 0; attempt < 16 && !file_.is_open(); ++attempt) {
    token_ = std::uint64_t{static_cast<std::uint32_t>(::getpid())} << 32 | static_cast<std::uint32_t>(random());
    temporary_path_ = temporary_path_of(path_, token_);
    file_ = Descriptor(::open(temporary_path_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    if (!file_.is_open() && errno != EEXIST) break;
  }
  if (!file_.is_open()) {
    const int error = errno;
    throw Error(error == ENOSPC || error == EDQUOT ? ExitCode::kEnvironment : ExitCode::kBadInput,
                fmt::format("{}: cannot create {}: {}", path_, temporary_path_, std::strerror(error)));
  }
  removes_temporary_ = true;
}

void SafetensorsWriter::reserve(std::int64_t bytes) {
  // Asked first: where a file system cannot reserve, the C library writes to every block until the disk is full.
  struct statvfs disk {};
  if (::fstatvfs(file_.number(), &disk) == 0 &&
      std::cmp_less(disk.f_bavail, static_cast<std::uint64_t>(bytes) / disk.f_frsize)) {
    fail_environment(fmt::format("{}: needs {} bytes of disk space, {} are free", path_, bytes,
                                 std::uint64_t{disk.f_bavail} * disk.f_frsize));
  }
  int error = 0;
  do error = ::posix_fallocate(file_.number(), 0, bytes);
  while (error == EINTR);
  if (error != 0) {
    fail_environment(fmt::format("{}: cannot reserve {} bytes of disk space: {}", path_, bytes, std::strerror(error)));
  }
}

SafetensorsWriter SafetensorsWriter::join(const std::string& path, std::uint64_t token) {
  SafetensorsWriter writer;
  writer.path_ = path;
  writer.token_ = token;
  writer.temporary_path_ = temporary_path_of(path, token);
  writer.file_ = Descriptor(::open(writer.temporary_path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!writer.file_.is_open()) {
    fail_environment(fmt::format("{}: cannot open {}: {} (is the folder shared by all hosts?)", path,
                                 writer.temporary_path_, std::strerror(errno)));
  }
  writer.header_ = read_safetensors_header(writer.file_, writer.temporary_path_);
  return writer;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::move(other.temporary_path_)),
      token_(other.token_),
      removes_temporary_(std::exchange(other.removes_temporary_, false)),
      file_(std::move(other.file_)),
      header_(std::move(other.header_)) {}

SafetensorsWriter::~SafetensorsWriter() {
  if (removes_temporary_) ::unlink(temporary_path_.c_str());
}

void SafetensorsWriter::write_rows(std::string_view name, RowRange rows, std::span<const std::byte> data) {
  require(file_.is_open(), "rows are written before flush");
  const StoredTensor* const tensor = header_.find(name);
  require(tensor != nullptr, "tensor to write is in the header");
  require(!tensor->shape.empty() && 0 <= rows.begin && rows.begin <= rows.end && rows.end <= tensor->shape[0],
          "rows to write lie inside the tensor");
  require(std::cmp_equal(data.size(), rows.size() * tensor->row_bytes()), "data has exactly the size of the rows");
  write_range(file_, header_.data_offset + tensor->begin + rows.begin * tensor->row_bytes(), data,
              fmt::format("{}: {}", temporary_path_, quoted_tensor(name)));
}

void SafetensorsWriter::flush() {
  require(file_.is_open(), "flush is called once");
  const auto fail = [&](const char* what) {
    fail_environment(fmt::format("{}: cannot {}: {}", temporary_path_, what, std::strerror(errno)));
  };
  if (removes_temporary_ && ::fchmod(file_.number(), 0666 & ~current_umask()) != 0) fail("set the mode");
  if (::fdatasync(file_.number()) != 0) fail("sync");
  // The descriptor is gone even when close is interrupted: a second close could hit a stranger's file.
  if (::close(file_.release()) != 0 && errno != EINTR) fail("close");
}

void SafetensorsWriter::commit() {
  require(removes_temporary_ && !file_.is_open(), "the creator commits once, after flush");
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    fail_environment(fmt::format("{}: cannot rename {}: {}", path_, temporary_path_, std::strerror(errno)));
  }
  removes_temporary_ = false;
  sync_folder(split(path_).folder);
}

}  // namespace ringmark::kvstore
