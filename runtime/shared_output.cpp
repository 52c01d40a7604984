#include "runtime/shared_output.h"

#include <cstdint>
#include <optional>

#include "runtime/agreement.h"

namespace ringmark::runtime {
namespace {

using kvstore::SafetensorsWriter;

SafetensorsWriter create(const SharedFile& file) {
  return SafetensorsWriter::create(file.path, file.tensors, file.metadata);
}

void write_rows(SafetensorsWriter& writer, const OwnRows& rows) {
  std::int64_t count = 0;
  for (const RowRange& run : rows.runs) count += run.size();
  if (count == 0) return;
  const std::size_t row_bytes = rows.data.size() / static_cast<std::size_t>(count);
  std::span<const std::byte> rest = rows.data;
  for (const RowRange& run : rows.runs) {
    const std::size_t bytes = static_cast<std::size_t>(run.size()) * row_bytes;
    writer.write_rows(rows.tensor, run, rest.first(bytes));
    rest = rest.subspan(bytes);
  }
}

}  // namespace

void check_shared_file(const SharedFile& file) { create(file); }

void write_shared_file(comm::Communicator& communicator, const SharedFile& file, std::span<const OwnRows> rows) {
  std::optional<SafetensorsWriter> writer;
  agree(communicator, "create the output", [&] {
    if (communicator.rank() == 0) writer.emplace(create(file));
  });
  const auto tokens =
      communicator.gather_sizes("name the output", writer ? static_cast<std::int64_t>(writer->temporary_token()) : 0);
  agree(communicator, "write the output", [&] {
    if (!writer) writer.emplace(SafetensorsWriter::join(file.path, static_cast<std::uint64_t>(tokens[0])));
    for (const OwnRows& own : rows) write_rows(*writer, own);
    writer->flush();
  });
  agree(communicator, "commit the output", [&] {
    if (communicator.rank() == 0) writer->commit();
  });
}

}  // namespace ringmark::runtime
