// The offsets of the rows of a table: 4 bytes per row.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/train/files/input_file.h"

namespace trainctl {

inline constexpr int64_t kMostRowBytes = 1 << 20;

class CsvIndex {
 public:
  /// Called with each row of the file, including the header, and the number of the line at which the row begins, from
  /// 1. The constructor throws EnvError (file:line) for a row that is longer than kMostRowBytes, or a quote that is
  /// still open at the end of the file.
  using Visit = std::function<void(std::string_view row, int64_t line)>;
  CsvIndex(const InputFile& file, char delimiter, bool header, const Visit& visit);

  int64_t rows() const { return static_cast<int64_t>(offsets_.size()); }  ///< without the header
  /// Returns the text of a row, together with blank lines that follow it.
  std::string read(const InputFile& file, int64_t row) const;
  /// The line that a row begins at. Reads up to 4,096 rows.
  int64_t line(const InputFile& file, int64_t row) const;
  int64_t memory_bytes() const;

 private:
  static constexpr int64_t kBlockRows = 4096;  ///< times kMostRowBytes: offsets fit in 32 bits
  struct Block {
    int64_t at, line;  ///< offset and line of its first row
  };

  void add(int64_t at, int64_t line);
  int64_t offset(int64_t row) const;

  std::vector<Block> blocks_;
  std::vector<uint32_t> offsets_;  ///< offset from that of the block
  int64_t end_ = 0;                ///< end of the last row
};

}  // namespace trainctl
