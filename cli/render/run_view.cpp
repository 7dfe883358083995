// A run on the terminal.
#include "cli/render/run_view.h"

#include <unistd.h>

#include <cstdio>

#include "cli/render/table.h"
#include "cli/render/terminal.h"
#include "launcher/spawn.h"

namespace trainctl {
namespace {

constexpr std::string_view kEpoch = "epoch: ";
constexpr std::string_view kMeanLoss = ", mean loss is ";  // engine/train/metrics.h, epoch_line
constexpr size_t kMostEpochs = 20;

std::string format_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 100 ? "%.2f s" : "%.0f s", seconds);
  return text;
}

}  // namespace

double RunView::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void RunView::begin(const RunDirectory& directory, int num_ranks) {
  progress_.line(spec_.name + ": " + std::to_string(num_ranks) + (num_ranks == 1 ? " rank" : " ranks") + ", logs in " +
                 directory.path());
}

void RunView::line(std::string_view line) {
  progress_.line(line);
  const size_t at = line.find(kMeanLoss);
  if (!line.starts_with(kEpoch) || at == std::string_view::npos) return;
  epochs_.emplace_back(line.substr(kEpoch.size(), at - kEpoch.size()), line.substr(at + kMeanLoss.size()));
}

void RunView::notice(std::string_view message) { progress_.line(paint(fd_, Paint::yellow, message)); }

void RunView::tick(const RankStatus& status) {
  ProgressState state;
  state.epoch = status.epoch.load();
  state.epochs = static_cast<uint32_t>(spec_.train.epochs);
  state.step = status.step.load();
  state.steps = status.total_steps.load();
  state.has_loss = spec_.loss.has_value();
  state.loss = status.loss.load();
  state.samples_per_second = status.samples_per_second.load();
  progress_.update(state, seconds());
}

void RunView::end(const Outcome& outcome, const RunDirectory& directory) {
  progress_.line(summary(outcome, directory));
  progress_.finish();
}

std::string RunView::summary(const Outcome& outcome, const RunDirectory& directory) const {
  std::string text;
  if (!epochs_.empty()) {
    Table table({">epoch", ">mean loss"});
    const size_t first = epochs_.size() > kMostEpochs ? epochs_.size() - kMostEpochs : 0;
    for (size_t i = first; i < epochs_.size(); ++i) table.add({epochs_[i].first, epochs_[i].second});
    text += "\n" + table.str() + "\n";
  }
  const std::string ending = outcome.signal != 0                       ? "stopped by " + signal_name(outcome.signal)
                             : outcome.cause.kind != Cause::Kind::none ? "failed"
                                                                       : "done";
  const Paint color = ending == "done" ? Paint::green : Paint::red;
  return text + paint(fd_, color, ending) + " after " + format_seconds(outcome.seconds) + "; logs in " +
         directory.path();
}

}  // namespace trainctl
