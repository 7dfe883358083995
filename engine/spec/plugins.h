// `plugins`: shared libraries with layer types of their own (base/plugins.h). In a JobSpec each entry names the
// contents as well as the file, so all ranks run the same code, and the digest of a job changes with that of its
// plugins.
//
//   plugins: [./my_op.so]
//   plugins: ['/home/me/my_op.so#sha256=9f86d0…']
#pragma once

#include <string>

#include "engine/spec/job_text.h"
#include "engine/spec/problems.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {

struct PluginFile {
  std::string path;
  std::string digest;  ///< 64 hexadecimal digits; empty: any contents
};
/// Splits an entry of JobSpec::plugins.
PluginFile plugin_file(const std::string& entry);
std::string to_string(const PluginFile& file);

/// Makes a path absolute, so that it means the same everywhere: the job may be saved in the folder of a run, and ranks
/// may run in other folders.
std::string absolute_path(const std::string& folder, const std::string& path);

/// Loads the plugins of a job, and replaces their entries in the tree by absolute paths with digests. Returns false
/// after an error.
bool load_plugins(YamlNode& root, const JobText& from, Problems& problems);

}  // namespace trainctl
