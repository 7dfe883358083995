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

/// The regular files that match the pattern, sorted. A pattern without wildcards gives that one file, if it exists.
std::vector<std::string> files_matching(const std::string& pattern);

}  // namespace trainctl
