// The values of MDS samples (mds.h): which column an encoding becomes, and its values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/train/data/tables/table_file.h"

namespace trainctl {

struct MdsColumn {
  TableColumn column;
  std::string encoding;
  int64_t bytes = 0;  ///< fixed size of a value; 0: it varies
};

/// Throws EnvError, without the place, for an encoding that is not of MDS.
MdsColumn mds_column(const std::string& name, const std::string& encoding);

/// Finds the values of a sample: a span per column. Throws EnvError, without the place, if they do not fill the
/// sample.
void split_mds_sample(std::span<const uint8_t> sample, const std::vector<MdsColumn>& columns,
                      std::vector<std::span<const uint8_t>>& values);

/// Throws EnvError, without the place, if the value is damaged or its encoding is not supported.
void read_mds_value(const MdsColumn& column, std::span<const uint8_t> bytes, TableValue& out);

}  // namespace trainctl
