// Properties of texts in files that may contain any bytes.
#include "engine/train/data/tables/plain_text.h"

#include <cstdint>

namespace trainctl {

bool is_plain_text(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    const auto lead = static_cast<uint8_t>(bytes[at]);
    if (lead < 0x20 && lead != '\n' && lead != '\t' && lead != '\r') return false;
    const size_t more = lead < 0x80 ? 0 : lead >> 5 == 6 ? 1 : lead >> 4 == 14 ? 2 : lead >> 3 == 30 ? 3 : 4;
    if (more == 4 || bytes.size() - at <= more) return false;
    for (size_t i = 1; i <= more; ++i)
      if ((static_cast<uint8_t>(bytes[at + i]) & 0xc0) != 0x80) return false;
    at += more + 1;
  }
  return true;
}

bool is_shallow_json(std::string_view text) {
  constexpr int kMostDepth = 512;
  int depth = 0;
  bool is_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') is_string = !is_string;
    if (c == '\\' && is_string) ++i;
    if (is_string) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kMostDepth) return false;
  }
  return true;
}

}  // namespace trainctl
