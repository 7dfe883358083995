// The log files of one stream of one rank, filled one after another:
//
//   rank.3/stdout          being written
//   rank.3/stdout.1        the first file, followed by stdout.2, and so on. A file never changes its number.
//   rank.3/times/stdout    arrival times of its bytes (log_times.h), under the same name
//   rank.3/times/stdout.1
//
// A file gets its number when the next one is begun. Its times are renamed just before, so that a reader of a
// numbered log finds its times under the same number.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trainctl {

/// Limits on the stored part of a stream.
struct LogLimits {
  int64_t file_bytes = 100'000'000;  ///< size at which the next file is begun; 0: never
  int files = 5;                     ///< including the one being written
};

struct LogFiles {
  static constexpr int kCurrent = 0;  ///< the number of the file being written

  std::string directory;  ///< directory of the rank
  std::string name;       ///< stdout, stderr

  std::string path(int number) const { return directory + "/" + numbered(number); }
  std::string times_directory() const { return directory + "/times"; }
  std::string times_path(int number) const { return times_directory() + "/" + numbered(number); }

  /// Numbers of the existing numbered files, ascending.
  std::vector<int> numbers() const;

 private:
  std::string numbered(int number) const { return number == kCurrent ? name : name + "." + std::to_string(number); }
};

}  // namespace trainctl
