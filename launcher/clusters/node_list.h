// Slurm's lists of nodes: "a[01-03,7],b" is a01, a02, a03, a7, b. Read here, since in a container there is no scontrol.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl::clusters {

/// The nodes in order; nullopt if the text is not a list, or names more than 65,536 nodes.
///
///   list  := item (',' item)*
///   item  := (text | '[' range (',' range)* ']')+        every combination, the last brackets change first
///   range := number | number '-' number                  leading zeros are kept
std::optional<std::vector<std::string>> expand_nodes(std::string_view list);

}  // namespace trainctl::clusters
