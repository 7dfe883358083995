// Loads a PTX module: places its variables in device memory, and decodes a kernel on its first use.
#include "tools/cuda_emulator/module.h"

#include <cstring>
#include <stdexcept>

#include "tools/cuda_emulator/global_memory.h"

namespace trainctl::emulator {

void Module::load() {
  if (text_ != nullptr) return;
  text_ = std::make_unique<ModuleText>(std::move(ptx_));
  for (const std::string_view variable : text_->variables) {
    if (variable.find(".shared") != std::string_view::npos) continue;
    const Declaration d = parse_declaration(variable);
    if (d.open) throw std::runtime_error("PTX: an external variable: " + std::string(d.name));
    auto* memory = static_cast<std::byte*>(global_memory().allocate(d.bytes));
    std::memset(memory, 0, d.bytes);
    const size_t each = bytes_of_type(d.type);
    for (size_t i = 0; i < d.values.size(); ++i) {
      const Argument value = parse_statement("x " + std::string(d.values[i])).arguments.at(0);
      if (value.kind == Argument::Kind::name)
        throw std::runtime_error("PTX: a variable initialised with an address: " + std::string(d.name));
      std::memcpy(memory + i * each, &value.value, each);
    }
    std::memset(global_memory().find(reinterpret_cast<uint64_t>(memory))->written.get(), 1, d.bytes);
    symbols_[std::string(d.name)] = {Space::global, reinterpret_cast<uint64_t>(memory)};
  }
}

const Kernel& Module::kernel(const std::string& name) {
  load();
  const auto found = kernels_.find(name);
  if (found != kernels_.end()) return found->second;
  return kernels_.emplace(name, Decoder(*text_, symbols_).decode(name)).first->second;
}

void* Module::variable(const std::string& name) {
  load();
  const auto found = symbols_.find(name);
  return found == symbols_.end() ? nullptr : reinterpret_cast<void*>(found->second.address);
}

}  // namespace trainctl::emulator
