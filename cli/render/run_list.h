// The runs of a log directory, as a table and as JSON.
#pragma once

#include <string>

namespace trainctl {

/// One row per run, the oldest first; lines of `width` columns. "no runs in …" if there are none.
std::string run_table(const std::string& log_dir, int width);

/// One object per line: {"run": 3, "state": "done", "ranks": 8, "started": …, "path": …, "last_line": …}.
std::string run_lines(const std::string& log_dir);

}  // namespace trainctl
