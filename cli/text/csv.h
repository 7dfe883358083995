// Lines of comma-separated values (RFC 4180).
#pragma once

#include <string>
#include <vector>

namespace trainctl {

/// One line, with its end. Cells that contain commas, quotes or line breaks are quoted.
std::string csv_line(const std::vector<std::string>& cells);

}  // namespace trainctl
