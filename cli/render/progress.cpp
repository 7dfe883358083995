// Lines that stay above a line that changes.
#include "cli/render/progress.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "cli/render/terminal.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kPlainSeconds = 10;
constexpr std::string_view kClearLine = "\r\033[K";

/// Whoever reads us may be gone; the training goes on.
void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return;
    text.remove_prefix(static_cast<size_t>(put));
  }
}

}  // namespace

std::string progress_text(const ProgressState& state) {
  if (state.step == 0) return "starting";
  std::string text = "epoch " + std::to_string(state.epoch) + "/" + std::to_string(state.epochs) + "  step " +
                     std::to_string(state.step) + "/" + std::to_string(state.steps);
  if (state.has_loss) {
    char loss[32];
    std::snprintf(loss, sizeof loss, "  loss %.4f", static_cast<double>(state.loss));
    text += loss;
  }
  if (state.samples_per_second > 0)
    text += "  " + with_commas(static_cast<int64_t>(state.samples_per_second)) + " samples/s";
  return text;
}

Progress::Progress(int fd) : fd_(fd), terminal_(is_terminal(fd)) {}

void Progress::line(std::string_view text) {
  lines_ += text;
  lines_ += '\n';
}

void Progress::update(const ProgressState& state, double now) {
  const bool due = now - last_ >= (terminal_ ? kRedrawSeconds : kPlainSeconds);
  if (due) last_ = now;
  if (terminal_) {
    if (!due) return;
    std::string text = progress_text(state);
    const size_t width = static_cast<size_t>(terminal_width(fd_));
    if (text.size() >= width) text.resize(width - 1);
    flush(text);
  } else {
    if (due && state.step > 0) line(progress_text(state));
    if (!lines_.empty()) flush("");
  }
}

void Progress::finish() { flush(""); }

void Progress::flush(const std::string& progress) {
  std::string text;
  if (shown_) text += kClearLine;
  text += lines_;
  lines_.clear();
  if (!progress.empty()) text += paint(fd_, Paint::cyan, progress);
  shown_ = !progress.empty();
  write_all(fd_, text);
}

}  // namespace trainctl
