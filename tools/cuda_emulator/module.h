// PTX modules of the program: their variables, and their kernels, which are decoded on first use.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "tools/cuda_emulator/decoder.h"

namespace trainctl::emulator {

class Module {
 public:
  explicit Module(std::string ptx) : ptx_(std::move(ptx)) {}
  const Kernel& kernel(const std::string& name);
  /// Null if there is no such variable.
  void* variable(const std::string& name);

 private:
  void load();
  std::string ptx_;
  std::unique_ptr<ModuleText> text_;
  Symbols symbols_;
  std::map<std::string, Kernel> kernels_;
};

}  // namespace trainctl::emulator
