// The files that one stream of one rank fills, one after the other:
//
//   rank.3/stdout          is being written
//   rank.3/stdout.1        was the first; stdout.2 came after it, and so on. A file never changes its number.
//   rank.3/times/stdout    when the bytes of each came (log_times.h), under the same name
//   rank.3/times/stdout.1
//
// A file gets its number when the next one is begun; its times get theirs a moment earlier, so that whoever sees
// a numbered log finds its times under that number.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trainctl {

/// How much of a stream is kept.
struct LogLimits {
  int64_t file_bytes = 100'000'000;  ///< a file that has as many is followed by the next one; 0: never
  int files = 5;                     ///< the one being written included
};

struct LogFiles {
  static constexpr int kCurrent = 0;  ///< the number of the file being written

  std::string directory;  ///< of the rank
  std::string name;       ///< stdout, stderr

  std::string path(int number) const { return directory + "/" + numbered(number); }
  std::string times_directory() const { return directory + "/times"; }
  std::string times_path(int number) const { return times_directory() + "/" + numbered(number); }

  /// The numbered files that are there, ascending.
  std::vector<int> numbers() const;

 private:
  std::string numbered(int number) const { return number == kCurrent ? name : name + "." + std::to_string(number); }
};

}  // namespace trainctl
