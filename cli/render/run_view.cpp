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
constexpr std::string_view kValidation = "validation epoch ";                 // validation_line
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

/// "2.1034, accuracy 0.9934": values, and the names of those that have one; a mean loss has none.
void split_values(std::string_view text, std::vector<std::string>& names, std::vector<std::string>& values) {
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(", ", start), text.size());
    const std::string_view one = text.substr(start, end - start);
    const size_t space = one.find(' ');
    if (space != std::string_view::npos) names.emplace_back(one.substr(0, space));
    values.emplace_back(one.substr(space == std::string_view::npos ? 0 : space + 1));
    start = end + 2;
  }
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
  if (line.starts_with(kValidation)) return listen_to_validation(std::string_view(line).substr(kValidation.size()));
  const size_t at = line.find(kMeanLoss);
  if (!line.starts_with(kEpoch) || at == std::string_view::npos) return;
  std::vector<std::string> row = {std::string(line.substr(kEpoch.size(), at - kEpoch.size()))};
  metrics_.clear();
  split_values(std::string_view(line).substr(at + kMeanLoss.size()), metrics_, row);
  epochs_.push_back(std::move(row));
}

/// "4: loss 0.1041, accuracy 0.9670". A validation inside an epoch, "4 step 20: …", has no row in the table, unless the
/// epoch ended there: its means came before.
void RunView::listen_to_validation(std::string_view line) {
  const size_t colon = line.find(": ");
  if (colon == std::string_view::npos) return;
  const std::string epoch(line.substr(0, std::min(colon, line.find(' '))));
  const bool is_inside = epoch.size() < colon;
  if (is_inside && (epochs_.empty() || epochs_.back()[0] != epoch)) return;
  std::vector<std::string> names, values;
  split_values(line.substr(colon + 2), names, values);
  validated_ = std::move(names);
  validations_[epoch] = std::move(values);
}

void RunView::line_of(int rank, std::string_view line) {
  progress_.line_of_rank(paint(fd_, paint_of(rank), "rank " + std::to_string(rank) + " |") + " " + shown(line));
}

/// A notice may quote text from a host or a rank.
void RunView::notice(std::string_view message) { progress_.line(paint(fd_, Paint::yellow, terminal_text(message))); }

void RunView::news(std::string_view message) { progress_.line(message); }

bool RunView::tick() {
  progress_.flush_lines();
  return progress_.due(seconds());
}

void RunView::update(const LiveStatus& status) { progress_.update(status, seconds()); }

void RunView::end(const RunEnd& end, const RunDirectory& directory) {
  const std::string text = end_text(end, format_seconds(end.seconds));
  progress_.line(means() + paint(fd_, end.exit_code == 0 ? Paint::green : Paint::red, end.ending) +
                 text.substr(end.ending.size()) + training_means(end) + "; logs in " + directory.path());
  if (!end.report.empty()) progress_.line("\n" + end.report);
  progress_.finish();
}

/// ", accuracy 0.9934": the means of the last epoch; next to a validation "; training loss 0.0058, accuracy 0.9995".
std::string RunView::training_means(const RunEnd& end) const {
  if (epochs_.empty()) return "";
  const bool is_validated = !end.result.validation.metrics.empty();
  std::string text = is_validated ? "; training loss " + epochs_.back()[1] : "";
  for (size_t i = 0; i < metrics_.size(); ++i) text += ", " + metrics_[i] + " " + epochs_.back()[i + 2];
  return text;
}

/// A row per epoch: means over its steps, and its validation.
std::string RunView::means() const {
  if (epochs_.empty()) return "";
  std::vector<std::string> titles = {">epoch", ">mean loss"};
  for (const std::string& metric : metrics_) titles.push_back(">" + metric);
  for (const std::string& metric : validated_) titles.push_back(">validation " + metric);
  Table table(titles);
  const size_t first = epochs_.size() > kMostEpochs ? epochs_.size() - kMostEpochs : 0;
  for (size_t i = first; i < epochs_.size(); ++i) {
    std::vector<std::string> row = epochs_[i];
    if (const auto found = validations_.find(row[0]); found != validations_.end())
      row.insert(row.end(), found->second.begin(), found->second.end());
    row.resize(titles.size());
    table.add(std::move(row));
  }
  return "\n" + table.str() + "\n";
}

void RunView::failure(std::string_view text) { std::cerr << text << std::flush; }

}  // namespace trainctl
