// Manual pages of section 1, written from the table of commands that the parser, --help and completion use.
#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace trainctl {

/// File name of a command's page: "trainctl-bench-op.1".
std::string man_page_file(const CLI::App& command);

/// The page as roff, with the macros of man(7). `version`: "trainctl 0.1.0", shown in its footer.
std::string man_page(const CLI::App& command, const std::string& version);

}  // namespace trainctl
