// Interface of the view that shows a run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "cli/run/launch/run_end.h"
#include "launcher/live_status.h"
#include "launcher/run_directory.h"

namespace trainctl {

class RunObserver {
 public:
  virtual ~RunObserver() = default;

  /// `processes`: see processes_text (rank_names.h). `device`: may be empty.
  virtual void begin(const std::string& name, const std::string& processes, const RunDirectory& directory,
                     const std::string& device) = 0;
  /// Receives a line of the first rank. `is_shown`: line() or line_of() follows.
  virtual void listen(std::string_view line, bool is_shown) = 0;
  /// Shows a line of the only shown rank.
  virtual void line(std::string_view line) = 0;
  /// Shows a line of one of several shown ranks.
  virtual void line_of(int rank, std::string_view line) = 0;
  /// Shows a warning of the launcher.
  virtual void notice(std::string_view message) = 0;
  /// Shows any other line of the launcher.
  virtual void news(std::string_view message) = 0;
  /// Called often. Returns whether `update` should be called too.
  virtual bool tick() = 0;
  virtual void update(const LiveStatus& status) = 0;
  virtual void end(const RunEnd& end, const RunDirectory& directory) = 0;
  /// Shows lines, including line breaks, that explain a failure; called before or after end().
  virtual void failure(std::string_view text) = 0;
};

/// Makes the observer of a run. `fd`: output descriptor.
using MakeObserver = std::function<std::unique_ptr<RunObserver>(int fd)>;

}  // namespace trainctl
