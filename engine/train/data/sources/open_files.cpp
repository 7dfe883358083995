// The files that a source reads at random.
#include "engine/train/data/sources/open_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/base/url.h"

namespace trainctl {

OpenFiles::OpenFiles(std::vector<std::string> paths, size_t most) : most_(most) {
  files_.reserve(paths.size());
  for (std::string& path : paths) {
    memory_bytes_ += static_cast<int64_t>(sizeof(File) + 2 * path.size());
    std::string shown = is_url(path) ? shown_url(path) : path;
    files_.push_back({std::move(path), std::move(shown), nullptr, -1, 0});
  }
}

std::shared_ptr<const InputFile> OpenFiles::get(size_t file) const {
  {
    const std::lock_guard lock(mutex_);
    File& wanted = files_[file];
    wanted.last_use = ++uses_;
    if (wanted.open) return wanted.open;
  }
  // The file is opened without the lock, so that a file system that hangs here delays no other thread. If two threads
  // open the same file, one of the two results is kept.
  return keep(file, std::make_shared<const InputFile>(address(file)));
}

std::shared_ptr<const InputFile> OpenFiles::keep(size_t file, std::shared_ptr<const InputFile> opened) const {
  const std::lock_guard lock(mutex_);
  File& kept = files_[file];
  if (kept.bytes >= 0 && kept.bytes != opened->bytes())
    throw EnvError(
        fmt::format("{}: had {} bytes when the data set was opened, but now has {}: files must not change during a "
                    "run",
                    kept.shown, with_commas(kept.bytes), with_commas(opened->bytes())));
  kept.bytes = opened->bytes();
  if (kept.open) return kept.open;
  if (open_.size() >= most_) {
    const auto oldest = std::min_element(
        open_.begin(), open_.end(), [this](size_t a, size_t b) { return files_[a].last_use < files_[b].last_use; });
    files_[*oldest].open = nullptr;  // closed when its last reader is done
    open_.erase(oldest);
  }
  open_.push_back(file);
  return kept.open = std::move(opened);
}

}  // namespace trainctl
