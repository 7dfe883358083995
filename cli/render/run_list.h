// The runs of a log directory, as a table and as JSON.
#pragma once

#include <string>

#include "launcher/run_directory.h"

namespace trainctl {

/// "--- run 3: done after 12s, step 440/440, loss 1.2031, accuracy 0.9934 ---\n"; empty if its launcher recorded no
/// end.
std::string run_summary(const RunDirectory& run);

/// One row per run, the oldest first; lines of `width` columns. "no runs in …" if there are none.
std::string run_table(const std::string& log_dir, int width);

/// One object per line: {"run": 3, "state": "done", "ranks": 8, "started": …, "path": …, "last_line": …}; if the run
/// has ended, also seconds, step and loss.
std::string run_lines(const std::string& log_dir);

}  // namespace trainctl
