// The end of a log file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trainctl {

/// Where the last `lines` lines of an open file begin. Where it has fewer: nothing, and `lines` becomes what is
/// left to find in the file before it.
std::optional<int64_t> offset_of_last(int fd, int64_t& lines);

/// Where the line begins that the byte at `offset` belongs to.
int64_t start_of_line(int fd, int64_t offset);

/// The last `lines` lines of a log, at most 16 KiB of them, without the last newline; "" where there are none.
/// Where the file has just been begun, those of the one before it (log_files.h).
std::string tail_of_file(const std::string& path, int64_t lines);

}  // namespace trainctl
