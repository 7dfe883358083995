// Shows a run on the terminal.
#include "cli/render/run_view.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "cli/render/terminal.h"
#include "cli/text/table.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"

namespace trainctl {
namespace {

constexpr std::string_view kEpoch = "epoch: ";
constexpr std::string_view kMeanLoss = ", mean loss is ";  // engine/train/files/metrics.h, epoch_line
constexpr std::string_view kNotFinite = "loss is ", kSince = " since step ";  // not_finite_line
constexpr size_t kMostEpochs = 20;

Paint paint_of(int rank) {
  static constexpr Paint kColors[] = {Paint::cyan, Paint::green, Paint::yellow, Paint::blue, Paint::magenta};
  return kColors[static_cast<size_t>(rank) % std::size(kColors)];
}

std::string format_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 100 ? "%.2f s" : "%.0f s", seconds);
  return text;
}

}  // namespace

double RunView::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void RunView::begin(const std::string& name, const std::string& processes, const RunDirectory& directory,
                    const std::string& device) {
  progress_.line(name + ": " + processes + (device.empty() ? "" : " on " + device) + ", logs in " + directory.path());
}

/// A rank's line as shown: unchanged in a file or a pipe.
std::string RunView::shown(std::string_view line) const {
  return is_terminal(fd_) ? terminal_line(line, colors(fd_)) : std::string(line);
}

void RunView::line(std::string_view line) { progress_.line_of_rank(shown(line)); }

void RunView::listen(std::string_view written, bool is_shown) {
  const std::string line = terminal_line(written);
  if (!is_shown && line.starts_with(kNotFinite) && line.find(kSince) != std::string_view::npos) notice(line);
  const size_t at = line.find(kMeanLoss);
  if (!line.starts_with(kEpoch) || at == std::string_view::npos) return;
  std::vector<std::string> row = {std::string(line.substr(kEpoch.size(), at - kEpoch.size()))};
  metrics_.clear();
  const std::string_view means = std::string_view(line).substr(at + kMeanLoss.size());
  for (size_t start = 0; start <= means.size();) {
    const size_t end = std::min(means.find(", ", start), means.size());
    const std::string_view mean = means.substr(start, end - start);
    const size_t space = mean.find(' ');  // "accuracy 0.9934"; the loss has no name
    if (space != std::string_view::npos) metrics_.emplace_back(mean.substr(0, space));
    row.emplace_back(mean.substr(space == std::string_view::npos ? 0 : space + 1));
    start = end + 2;
  }
  epochs_.push_back(std::move(row));
}

void RunView::line_of(int rank, std::string_view line) {
  progress_.line_of_rank(paint(fd_, paint_of(rank), "rank " + std::to_string(rank) + " |") + " " + shown(line));
}

/// A notice may quote text from a host or a rank.
void RunView::notice(std::string_view message) {
  progress_.line(paint(fd_, Paint::yellow, terminal_text(message)));
}

void RunView::news(std::string_view message) { progress_.line(message); }

bool RunView::tick() {
  progress_.flush_lines();
  return progress_.due(seconds());
}

void RunView::update(const LiveStatus& status) { progress_.update(status, seconds()); }

void RunView::end(const RunEnd& end, const RunDirectory& directory) {
  progress_.line(means() + paint(fd_, end.exit_code == 0 ? Paint::green : Paint::red, end.ending) + " after " +
                 format_seconds(end.seconds) + last_metrics() + "; logs in " + directory.path());
  if (!end.report.empty()) progress_.line("\n" + end.report);
  progress_.finish();
}

/// ", accuracy 0.9934": the means of the last epoch.
std::string RunView::last_metrics() const {
  std::string text;
  for (size_t i = 0; i < metrics_.size(); ++i) text += ", " + metrics_[i] + " " + epochs_.back()[i + 2];
  return text;
}

std::string RunView::means() const {
  if (epochs_.empty()) return "";
  std::vector<std::string> titles = {">epoch", ">mean loss"};
  for (const std::string& metric : metrics_) titles.push_back(">" + metric);
  Table table(titles);
  const size_t first = epochs_.size() > kMostEpochs ? epochs_.size() - kMostEpochs : 0;
  for (size_t i = first; i < epochs_.size(); ++i) table.add(epochs_[i]);
  return "\n" + table.str() + "\n";
}

void RunView::failure(std::string_view text) { std::cerr << text << std::flush; }

}  // namespace trainctl
