// The job files, name maps and manifests of clusters of templates/, embedded in the binary (cli/CMakeLists.txt
// generates the .cpp).
#pragma once

#include <string_view>
#include <vector>

namespace trainctl {

struct JobTemplate {
  std::string_view name;  ///< the file's, without .yaml or .in; of template_files(): its path
  std::string_view text;
};

const std::vector<JobTemplate>& job_templates();
const std::vector<JobTemplate>& template_files();     ///< data that job templates name, by path: "finetune/talks.jsonl"
const std::vector<JobTemplate>& name_maps();          ///< engine/spec/name_map_file.h
const std::vector<JobTemplate>& cluster_templates();  ///< launcher/clusters/fill.h; "slurm.sh" is of slurm.sh.in

}  // namespace trainctl
