// A shared library that is opened when it is first needed, so that one binary starts where it is missing.
#pragma once

#include <string>
#include <vector>

namespace trainctl {

/// Open for as long as the process lives: drivers and the libraries on top of them do not survive dlclose.
class DynamicLibrary {
 public:
  /// The first of `sonames` that is found in the folders of TRAINCTL_CUDA_LIBRARY_PATH, or else where the loader
  /// looks (LD_LIBRARY_PATH, ld.so.cache). `what` says in messages what it is: "NCCL". Throws EnvError that
  /// names what was looked for, where, and what the loader said.
  DynamicLibrary(std::string what, const std::vector<std::string>& sonames);

  /// EnvError where the library has no such symbol: it is too old.
  template <class Function>
  void bind(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(find(symbol));
  }
  bool has(const char* symbol) const;
  /// Where it was found.
  const std::string& path() const { return path_; }

 private:
  void* find(const char* symbol) const;

  std::string what_, path_;
  void* handle_ = nullptr;
};

}  // namespace trainctl
