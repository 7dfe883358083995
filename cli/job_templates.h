// The job files of templates/, embedded in the binary (cli/CMakeLists.txt generates the .cpp).
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
