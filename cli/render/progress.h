// The live view of a run: the first rank's lines, and below them, on a terminal, one line that says how
// far it is. Elsewhere that line comes every ten seconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trainctl {

struct ProgressState {
  uint32_t epoch = 0, epochs = 0;
  uint32_t step = 0, steps = 0;  ///< over the whole run; steps 0: not known yet
  bool has_loss = false;
  float loss = 0;
  float samples_per_second = 0;
};

/// "epoch 3/10  step 101/440  loss 1.2031  20,431 samples/s".
std::string progress_text(const ProgressState& state);

class Progress {
 public:
  /// `fd`: where it is written, stdout as a rule.
  explicit Progress(int fd);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// A line that stays.
  void line(std::string_view text);
  /// Writes what has come, and the progress line when it is time for one. `now`: seconds since the start.
  void update(const ProgressState& state, double now);
  /// Writes the rest and takes the progress line away.
  void finish();

 private:
  void flush(const std::string& progress);

  int fd_;
  bool terminal_;
  bool shown_ = false;  ///< the cursor's line holds a progress line
  double last_ = 0;
  std::string lines_;
};

}  // namespace trainctl
