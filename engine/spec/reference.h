// Generates the tables of docs/job.md from the field table.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace trainctl {

/// Name of each table ("dataset", "layers", …) and its Markdown, in the order of the page.
std::vector<std::pair<std::string, std::string>> reference_tables();

}  // namespace trainctl
