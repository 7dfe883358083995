// Slots of the rows of a table, which each server of an asynchronous job saves for itself:
//
//   ids.1      I32 [rows]          of server 1
//   weight.1   F32 [rows, units]
//   m.1        F32 [rows, units]   each state of the optimizer
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/train/checkpoint/manifest.h"

namespace trainctl {

inline constexpr std::string_view kIdsSlot = "ids";

struct TableSlot {
  std::string_view slot;  ///< "m" of "m.1"
  int server = 0;
};

std::string table_slot(std::string_view slot, int server);
/// Nothing if it is no slot of a table's rows.
std::optional<TableSlot> parse_table_slot(std::string_view slot);

/// The row numbers that servers saved of this tensor; none: it is no table there.
std::vector<const StoredTensor*> saved_ids(const Manifest& manifest, std::string_view tensor);

}  // namespace trainctl
