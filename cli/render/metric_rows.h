// Rows of a run's metrics.jsonl, with a column for each field.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/run_directory.h"

namespace trainctl {

enum class RowKind { steps, epochs, validations, loads };
/// Converts a name: steps, epochs, validations, loads.
RowKind row_kind(std::string_view name);

struct MetricRows {
  std::vector<std::string> columns;            ///< in the order in which the fields first appear
  std::vector<std::vector<std::string>> rows;  ///< a cell for each column; "" where the line lacks the field

  void keep_last(size_t count);
  /// Formats the rows according to RFC 4180, but lines end in \n.
  std::string csv() const;
};

/// Reads the complete lines of the file and ignores one that is being written. Throws EnvError if the run has no such
/// file, and SpecError with the line number if a line is not a JSON object.
MetricRows read_metric_rows(const RunDirectory& run, RowKind kind);

}  // namespace trainctl
