// libFuzzer target: any bytes are parsed as a header of safetensors that follows the published rules, or cause an
// EnvError. An accepted header is written and read again as the same header.
#include <cstdlib>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/files/safetensors.h"

namespace {

using namespace trainctl;

bool same(const SafetensorsHeader& a, const SafetensorsHeader& b) {
  if (a.entries.size() != b.entries.size() || a.metadata != b.metadata) return false;
  for (size_t i = 0; i < a.entries.size(); ++i) {
    const SafetensorsEntry &x = a.entries[i], &y = b.entries[i];
    if (x.name != y.name || x.type != y.type || x.shape != y.shape || x.begin != y.begin || x.end != y.end)
      return false;
  }
  return true;
}

void require_rules(const SafetensorsHeader& header, int64_t file_bytes) {
  int64_t at = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.begin != at || entry.end < entry.begin) abort();  // a hole or an overlap
    if (num_elements(entry.shape) * bits_of(entry.type) != entry.bytes() * 8) abort();
    at = entry.end;
  }
  if (header.data_at + at != file_bytes) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::vector<uint8_t> file(data + 1, data + size);  // and zeros, as many as the first byte says, for its data
  file.resize(file.size() + data[0]);
  const auto file_bytes = static_cast<int64_t>(file.size());
  try {
    const SafetensorsHeader header = parse_safetensors_header(file, file_bytes, "fuzz");
    require_rules(header, file_bytes);
    const std::string head = safetensors_head(header);
    const std::span<const uint8_t> again(reinterpret_cast<const uint8_t*>(head.data()), head.size());
    SafetensorsHeader moved = header;  // its head may be of another length
    moved.data_at = static_cast<int64_t>(head.size());
    if (!same(header, parse_safetensors_header(again, moved.data_at + header.data_bytes(), "again"))) abort();
  } catch (const EnvError&) {
  }
  return 0;
}
