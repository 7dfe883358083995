// `trainctl data convert`: converts the rows of files to a file of another format.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/train/data/source.h"
#include "engine/train/data/tables/table_file.h"

namespace trainctl {

/// Presents the samples of a source as the rows of a table. Images become bytes, arrays become numbers, and bytes of
/// any length become text or bytes.
std::unique_ptr<TableFile> table_of_source(std::shared_ptr<const Source> source);

/// Opens everything that `trainctl data` commands accept as files: tables and their folders, text tables, tar shards,
/// npz and safetensors files, and folders of images, in the order of the patterns. Throws SpecError or EnvError if they
/// cannot be read.
std::vector<std::unique_ptr<TableFile>> open_tables(const std::vector<std::string>& patterns);

struct ConvertOptions {
  std::string output;
  std::vector<std::string> columns;  ///< empty: all
  bool replace = false;
  int64_t most_rows = 0;  ///< 0: all
};
struct ConvertResult {
  int64_t rows = 0;
  std::vector<TableColumn> columns;
};

/// Writes the columns of the first table; all other tables need the same columns. Throws EnvError for a row that cannot
/// be read or written, and then leaves no output behind.
ConvertResult convert_tables(const std::vector<std::unique_ptr<TableFile>>& tables, const ConvertOptions& options);

}  // namespace trainctl
