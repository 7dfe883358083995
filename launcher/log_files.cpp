// Finds the files of a stream.
#include "launcher/log_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace trainctl {

std::vector<int> LogFiles::numbers() const {
  const std::string prefix = name + ".";
  std::vector<int> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string file = at->path().filename();
    if (!file.starts_with(prefix)) continue;
    int number = 0;
    const auto [rest, bad] = std::from_chars(file.data() + prefix.size(), file.data() + file.size(), number);
    if (bad == std::errc{} && rest == file.data() + file.size() && number > 0) found.push_back(number);
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace trainctl
