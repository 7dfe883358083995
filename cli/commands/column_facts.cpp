// Facts about the columns of a table, for `trainctl init --data TABLE`: what they contain, and which a network can
// read.
#include "cli/commands/column_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "cli/commands/job_of_data.h"
#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

/// Adds a value of the column to what is known about it. `where`: its row, for the text of a problem.
void note_value(ColumnFacts& facts, const TableValue& value, const std::string& where) {
  if (value.is_null || (facts.is_words() && value.text().empty())) {
    facts.problem = "has no value in " + where;
    return;
  }
  if (facts.is_words()) {
    if (facts.words.size() <= static_cast<size_t>(kScannedRows)) facts.words.emplace(value.text());
    ++facts.count;
    return;
  }
  if (facts.count == 0) facts.shape = value.shape;
  if (value.shape != facts.shape) {
    facts.problem = "has lists of different lengths";
    return;
  }
  const int width = byte_size(facts.column.element);
  const int64_t elements = num_elements(value.shape);
  for (int64_t i = 0; i < elements; ++i) {
    const double number = stored_as_double(facts.column.element, value.bytes.data() + i * width);
    if (!std::isfinite(number)) facts.problem = "is not finite in " + where;
    if (facts.is_list()) continue;
    facts.is_whole = facts.is_whole && std::trunc(number) == number;
    facts.numbers.insert(number);
    const double from_mean = number - facts.mean;
    facts.mean += from_mean / static_cast<double>(facts.count + 1);
    facts.squares += from_mean * (number - facts.mean);
  }
  ++facts.count;
}

/// Reads all columns at once, and one by one where a value of the row cannot be read.
void note_row(const TableFile& table, int64_t row, std::vector<ColumnFacts>& facts) {
  std::vector<size_t> wanted;
  for (size_t c = 0; c < facts.size(); ++c)
    if (facts[c].problem.empty()) wanted.push_back(c);
  std::vector<TableValue> values(wanted.size());
  try {
    table.read(row, wanted, values);
    for (size_t i = 0; i < wanted.size(); ++i) note_value(facts[wanted[i]], values[i], table.where(row));
    return;
  } catch (const EnvError&) {
  }
  size_t refused = 0;
  std::string first;
  for (const size_t c : wanted) {
    TableValue value;
    try {
      table.read(row, std::span(&c, 1), std::span(&value, 1));
      note_value(facts[c], value, table.where(row));
    } catch (const EnvError& error) {
      if (refused++ == 0) first = error.what();
      facts[c].problem = "has no number in " + table.where(row);
    }
  }
  if (refused == wanted.size()) throw EnvError(first);  // the row is damaged, not a value of it
}

}  // namespace

double ColumnFacts::deviation() const { return count > 1 ? std::sqrt(squares / static_cast<double>(count)) : 0; }

std::vector<ColumnFacts> read_facts(const std::vector<std::unique_ptr<TableFile>>& tables, int64_t rows) {
  std::vector<ColumnFacts> facts;
  std::set<std::string, std::less<>> names;
  for (const TableColumn& column : tables.front()->columns()) {
    facts.push_back({column});
    if (!names.insert(column.name).second) facts.back().problem = "has the name of another column";
    const bool is_read = column.kind == ColumnKind::number || column.kind == ColumnKind::text;
    if (!is_read) facts.back().problem = "is " + column.type_text();
  }
  int64_t done = 0;
  for (const auto& table : tables) {
    if (table->columns().size() != facts.size()) break;  // the data set refuses it, and says why
    for (int64_t row = 0; row < table->size() && done < std::min(rows, kScannedRows); ++row, ++done)
      note_row(*table, row, facts);
  }
  return facts;
}

void refuse_identifiers(std::vector<ColumnFacts>& facts, int64_t rows, const std::string& target) {
  for (ColumnFacts& one : facts) {
    if (!one.problem.empty() || one.column.name == target) continue;
    const std::string& name = one.column.name;
    const std::string lower = lower_case(name);
    const bool is_id_name = lower.empty() || lower == "id" || lower == "index" || lower == "unnamed: 0" ||
                            lower.ends_with("_id") || name.ends_with("Id") || name.ends_with("ID");
    const auto words = one.words.size(), few = size_t{20};
    if (one.is_words() && words > few && static_cast<int64_t>(2 * words) > rows)
      one.problem = "is different in most rows";
    else if (one.is_words() && words > kMostDistinct)
      one.problem = fmt::format("has {} different words", words);
    else if (is_id_name && one.is_whole && !one.is_list() && static_cast<int64_t>(one.numbers.size()) == one.count)
      one.problem = "numbers the rows";
  }
}

}  // namespace trainctl
