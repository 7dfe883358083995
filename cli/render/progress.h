// The live view of a run: permanent lines and below them, on a terminal, one line with the progress. Without a terminal
// that line is printed every ten seconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/render/output.h"
#include "launcher/live_status.h"

namespace trainctl {

/// "epoch 3/10  step 101/440  loss 1.2031  20,431 samples/s  8 ranks training". The least important
/// parts are left out until it fits in `width` columns; a rank in another state than most is the most important. Where
/// even that does not fit, the ranks that the others may wait for come first.
std::string progress_text(const LiveStatus& status, size_t width);

/// Columns of a text on a terminal, without escape sequences; wide characters count as one.
size_t display_width(std::string_view text);

class Progress {
 public:
  /// `fd`: where it is written, usually stdout.
  explicit Progress(int fd);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Writes a permanent line.
  void line(std::string_view text);
  /// One of many: if the reader is too slow, some are skipped and their number is printed.
  void line_of_rank(std::string_view text);
  /// Writes the pending lines.
  void flush_lines();
  /// Whether it is time for another progress line. `now`: seconds since the start.
  bool due(double now) const;
  void update(const LiveStatus& status, double now);
  /// Writes the rest and removes the progress line.
  void finish();

 private:
  void write(const std::string& progress);
  std::string clear_shown(size_t width) const;

  int fd_;
  bool terminal_;
  std::string shown_;  ///< the progress line on the screen
  std::string told_;   ///< without a terminal: the last progress line
  double last_ = 0;
  std::string lines_;
  int64_t left_out_ = 0;  ///< lines skipped since the last one that was accepted
  Output output_;
};

}  // namespace trainctl
