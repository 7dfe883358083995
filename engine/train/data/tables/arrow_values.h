// Values of arrays in Arrow's C data interface. Offsets and indices are checked when a value is read, because files may
// contain any; the library has checked that buffers have the lengths that the arrays need.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/train/data/tables/arrow_interface.h"
#include "engine/train/data/tables/table_file.h"

namespace trainctl {

/// The column that a field of a schema becomes. `classes` comes from elsewhere.
TableColumn arrow_column(const ArrowSchema& schema);

/// Reads the value at `index` (from 0, without array.offset) as the column's type. Throws EnvError, without the place,
/// if the array is damaged.
void read_arrow_value(const ArrowSchema& schema, const ArrowArray& array, int64_t index, const TableColumn& column,
                      TableValue& out);

/// The value as JSON; bytes become a text. Throws the same errors as read_arrow_value.
nlohmann::ordered_json arrow_json(const ArrowSchema& schema, const ArrowArray& array, int64_t index);

/// The value of a key of a schema's metadata; empty if there is none.
std::string arrow_metadata(const ArrowSchema& schema, std::string_view key);

}  // namespace trainctl
