// Determines which samples a device keeps, and which of its inputs arrive as bytes.
#include "engine/planning/device_data.h"

#include <unistd.h>

#include <algorithm>

#include "engine/base/checked.h"

namespace trainctl {
namespace {

constexpr int64_t kMostTableBytes = int64_t{1} << 60;  ///< no device has as much; sums of two fit an int64_t
/// Least size of a load, in the device's type, that is transferred as bytes and mapped on the device.
constexpr int64_t kLeastMappedBytes = int64_t{256} << 10;

}  // namespace

int64_t most_cached_bytes() {
  const auto memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return std::max(int64_t{256} << 20, memory / 16);
}

const Operand* loaded_field(const Program& program, std::string_view field) {
  const auto load = std::find_if(program.instructions.begin(), program.instructions.end(),
                                 [&](const Instruction& i) { return i.opcode == Opcode::load && i.op == field; });
  return load == program.instructions.end() ? nullptr : &load->outputs[0];
}

std::vector<SampleTable> sample_tables(const DataShapes& shapes, int64_t samples, const Program& program) {
  std::vector<SampleTable> tables;
  for (const DataField& field : shapes.fields) {
    const Operand* part = loaded_field(program, field.name);
    if (part == nullptr || samples > INT32_MAX) continue;
    const int64_t sample_bytes = num_elements(field.shape) * byte_size(part->dtype);
    if (capped_product(samples, sample_bytes) > kMostTableBytes) continue;
    tables.push_back({field.name, samples, sample_bytes, {}});
  }
  return tables;
}

bool small_enough_to_keep(const std::vector<SampleTable>& tables) {
  int64_t bytes = 0;
  for (const SampleTable& table : tables) bytes += table.bytes();
  return bytes <= most_cached_bytes();
}

std::vector<ByteTable> byte_tables(const std::vector<ByteField>& fields, const Program& program) {
  std::vector<ByteTable> tables;
  for (const ByteField& field : fields) {
    const Operand* part = loaded_field(program, field.name);
    if (part == nullptr || part->bytes() < kLeastMappedBytes || field.table.channels > ByteTable::kMostChannels)
      continue;
    tables.push_back(field.table);
    tables.back().tensor = field.name;
  }
  return tables;
}

}  // namespace trainctl
