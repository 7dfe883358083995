// Files by name or glob.
#include "engine/train/data/file_patterns.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/file_wait.h"
#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/train/files/store/objects.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

class Search {
 public:
  explicit Search(const fs::path& pattern) {
    for (const fs::path& part : pattern.relative_path()) parts_.push_back(part.string());
  }

  std::vector<std::string> run(const fs::path& start) {
    look_in(start, 0);
    std::sort(found_.begin(), found_.end());
    found_.erase(std::unique(found_.begin(), found_.end()), found_.end());  // The pattern `**/**` reaches a folder
                                                                            // twice.
    return std::move(found_);
  }

 private:
  /// Looks for files in `folder`, which matches the parts of the pattern before `part`.
  void look_in(const fs::path& folder, size_t part) {
    if (part == parts_.size()) return;
    const std::string& wanted = parts_[part];
    if (!is_glob(wanted)) return take(folder / wanted, part);
    const bool any_depth = wanted == "**";
    if (any_depth) look_in(folder, part + 1);
    std::error_code ignored;
    for (const fs::directory_entry& entry : entries_of(folder.empty() ? "." : folder.string())) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with('.') && !wanted.starts_with('.')) continue;
      if (any_depth) {
        if (entry.is_directory(ignored) && !entry.is_symlink(ignored)) look_in(folder / name, part);
      } else if (glob_match(wanted, name)) {
        take(folder / name, part);
      }
    }
  }

  static std::vector<fs::directory_entry> entries_of(const std::string& folder) {
    const FileWait wait(folder);
    std::error_code ignored;
    return {fs::directory_iterator(folder, ignored), {}};
  }

  void take(const fs::path& path, size_t part) {
    std::error_code ignored;
    if (part + 1 < parts_.size())
      look_in(path, part + 1);
    else if (fs::is_regular_file(path, ignored))
      found_.push_back(path.string());
  }

  std::vector<std::string> parts_, found_;
};

}  // namespace

std::vector<std::string> files_matching(const std::string& pattern) {
  if (is_url(pattern)) {
    const std::string shown = shown_url(pattern);
    const FileWait wait(shown);
    return object_store::matching_objects(pattern);
  }
  return Search(pattern).run(fs::path(pattern).root_path());
}

}  // namespace trainctl
