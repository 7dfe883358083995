// Log lines on their way to the user: chosen by a pattern and a tail, with a prefix each or as JSON.
#pragma once

#include <regex.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/log_merge.h"

namespace trainctl {

/// An extended regular expression, as of grep -E. Lines may have any length and any bytes.
class LinePattern {
 public:
  /// Throws std::invalid_argument with what is wrong with it.
  explicit LinePattern(const std::string& pattern);
  LinePattern(const LinePattern&) = delete;
  LinePattern& operator=(const LinePattern&) = delete;
  ~LinePattern();
  bool matches(std::string_view line) const;

 private:
  regex_t compiled_;
};

class LogPrinter {
 public:
  struct Options {
    bool json = false;  ///< {"time": …, "rank": …, "stream": …, "text": …} a line, and "restart" after the first one
    bool prefix = true;  ///< "rank 3 | "
    bool colors = false;
    int largest_rank = 0;         ///< prefixes are as wide as its
    std::string grep;             ///< empty: all lines
    std::optional<int64_t> tail;  ///< lines of each rank before end_tail(); none: all
  };

  /// Throws std::invalid_argument for a pattern that is none.
  explicit LogPrinter(Options options);

  void block(const LogSource& source, const LogBlock& block);
  /// What is the tail is known: it is written, and all that follows.
  void end_tail();
  /// Text for stdout that has gathered, and is forgotten.
  std::string take();
  size_t gathered() const { return out_.size(); }

 private:
  void line(const LogSource& source, int64_t ns, std::string_view line);
  void event(const LogSource& source, const LogBlock& block);
  void json_line(const LogSource& source, int64_t ns, std::string_view key, const std::string& value);
  const std::string& prefix(const LogSource& source);
  void keep(int rank, size_t begin);

  Options options_;
  std::unique_ptr<LinePattern> pattern_;
  std::string out_;
  std::map<std::pair<int, bool>, std::string> prefixes_;
  std::map<int, int64_t> restarts_;  ///< of a rank, as its lines say
  struct Kept {
    int64_t place;
    std::string text;
  };
  std::map<int, std::deque<Kept>> tails_;  ///< by rank
  int64_t place_ = 0;
};

/// "2026-01-31T14:30:05.123456789Z"; "" for 0.
std::string format_time(int64_t unix_ns);

}  // namespace trainctl
