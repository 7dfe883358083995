// The end of a log file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trainctl {

/// The offset of the last `lines` lines of an open file. If it has fewer: nullopt, and `lines` becomes the number of
/// lines still to find in the preceding file.
std::optional<int64_t> offset_of_last(int fd, int64_t& lines);

/// The offset of the line that contains the byte at `offset`.
int64_t start_of_line(int fd, int64_t offset);

/// The last `lines` lines of a log, at most 16 KiB, without the last newline; "" if there are none.
/// If the file has just been begun, the rest comes from the preceding file (log_files.h).
std::string tail_of_file(const std::string& path, int64_t lines);

}  // namespace trainctl
