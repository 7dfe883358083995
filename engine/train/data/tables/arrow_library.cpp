// Finds and opens libtrainctl_arrow.so.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/data/tables/arrow_file.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

/// TRAINCTL_ARROW, the folder of an installed tree, and build/arrow of a checkout.
std::vector<std::string> arrow_library_paths() {
  if (const char* chosen = std::getenv("TRAINCTL_ARROW"); chosen != nullptr && *chosen != '\0') {
    std::error_code ignored;
    return {fs::is_directory(chosen, ignored) ? (fs::path(chosen) / kArrowShimName).string() : std::string(chosen)};
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path folder = program.parent_path();
  return {(folder / ".." / "lib" / "trainctl" / kArrowShimName).lexically_normal().string(),
          (folder / ".." / ".." / "arrow" / kArrowShimName).lexically_normal().string()};
}

const TrainctlArrow* open_arrow_library() {
  std::vector<std::string> tried;
  for (const std::string& path : arrow_library_paths()) {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      tried.push_back(path);
      continue;
    }
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw EnvError(fmt::format("{} cannot be opened: {}", path, dlerror()));
    const auto functions = reinterpret_cast<const TrainctlArrow* (*)()>(dlsym(handle, kArrowShimSymbol));
    if (functions == nullptr || functions()->version != kArrowShimVersion)
      throw EnvError(path + " belongs to another version of trainctl; run ./bootstrap arrow again");
    return functions();
  }
  throw EnvError(fmt::format(
      "Parquet and Arrow files need the library {}, which is not {}; run ./bootstrap arrow in a clone of trainctl, and "
      "set TRAINCTL_ARROW to its folder build/arrow, or install trainctl again after it, which copies the library",
      kArrowShimName, join(tried, " or ")));
}

}  // namespace

const TrainctlArrow& arrow_library() {
  static const TrainctlArrow* library = open_arrow_library();  // an exception leaves it to the next call
  return *library;
}

}  // namespace trainctl
