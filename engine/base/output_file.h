// Files that a command writes where the user says, often in a folder that others can write to.
#pragma once

#include <string>
#include <string_view>

namespace trainctl {

/// owner: mode 0600, for what holds the token or values of `env`.
enum class FileReaders { all, owner };

/// Makes `text` the whole content of the file at `path`: readers see the old content or the new one. A symbolic link at
/// `path` is refused, not followed: someone else may have put it there. FIFOs, devices and /dev/stdout are written to as
/// they are. Throws EnvError.
void write_output(const std::string& path, std::string_view text, FileReaders readers = FileReaders::all);

/// Throws EnvError if there is a symbolic link at `path` that write_output would refuse.
void require_no_link(const std::string& path);

}  // namespace trainctl
