// The live view of a run: permanent lines, and below them, on a terminal, one progress line. Without a terminal
// that line is printed every ten seconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/render/output.h"
#include "launcher/live_status.h"

namespace trainctl {

/// "epoch 3/10  step 101/440  loss 1.2031  ▇▅▃▂▁  20,431 samples/s  4m05s left  8 ranks training". The least important
/// parts are omitted until the text fits into `width` columns; a rank in an unusual state is the most important part.
/// If even that does not fit, the ranks that the others may be waiting for come first. `losses`: losses of previous
/// steps in order, drawn as a small curve.
std::string progress_text(const LiveStatus& status, size_t width, const std::vector<float>& losses = {});

/// The first `height` lines, each of at most `width` columns; 0: unlimited.
std::string cut_lines(const std::string& text, size_t width, size_t height);

/// "▇▅▃▂▁": a curve of at most `columns` values, each the mean of equally many. Non-finite values are drawn as "x".
std::string sparkline(const std::vector<float>& values, size_t columns);

class Progress {
 public:
  /// `fd`: output descriptor, usually stdout.
  explicit Progress(int fd);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Writes a permanent line.
  void line(std::string_view text);
  /// Writes one of many lines: if the reader is too slow, some are omitted and their number is printed.
  void line_of_rank(std::string_view text);
  /// Writes the pending lines.
  void flush_lines();
  /// Returns whether it is time for another progress line. `now`: seconds since the start.
  bool due(double now) const;
  void update(const LiveStatus& status, double now);
  /// Writes the rest and removes the progress line.
  void finish();

 private:
  void write(const std::string& progress);
  std::string clear_shown(size_t width) const;
  void note_loss(const LiveStatus& status);

  int fd_;
  bool terminal_;
  std::string shown_;          ///< the progress line on the screen
  std::string printed_;        ///< without a terminal: the last printed progress line
  std::vector<float> losses_;  ///< losses of previous steps, thinned when there are many
  int64_t last_step_ = 0;
  double last_ = 0;
  std::string lines_;
  int64_t left_out_ = 0;  ///< lines omitted since the last one that was written
  Output output_;
};

}  // namespace trainctl
