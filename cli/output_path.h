// Checks that a command can write its output before it starts the work.
#pragma once

#include <string>

namespace trainctl {

/// Throws EnvError that begins with `option` if a file cannot be created or overwritten at `path`, or if `path` is a
/// symbolic link (engine/base/output_file.h). Changes nothing.
void require_writable_file(const std::string& path, const std::string& option);

/// The same for a folder, which need not exist yet: it, or the nearest folder above it, must be writable.
void require_writable_folder(const std::string& path, const std::string& option);

}  // namespace trainctl
