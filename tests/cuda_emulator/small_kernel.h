// Small kernels of handwritten PTX on the emulator, for tests of the emulator itself.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "tools/cuda_emulator/faults.h"
#include "tools/cuda_emulator/machine.h"
#include "tools/cuda_emulator/module.h"

namespace trainctl::emulator {

/// A kernel `k` with one pointer parameter in %rd1, the thread's index in %r1, and the address of its word in %rd2.
inline std::string kernel(const std::string& body, const std::string& variables = "") {
  return ".version 9.0\n.target sm_90a\n.address_size 64\n" + variables +
         "\n.visible .entry k(.param .u64 k_param_0)\n{\n.reg .pred %p<9>;\n.reg .b32 %r<99>;\n.reg .f32 %f<99>;\n.reg "
         ".b64 %rd<9>;\n"
         "ld.param.u64 %rd3, [k_param_0];\ncvta.to.global.u64 %rd1, %rd3;\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd4, "
         "%r1, 4;\n"
         "add.s64 %rd2, %rd1, %rd4;\n" +
         body + "\nret;\n}\n";
}

/// An array of words in device memory.
class Words {
 public:
  explicit Words(size_t n) : words_(static_cast<uint32_t*>(global_memory().allocate(n * 4))), n_(n) {}
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  ~Words() { global_memory().free(words_); }
  uint32_t& operator[](size_t i) { return words_[i]; }
  void set_written() {
    std::memset(global_memory().find(reinterpret_cast<uint64_t>(words_))->written.get(), 1, n_ * 4);
  }
  void* data() { return words_; }

 private:
  uint32_t* words_;
  size_t n_;
};

/// Returns the text of a Trap, or all faults; empty if there are none.
inline std::string run(const std::string& ptx, Words& memory, uint32_t threads, uint32_t blocks = 1, uint32_t cluster = 1) {
  static uint64_t number = 1000000;
  Module module(ptx);
  void* parameter = memory.data();
  Launch launch;
  launch.kernel = &module.kernel("k");
  launch.grid.x = blocks;
  launch.block.x = threads;
  launch.cluster = cluster;
  launch.parameters = reinterpret_cast<const std::byte*>(&parameter);
  launch.number = ++number;
  forget_faults();
  try {
    run_launch(launch);
  } catch (const Trap& trap) {
    forget_faults();
    return trap.what();
  }
  return take_faults();
}

inline bool tells(const std::string& text, const std::string& what) {
  CAPTURE(text);
  CHECK(text.find(what) != std::string::npos);
  return text.find(what) != std::string::npos;
}

/// The variable `tile` of 1,024 bytes of shared memory, for `variables` of kernel().
inline constexpr const char* kShared = ".shared .align 16 .b8 tile[1024];";

}  // namespace trainctl::emulator
