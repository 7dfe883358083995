// A kernel in executable form: decoded instructions that work on the registers of 32 lanes at a time.
//
// A warp has one register file, an array of bytes:  [ constants | special registers | registers of the kernel ]
// A register of N bytes per lane takes N * 32 bytes there; a predicate is one word with a bit per lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trainctl::emulator {

struct Warp;
struct Instruction;

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAllLanes = ~uint32_t{0};

/// Executes an instruction for the lanes of `mask`, which is not empty.
using Run = void (*)(const Instruction&, Warp&, uint32_t mask);

/// Effect of an instruction on the control flow of a warp.
enum class Flow : uint8_t {
  plain,
  branch,
  exit,
  block_barrier,
  named_barrier,  ///< for as many of the block's threads as the operand says
  warp_sync,      ///< all lanes of the member mask meet, then `run`
  bar_warp,       ///< the same, but they may meet at different instructions
  mbarrier_wait,
  cluster_arrive,
  cluster_wait
};

enum class Space : uint8_t { generic, global, shared, param, local };

/// The source line that an instruction comes from.
struct SourceLine {
  int file = 0, line = 0;
  int caller_file = 0, caller_line = 0;  ///< where it was inlined, or 0
};

struct Instruction {
  Run run = nullptr;
  Flow flow = Flow::plain;
  Space space = Space::generic;
  uint8_t width = 0;          ///< bytes of a lane in the register of an address
  uint8_t data_width = 0;     ///< bytes loaded, stored or converted
  uint8_t element_bytes = 4;  ///< in memory
  uint8_t count = 1;          ///< elements of a vector access
  bool is_signed = false;
  bool relaxed = false;    ///< barrier without memory ordering
  int32_t predicate = -1;  ///< register; -1: always
  uint32_t flip = 0;       ///< all ones: runs where the predicate is false
  int32_t to[4] = {-1, -1, -1, -1};
  int32_t from[10] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  int64_t offset = 0;     ///< offset of an address
  int32_t target = 0;     ///< target of a branch
  int32_t text_line = 0;  ///< in the PTX of its module
  SourceLine source;
};

struct SpecialRegister {
  std::string name;
  int32_t at = 0;
};

struct Parameter {
  size_t offset = 0, bytes = 0;
};

/// A kernel's code and what a launch needs to know.
struct Kernel {
  std::string name;  ///< mangled
  std::vector<Instruction> code;
  std::vector<std::byte> constants;  ///< the head of each register file
  std::vector<SpecialRegister> specials;
  std::vector<std::string> files;  ///< by number, of the module
  std::vector<Parameter> parameters;
  size_t parameter_bytes = 0;
  size_t register_bytes = 0;  ///< size of the whole file
  size_t shared_bytes = 0;    ///< without the dynamic part
  size_t dynamic_shared_at = 0;
  size_t local_bytes = 0;  ///< per thread
  int max_threads = 1024;
  bool bytes_shared = false;  ///< shared memory is also accessed in units of less than 4 bytes
};

}  // namespace trainctl::emulator
