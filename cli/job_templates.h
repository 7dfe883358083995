// The job files and name maps of templates/, embedded in the binary (cli/CMakeLists.txt generates the .cpp).
#pragma once

#include <string_view>
#include <vector>

namespace trainctl {

struct JobTemplate {
  std::string_view name;  ///< the file's stem
  std::string_view text;
};

const std::vector<JobTemplate>& job_templates();
const std::vector<JobTemplate>& name_maps();  ///< engine/spec/name_map_file.h

}  // namespace trainctl
