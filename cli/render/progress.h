// The live view of a run: lines that stay, and below them, on a terminal, one line that says how far it is.
// Elsewhere that line comes every ten seconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/render/output.h"
#include "launcher/live_status.h"

namespace trainctl {

/// "epoch 3/10  step 101/440  loss 1.2031  20,431 samples/s  8 ranks training". What matters least is left out
/// until it takes at most `width` columns; a rank that does not train like the others matters most.
std::string progress_text(const LiveStatus& status, size_t width);

/// Columns that a text takes on a terminal, escape sequences not counted; wide characters count as one.
size_t display_width(std::string_view text);

class Progress {
 public:
  /// `fd`: where it is written, stdout as a rule.
  explicit Progress(int fd);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// A line that stays.
  void line(std::string_view text);
  /// One of many: where they are not read as fast as they come some are left out, and their number is said.
  void line_of_rank(std::string_view text);
  /// Writes the lines that have come.
  void flush_lines();
  /// Whether it is time for another progress line. `now`: seconds since the start.
  bool due(double now) const;
  void update(const LiveStatus& status, double now);
  /// Writes the rest and takes the progress line away.
  void finish();

 private:
  void write(const std::string& progress);
  std::string clear_shown(size_t width) const;

  int fd_;
  bool terminal_;
  std::string shown_;  ///< the progress line that is on the screen
  std::string told_;   ///< elsewhere: the last progress line
  double last_ = 0;
  std::string lines_;
  int64_t left_out_ = 0;  ///< lines, since the last that was taken
  Output output_;
};

}  // namespace trainctl
