// Slots of the rows of a table, which each server of an asynchronous job saves for itself:
//
//   ids.1      I32 [rows]          of server 1
//   weight.1   F32 [rows, units]
//   m.1        F32 [rows, units]   each state of the optimizer
//
// Rows that have changed since the server saved all rows replace the rows above:
//
//   ids.1.changed, weight.1.changed, m.1.changed
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
  bool is_changed = false;
};

std::string table_slot(std::string_view slot, int server, bool is_changed = false);
/// "tables.0001.safetensors": all rows of a server; "changed.0001.safetensors": those that have changed since.
std::string tables_file(size_t server, bool is_changed);
/// Returns nothing if it is not a slot of table rows.
std::optional<TableSlot> parse_table_slot(std::string_view slot);

/// True if `rows`, [count, units], is the shape of some rows of a table of shape `table`, [rows, units].
bool is_rows_of(const Shape& table, const Shape& rows);

/// The tensors with the row numbers that servers saved of this table; empty if the tensor is not stored as a table. The
/// rows of a later entry replace the same rows of an earlier one.
std::vector<const StoredTensor*> saved_ids(const Manifest& manifest, std::string_view tensor);

}  // namespace trainctl
