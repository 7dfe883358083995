// See the header.
#include "engine/train/checkpoint/table_slot.h"

#include <fmt/format.h>

#include <charconv>

namespace trainctl {

std::string table_slot(std::string_view slot, int server) { return fmt::format("{}.{}", slot, server); }

std::optional<TableSlot> parse_table_slot(std::string_view slot) {
  const size_t dot = slot.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return {};
  TableSlot parsed{.slot = slot.substr(0, dot)};
  const char* const end = slot.data() + slot.size();
  const auto [last, error] = std::from_chars(slot.data() + dot + 1, end, parsed.server);
  if (error != std::errc() || last != end || parsed.server < 0) return {};
  return parsed;
}

std::vector<const StoredTensor*> saved_ids(const Manifest& manifest, std::string_view tensor) {
  std::vector<const StoredTensor*> found;
  for (const StoredTensor& stored : manifest.tensors) {
    if (stored.name != tensor) continue;
    if (const auto slot = parse_table_slot(stored.slot); slot && slot->slot == kIdsSlot) found.push_back(&stored);
  }
  return found;
}

}  // namespace trainctl
