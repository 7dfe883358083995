#include "engine/ops/matmul/algorithm_choice_cuda.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>

#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl::cuda {
namespace {

namespace fs = std::filesystem;

using Choices = std::map<std::string, std::string>;  ///< product -> the algorithm in hexadecimal

std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  unsigned char bytes[sizeof(algorithm.data)];
  std::memcpy(bytes, algorithm.data, sizeof(bytes));
  std::string text;
  for (unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte / 16];
    text += "0123456789abcdef"[byte % 16];
  }
  return text;
}

std::optional<fs::path> file_of_this_machine() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if ((cache == nullptr || *cache == '\0') && (home == nullptr || *home == '\0')) return std::nullopt;
  const fs::path root = cache != nullptr && *cache != '\0' ? fs::path(cache) : fs::path(home) / ".cache";
  int device = 0, driver = 0;
  cudaDeviceProp properties{};
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  cuda_check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  std::string name = properties.name;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  name += "-" + std::to_string(properties.multiProcessorCount) + "-" + std::to_string(driver) + "-" +
          std::to_string(cublaslt().version());
  return root / "trainctl" / "products" / name;
}

/// An open, locked file: one process measures while the others wait.
class LockedFile {
 public:
  explicit LockedFile(const fs::path& path) : path_(path) {
    std::error_code failed;
    fs::create_directories(path.parent_path(), failed);
    file_ = failed ? -1 : ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    while (file_ >= 0 && ::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~LockedFile() {
    if (file_ >= 0) ::close(file_);
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  bool is_open() const { return file_ >= 0; }
  /// One choice a line; ignores a line that a dying process left incomplete.
  Choices read() const {
    Choices choices;
    std::ifstream in(path_);
    for (std::string line; std::getline(in, line);) {
      const size_t space = line.find(' ');
      if (space == std::string::npos || line.back() != '.') continue;
      choices.emplace(line.substr(0, space), line.substr(space + 1, line.size() - space - 2));
    }
    return choices;
  }
  bool add(const std::string& product, const std::string& algorithm) const {
    const std::string line = "\n" + product + " " + algorithm + ".\n";
    return ::lseek(file_, 0, SEEK_END) >= 0 && ::write(file_, line.data(), line.size()) == ssize_t(line.size());
  }

 private:
  fs::path path_;
  int file_ = -1;
};

size_t fastest(const std::vector<cublasLtMatmulHeuristicResult_t>& candidates, const MeasureAlgorithm& measure) {
  size_t best = 0;
  float best_time = -1;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const float time = measure(candidates[i]);
    // A later suggestion must be faster by more than noise; otherwise the library's order decides. An algorithm that
    // wins a trial by 1 % may take more power, which slows long runs of large products by 3 %.
    if (time < 0 || (best_time >= 0 && time > 0.98f * best_time)) continue;
    best = i;
    best_time = time;
  }
  return best;
}

std::optional<size_t> index_of(const std::string& algorithm,
                               const std::vector<cublasLtMatmulHeuristicResult_t>& candidates) {
  for (size_t i = 0; i < candidates.size(); ++i)
    if (text_of(candidates[i].algo) == algorithm) return i;
  return std::nullopt;
}

}  // namespace

size_t choose_algorithm(const std::string& product, const std::vector<cublasLtMatmulHeuristicResult_t>& candidates,
                        const MeasureAlgorithm& measure) {
  static std::mutex mutex;
  static Choices taken;  // by this process: later changes of the file have no effect
  const std::lock_guard lock(mutex);
  const auto known = taken.find(product);
  if (known != taken.end()) return index_of(known->second, candidates).value_or(0);
  size_t chosen = 0;
  if (const std::optional<fs::path> path = file_of_this_machine(); path && candidates.size() > 1) {
    const LockedFile file(*path);
    const Choices kept = file.is_open() ? file.read() : Choices{};
    const auto found = kept.find(product);
    if (found != kept.end()) {
      chosen = index_of(found->second, candidates).value_or(0);
    } else if (file.is_open()) {
      chosen = fastest(candidates, measure);
      if (!file.add(product, text_of(candidates[chosen].algo))) chosen = 0;
    }
  }
  taken.emplace(product, text_of(candidates[chosen].algo));
  return chosen;
}

}  // namespace trainctl::cuda
