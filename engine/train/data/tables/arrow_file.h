// Parquet, Arrow's file format (Feather 2) and its stream format, read by Arrow C++ through libtrainctl_arrow.so
// (arrow_interface.h). The library is opened with the first such file.
//
//   column type               column of the table
//   numbers, bool, dates      numbers; u64 as i64
//   lists of numbers          numbers of a shape, of which lists without a fixed size have -1
//   string, large_string      text
//   binary                    bytes
//   struct with `bytes`       bytes: a Hugging Face image or sound
//   dictionary                its values
//   other structs and lists   nested
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/train/data/tables/arrow_interface.h"
#include "engine/train/data/tables/table_file.h"

namespace trainctl {

/// Throws EnvError if the file is damaged, or if the library is missing: it says how to get it.
std::unique_ptr<TableFile> open_arrow_file(const std::string& path);

/// The functions of the library. Throws EnvError, with the searched places and how to install it, if it is not found.
const TrainctlArrow& arrow_library();

}  // namespace trainctl
