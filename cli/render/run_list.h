// The runs of a log directory, as a table and as JSON.
#pragma once

#include <string>

namespace trainctl {

/// A row a run, the oldest first; lines of `width` columns. "no runs in …" where there are none.
std::string run_table(const std::string& log_dir, int width);

/// An object a line: {"run": 3, "state": "done", "ranks": 8, "started": …, "path": …, "last_line": …}.
std::string run_lines(const std::string& log_dir);

}  // namespace trainctl
