// Tables (table_file.h) as a source: a row is a sample, and a field is one column or several.
//
//   column                     elements of a sample
//   numbers, lists of numbers  as in array files (arrays.h); numbers of JSON are f32, or i32 where integers are wanted
//   text                       the number of the word among all words of the column, sorted: i32
//   bytes that are JPEG, PNG   an image
//   bytes that are .npy        an array
//   other bytes                u8, of any length
//
// Lists have the length of the first row's in all rows. Several columns of numbers or texts make up one f32 or i32
// field.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/train/data/source.h"

namespace trainctl {

struct TableField {
  std::string name;
  std::vector<std::string> columns;
  bool scalar = false;               ///< one column with shape [] rather than [1], if it is a number or a text
  bool distinct = false;             ///< numbers are words too: each distinct one is a class
  bool integers = false;             ///< untyped numbers and joined columns are i32 rather than f32
  std::vector<std::string> classes;  ///< words in the order of their numbers; empty: all words of the columns, sorted
};

struct TableOptions {
  std::vector<std::string> files;
  std::vector<TableField> fields;
};

/// Throws SpecError (dataset.path, dataset.fields) for what the files do not have; throws EnvError, with the row, if
/// one is damaged.
std::unique_ptr<Source> open_table(const TableOptions& options);

}  // namespace trainctl
