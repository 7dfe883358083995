// Files by name or glob.
//
//   data/train_*.bin    * any characters of a name, ? one
//   src/**/*.h          ** any number of folders, also none
//
// Objects of stores, s3://bucket/data/*.tar, are listed by the store (engine/train/files/store). Wildcards match no
// name that begins with a dot, and ** does not follow links to folders.
#pragma once

#include <string>
#include <vector>

namespace trainctl {

/// The regular files that the pattern names, sorted; one file if it has no wildcard and the file is there.
std::vector<std::string> files_matching(const std::string& pattern);

}  // namespace trainctl
