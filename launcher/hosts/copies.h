// launch.copy: files and folders of the launcher's host that each host receives before its ranks start. A copy is named
// by the SHA-256 of its contents, and is sent to a host once:
//
//   ~/.cache/trainctl/copies/<name>            a file or a folder, read-only
//   ~/.cache/trainctl/runs/<id>/copied/<path>  what the ranks see: links, at the path on the launcher's host
//
// A host that lacks a copy reports it when it is ready, and receives the files over the stream (frame.h).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl::hosts {

struct Copy {
  struct File {
    std::string name;  ///< relative to the folder; empty: the copy is this file
    std::string path;  ///< path on this host
    int64_t bytes = 0;
    bool is_executable = false;
  };
  std::string path;  ///< absolute
  std::string name;  ///< 64 hexadecimal digits
  std::vector<File> files;
  int64_t bytes() const;
};

/// Reads all files. A path inside another path's folder is omitted. Throws EnvError for what cannot be copied.
std::vector<Copy> copies_of(const std::vector<std::string>& paths);

/// The location of `path` relative to the agent's folder if it is in one of the copied `paths`; otherwise nullopt.
std::optional<std::string> copied_path(const std::vector<std::string>& paths, const std::string& path);
/// The same for a program's working folder, which may also be above copied paths.
std::optional<std::string> copied_folder(const std::vector<std::string>& paths, const std::string& folder);

/// The host's side.
class KeptCopies {
 public:
  struct Wanted {
    std::string path, name;
  };

  /// `folder`: folder of the agent, inside a folder of the cache. `program_folder`: result of copied_folder; nothing
  /// that is written there goes into the cache.
  KeptCopies(std::string folder, std::string program_folder, std::vector<Wanted> wanted);
  /// Names of the copies that this host lacks.
  std::set<std::string> missing() const;

  /// Writes a piece of a file of a missing copy; `file` is empty if the copy is a file. Throws EnvError.
  void write(const std::string& name, const std::string& file, int64_t offset, std::string_view bytes,
             bool is_executable) const;
  /// Call it when all files of a copy have been written. Throws EnvError.
  void keep(const std::string& name) const;
  /// Makes the links, once no copy is missing. Throws EnvError.
  void link() const;

 private:
  void require_wanted(const std::string& name) const;
  std::string coming(const std::string& name) const { return folder_ + "/coming." + name; }
  std::string kept(const std::string& name) const { return cache_ + "/" + name; }

  const std::string folder_, cache_, program_folder_;
  const std::vector<Wanted> wanted_;
};

}  // namespace trainctl::hosts
