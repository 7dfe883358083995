// Prints log lines: selected by a pattern and a tail, with prefixes or as JSON.
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

/// An extended regular expression as in grep -E. Lines may have any length and contain any bytes.
class LinePattern {
 public:
  /// Throws std::invalid_argument with the reason.
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
    bool json =
        false;  ///< {"time": …, "rank": …, "stream": …, "text": …} per line, and "restart" after the first restart
    bool prefix = true;  ///< "rank 3 | "
    bool terminal = false;  ///< shows lines as terminal_line() of engine/base/printable.h does; otherwise unchanged
    bool colors = false;
    int largest_rank = 0;  ///< sets the width of prefixes
    RankNames names = {};
    std::string grep;             ///< empty: all lines
    std::optional<int64_t> tail;  ///< lines of each rank before end_tail(); nullopt: all
  };

  /// Throws std::invalid_argument for an invalid pattern.
  explicit LogPrinter(Options options);

  void block(const LogSource& source, const LogBlock& block);
  /// Writes the tail, which is complete; all later lines are written directly.
  void end_tail();
  /// Returns and clears the text collected for stdout.
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
  std::map<int, int64_t> restarts_;  ///< by rank, from its lines
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
