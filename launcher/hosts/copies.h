// launch.copy: files and folders of the launcher's host that each host gets before its ranks start. A copy is named by
// the SHA-256 of its contents, and goes to a host once:
//
//   ~/.cache/trainctl/copies/<name>            a file, or a folder; it can only be read
//   ~/.cache/trainctl/runs/<id>/copied/<path>  what the ranks see: links, at the path that it has on the launcher's
//   host
//
// A host that lacks a copy says so when it is ready, and is given its files over the stream (frame.h).
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
    std::string name;  ///< in the folder; empty: the copy is this file
    std::string path;  ///< here
    int64_t bytes = 0;
    bool is_executable = false;
  };
  std::string path;  ///< absolute
  std::string name;  ///< 64 hexadecimal digits
  std::vector<File> files;
  int64_t bytes() const;
};

/// Reads all of it. A path inside another one's folder is left out. Throws EnvError for what cannot be
/// copied.
std::vector<Copy> copies_of(const std::vector<std::string>& paths);

/// Where ranks find `path` if it is in one of the copied `paths`, relative to the agent's folder; else nullopt.
std::optional<std::string> copied_path(const std::vector<std::string>& paths, const std::string& path);
/// The same for a folder that a program runs in: it may be above copied paths too.
std::optional<std::string> copied_folder(const std::vector<std::string>& paths, const std::string& folder);

/// The host's side.
class KeptCopies {
 public:
  struct Wanted {
    std::string path, name;
  };

  /// `folder`: of the agent, in a folder of the cache. `program_folder`: as copied_folder returns it; nothing that is
  /// written there goes into the cache.
  KeptCopies(std::string folder, std::string program_folder, std::vector<Wanted> wanted);
  /// The names of those that are not here.
  std::set<std::string> missing() const;

  /// A piece of a file of a missing one; `file` is empty if the copy is a file. Throws EnvError.
  void write(const std::string& name, const std::string& file, int64_t offset, std::string_view bytes,
             bool is_executable) const;
  /// All of its files have been written. Throws EnvError.
  void keep(const std::string& name) const;
  /// Makes the links, once none is missing. Throws EnvError.
  void link() const;

 private:
  void require_wanted(const std::string& name) const;
  std::string coming(const std::string& name) const { return folder_ + "/coming." + name; }
  std::string kept(const std::string& name) const { return cache_ + "/" + name; }

  const std::string folder_, cache_, program_folder_;
  const std::vector<Wanted> wanted_;
};

}  // namespace trainctl::hosts
