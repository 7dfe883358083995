// A shared library that is opened on first use, so that one binary also starts where it is missing.
#pragma once

#include <string>
#include <vector>

namespace trainctl {

/// The variable with the folders, "a:b", that are searched before the system's.
inline constexpr const char* kCudaLibraryPath = "TRAINCTL_CUDA_LIBRARY_PATH";

/// Stays open for the life of the process: drivers and the libraries on top of them do not survive dlclose.
class DynamicLibrary {
 public:
  /// Opens the first of `sonames` found in the folders of TRAINCTL_CUDA_LIBRARY_PATH, or else by the loader
  /// (LD_LIBRARY_PATH, ld.so.cache). `what` names the library in messages: "NCCL". Throws EnvError that lists what was
  /// looked for, where, and what the loader reported.
  DynamicLibrary(std::string what, const std::vector<std::string>& sonames);

  /// Throws EnvError if the library has no such symbol: it is too old.
  template <class Function>
  void bind(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(find(symbol));
  }
  bool has(const char* symbol) const;
  /// Path at which the library was found.
  const std::string& path() const { return path_; }
  /// The handle that dlopen returned, for code that looks up symbols itself.
  void* handle() const { return handle_; }

 private:
  void* find(const char* symbol) const;

  std::string what_, path_;
  void* handle_ = nullptr;
};

}  // namespace trainctl
