// Prints permanent lines above one line that changes.
#include "cli/render/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/render/terminal.h"
#include "cli/text/display_width.h"
#include "engine/base/measures.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kPlainSeconds = 10;
constexpr size_t kPlainWidth = 200;
constexpr size_t kCurveColumns = 16, kMostLosses = 4096;
/// Columns left free at the end: some terminals wrap after the last column, and Ctrl-C is echoed as ^C.
constexpr int kFreeColumns = 3;

/// The first `width` columns; the last one is an ellipsis if text was cut off.
std::string cut(const std::string& text, size_t width) {
  if (display_width(text) <= width) return text;
  std::string kept;
  size_t columns = 0;
  for (const char c : text) {
    if (!continues_character(c) && ++columns >= width) break;
    kept += c;
  }
  return width == 0 ? "" : kept + "…";
}

struct Segment {
  std::string text;
  int rank;  ///< importance: 0 stays longest
};

std::string of(int64_t number, int64_t total) {
  return std::to_string(number) + (total > 0 ? "/" + std::to_string(total) : "");
}

std::string ranks_text(const std::vector<RankGroup>& groups) {
  std::string text;
  bool has_ranks = false;
  for (const RankGroup& group : groups) {
    const bool several = group.ranks.find_first_of(",-") != std::string::npos;
    const bool is_named = group.ranks.starts_with("server");
    if (!text.empty()) text += "  ";
    if (!is_named && !has_ranks) text += several ? "ranks " : "rank ";
    has_ranks = has_ranks || !is_named;
    text += group.ranks + " " + group.doing;
  }
  return text;
}

/// Rates how likely these ranks are the reason why others wait; 0: the most likely.
int distance_from_reason(const RankGroup& group) {
  if (group.doing.starts_with("stopped")) return 0;
  if (group.doing.starts_with("waiting")) return 2;
  return group.doing == "training" || group.doing == "running" || group.doing == "done" ? 3 : 1;
}

std::vector<RankGroup> reason_first(std::vector<RankGroup> groups) {
  std::stable_sort(groups.begin(), groups.end(), [](const RankGroup& a, const RankGroup& b) {
    return distance_from_reason(a) < distance_from_reason(b);
  });
  return groups;
}

std::string rate_text(double rate, const char* what) {
  return with_commas(static_cast<int64_t>(rate)) + " " + what + "/s";
}

/// The parts of the status line, with priorities: the line omits the largest numbers first if it is too narrow.
std::vector<Segment> segments(const LiveStatus& status, const std::vector<float>& losses) {
  std::vector<Segment> all;
  if (status.state != "running" && status.state != "starting") all.push_back({status.state, 1});
  if (status.attempt > 0) all.push_back({"restart " + of(status.attempt, status.max_restarts), 5});
  if (status.step > 0) {
    if (status.epoch > 0) all.push_back({"epoch " + of(status.epoch, status.epochs), 6});
    all.push_back({"step " + of(status.step, status.steps), 2});
    if (status.loss) all.push_back({"loss " + format_loss(static_cast<double>(*status.loss)), 3});
    if (losses.size() > 1) all.push_back({sparkline(losses, kCurveColumns), 10});
    for (const auto& metric : status.metrics) all.push_back({metric_text(metric), 4});
    if (status.samples_per_second > 0) all.push_back({rate_text(status.samples_per_second, "samples"), 7});
    if (status.tokens_per_second > 0) all.push_back({rate_text(status.tokens_per_second, "tokens"), 11});
    if (status.share_of_peak > 0) all.push_back({fmt::format("{:.0f}% of peak", 100 * status.share_of_peak), 12});
    if (status.memory_bytes > 0) all.push_back({format_bytes(status.memory_bytes) + " per rank", 9});
    if (status.gpu_memory_bytes > 0) all.push_back({format_bytes(status.gpu_memory_bytes) + " per GPU", 9});
    if (status.seconds_left && status.state == "running")
      all.push_back({format_duration(*status.seconds_left) + " left", 4});
    if (status.slowest) all.push_back({fmt::format("waiting for rank {}", *status.slowest), 7});
  }
  const std::string ranks = ranks_text(status.ranks);
  const bool as_expected =
      !status.ranks.empty() && std::all_of(status.ranks.begin(), status.ranks.end(),
                                           [](const RankGroup& group) { return group.doing == "training"; });
  if (!ranks.empty()) all.push_back({ranks, as_expected ? 8 : 0});
  if (all.empty()) all.push_back({status.state, 0});
  return all;
}

std::string joined(const std::vector<Segment>& all) {
  std::vector<std::string> words;
  for (const Segment& segment : all) words.push_back(segment.text);
  return join(words, "  ");
}

}  // namespace

std::string cut_lines(const std::string& text, size_t width, size_t height) {
  std::string kept;
  size_t lines = 0;
  for (size_t at = 0; at < text.size() && (height == 0 || lines < height); ++lines) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    kept += (width == 0 ? line : cut(line, width)) + "\n";
    at = end + 1;
  }
  return kept;
}

std::string sparkline(const std::vector<float>& values, size_t columns) {
  static constexpr std::string_view kHeights[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const size_t count = std::min(columns, values.size());
  std::vector<double> means;
  double least = INFINITY, most = -INFINITY;
  for (size_t i = 0; i < count; ++i) {
    const size_t first = i * values.size() / count, end = (i + 1) * values.size() / count;
    double sum = 0;
    for (size_t v = first; v < end; ++v) sum += static_cast<double>(values[v]);
    means.push_back(sum / static_cast<double>(end - first));
    if (!std::isfinite(means.back())) continue;
    least = std::min(least, means.back());
    most = std::max(most, means.back());
  }
  std::string text;
  for (const double mean : means) {
    const double part = most > least ? (mean - least) / (most - least) : 0;
    text += std::isfinite(mean) ? kHeights[std::min<size_t>(static_cast<size_t>(part * 8), 7)] : "x";
  }
  return text;
}

std::string progress_text(const LiveStatus& status, size_t width, const std::vector<float>& losses) {
  std::vector<Segment> all = segments(status, losses);
  while (all.size() > 1 && display_width(joined(all)) > width) {
    all.erase(
        std::max_element(all.begin(), all.end(), [](const Segment& a, const Segment& b) { return a.rank < b.rank; }));
  }
  const bool is_cut = display_width(joined(all)) > width;
  if (is_cut && all[0].rank == 0 && !status.ranks.empty()) return cut(ranks_text(reason_first(status.ranks)), width);
  return cut(joined(all), width);
}

Progress::Progress(int fd) : fd_(fd), terminal_(can_redraw(fd)), output_(fd) {}

void Progress::line(std::string_view text) {
  if (left_out_ > 0) {
    lines_ += "--- " + with_commas(std::exchange(left_out_, 0)) +
              " lines omitted because this output was read too slowly; trainctl logs shows them ---\n";
  }
  lines_ += text;
  lines_ += '\n';
}

void Progress::line_of_rank(std::string_view text) {
  if (output_.is_behind()) {
    ++left_out_;
  } else {
    line(text);
  }
}

void Progress::flush_lines() {
  if (!lines_.empty()) write(shown_);
}

bool Progress::due(double now) const { return now - last_ >= (terminal_ ? kRedrawSeconds : kPlainSeconds); }

void Progress::update(const LiveStatus& status, double now) {
  last_ = now;
  note_loss(status);
  if (terminal_) {
    write(progress_text(status, static_cast<size_t>(std::max(1, terminal_width(fd_) - kFreeColumns)), losses_));
  } else {
    std::string text = progress_text(status, kPlainWidth);
    if (text != printed_) line(text);
    printed_ = std::move(text);
    write("");
  }
}

/// Records the loss of a step. When there are many, every second one is dropped: the curve has far fewer columns.
void Progress::note_loss(const LiveStatus& status) {
  if (status.step < last_step_) losses_.clear();  // the ranks were started again
  if (!status.loss || status.step == last_step_) return;
  last_step_ = status.step;
  losses_.push_back(*status.loss);
  if (losses_.size() < kMostLosses) return;
  for (size_t i = 0; 2 * i < losses_.size(); ++i) losses_[i] = losses_[2 * i];
  losses_.resize(losses_.size() / 2);
}

void Progress::finish() {
  write("");
  output_.flush();
}

/// Escape codes that clear the progress line. It may have wrapped into several rows if the window became narrower.
std::string Progress::clear_shown(size_t width) const {
  if (shown_.empty()) return "";
  const size_t rows = width == 0 ? 0 : (display_width(shown_) - 1) / width;
  return (rows > 0 ? "\033[" + std::to_string(rows) + "A" : "") + "\r\033[J";
}

void Progress::write(const std::string& progress) {
  if (lines_.empty() && ((progress == shown_ && terminal_) || output_.is_behind())) return;
  std::string text = terminal_ ? clear_shown(static_cast<size_t>(terminal_width(fd_))) : "";
  text += lines_;
  lines_.clear();
  shown_ = terminal_ ? progress : "";
  if (!shown_.empty()) text += paint(fd_, Paint::cyan, shown_);
  output_.write(std::move(text));
}

}  // namespace trainctl
