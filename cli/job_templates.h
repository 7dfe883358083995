// The job files of templates/, built into the binary (cli/CMakeLists.txt makes the .cpp).
#pragma once

#include <string_view>
#include <vector>

namespace trainctl {

struct JobTemplate {
  std::string_view name;  ///< the file's stem
  std::string_view text;
};

const std::vector<JobTemplate>& job_templates();

}  // namespace trainctl
