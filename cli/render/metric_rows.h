// Rows of a run's metrics.jsonl, with a column for each field.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/run_directory.h"

namespace trainctl {

enum class RowKind { steps, epochs, validations };
/// By its name: steps, epochs, validations.
RowKind row_kind(std::string_view name);

struct MetricRows {
  std::vector<std::string> columns;            ///< in the order in which the fields first appear
  std::vector<std::vector<std::string>> rows;  ///< a cell for each column; "" where the line lacks the field

  void keep_last(size_t count);
  /// Formats the rows according to RFC 4180, but lines end in \n.
  std::string csv() const;
};

/// The whole lines of the file; one that is being written is left out. Throws EnvError if the run has no such file,
/// and SpecError with the line's number if one is no JSON object.
MetricRows read_metric_rows(const RunDirectory& run, RowKind kind);

}  // namespace trainctl
