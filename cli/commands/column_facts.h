// Facts about the columns of a table, for `trainctl init --data TABLE`: what they contain, and which a network can
// read.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/train/data/tables/table_file.h"

namespace trainctl {

inline constexpr int64_t kScannedRows = 200'000;
inline constexpr size_t kMostDistinct = 1000;  ///< words of a column that become rows of an embedding

/// The values of a column in the rows that were read.
struct ColumnFacts {
  TableColumn column;
  std::string problem;  ///< why the network cannot read it; empty: it can
  std::set<std::string, std::less<>> words;
  std::set<double> numbers;  ///< distinct values, at most kScannedRows
  bool is_whole = true;      ///< all numbers are integers
  int64_t count = 0;
  double mean = 0, squares = 0;  ///< squares: sum of the squared distances from the mean
  Shape shape;

  bool is_words() const { return column.kind == ColumnKind::text; }
  bool is_list() const { return column.kind == ColumnKind::number && !shape.empty(); }
  double deviation() const;
};

/// Reads the first kScannedRows of the `rows`. Throws EnvError for a row that is damaged.
std::vector<ColumnFacts> read_facts(const std::vector<std::unique_ptr<TableFile>>& tables, int64_t rows);
/// Finds columns, other than the target, that identify a row and say nothing about others.
void refuse_identifiers(std::vector<ColumnFacts>& facts, int64_t rows, const std::string& target);

}  // namespace trainctl
