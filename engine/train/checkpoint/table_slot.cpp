// Slots of the rows of a table, which each server of an asynchronous job saves for itself.
#include "engine/train/checkpoint/table_slot.h"

#include <fmt/format.h>

#include <charconv>

namespace trainctl {
namespace {

constexpr std::string_view kChanged = ".changed";

}  // namespace

std::string table_slot(std::string_view slot, int server, bool is_changed) {
  return fmt::format("{}.{}{}", slot, server, is_changed ? kChanged : "");
}

std::string tables_file(size_t server, bool is_changed) {
  return fmt::format("{}.{:04}.safetensors", is_changed ? "changed" : "tables", server);
}

std::optional<TableSlot> parse_table_slot(std::string_view slot) {
  const bool is_changed = slot.ends_with(kChanged);
  if (is_changed) slot.remove_suffix(kChanged.size());
  const size_t dot = slot.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return {};
  TableSlot parsed{.slot = slot.substr(0, dot), .is_changed = is_changed};
  const char* const end = slot.data() + slot.size();
  const auto [last, error] = std::from_chars(slot.data() + dot + 1, end, parsed.server);
  if (error != std::errc() || last != end || parsed.server < 0) return {};
  return parsed;
}

bool is_rows_of(const Shape& table, const Shape& rows) {
  return table.size() == 2 && rows.size() == 2 && table[1] == rows[1];
}

std::vector<const StoredTensor*> saved_ids(const Manifest& manifest, std::string_view tensor) {
  std::vector<const StoredTensor*> found, changed;
  for (const StoredTensor& stored : manifest.tensors) {
    if (stored.name != tensor) continue;
    if (const auto slot = parse_table_slot(stored.slot); slot && slot->slot == kIdsSlot)
      (slot->is_changed ? changed : found).push_back(&stored);
  }
  found.insert(found.end(), changed.begin(), changed.end());
  return found;
}

}  // namespace trainctl
