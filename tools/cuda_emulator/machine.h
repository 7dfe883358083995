// The machine that runs a launch:
//   clusters           one after another, in pseudo-random order
//   warps of a cluster interleaved in pseudo-random order
//   lanes of a warp    in lock step until they diverge
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/cuda_emulator/faults.h"
#include "tools/cuda_emulator/global_memory.h"
#include "tools/cuda_emulator/instruction.h"
#include "tools/cuda_emulator/shared_checks.h"

namespace trainctl::emulator {

struct Dim {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t all() const { return uint64_t{x} * y * z; }
};

struct Launch {
  const Kernel* kernel = nullptr;
  Dim grid, block;
  uint32_t cluster = 1;  ///< blocks, along x
  size_t dynamic_shared = 0;
  const std::byte* parameters = nullptr;
  bool may_overlap = false;  ///< it may begin before the previous launch has ended
  uint64_t number = 0;
  uint64_t before = 0;  ///< the launch that may still run when this one begins; 0: none
};

/// Pseudo-random numbers from a fixed seed.
class Chance {
 public:
  explicit Chance(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x1234567u) {}
  uint32_t below(uint32_t n) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>((state_ >> 20) % n);
  }

 private:
  uint64_t state_;
};

struct Block;
struct Cluster;

/// Lanes of a warp that are at the same instruction.
struct Group {
  enum class Wait : uint8_t { none, block_barrier, named_barrier, warp, mbarrier, cluster };
  int pc = 0;
  uint32_t mask = 0;
  Wait wait = Wait::none;
  uint32_t barrier = 0;  ///< named_barrier: its number in the block
};

/// A copy to shared memory that a thread has begun and not yet waited for.
struct PendingCopy {
  uint64_t from = 0;
  uint32_t to = 0;
  uint8_t bytes = 0, taken = 0;  ///< the rest is zero-filled
  uint8_t lane = 0;
  int32_t group = 0;
  uint32_t clock = 0;  ///< when it was announced to a barrier; 0: not yet
  const Instruction* in = nullptr;
};

struct Warp {
  Block* block = nullptr;
  int index = 0;   ///< in its block
  int number = 0;  ///< in its cluster
  std::byte* registers = nullptr;
  std::vector<std::byte> local;
  std::vector<Group> groups;
  uint32_t live = 0;
  uint32_t started = 0;  ///< lanes that exist
  uint32_t waited = 0;   ///< lanes that have waited for the previous launch
  uint32_t cluster_arrived = 0;
  std::vector<PendingCopy> copies;
  int32_t copy_groups[kLanes] = {};  ///< committed
  uint32_t stamp = 0;                ///< clock to record for accesses instead of the current one; 0: none
  const Instruction* now = nullptr;
  std::vector<uint64_t> acquired;  ///< words that it has added to; what was released there comes before its next access
  std::vector<uint32_t> fenced;    ///< clocks of other warps that it knew at its last fence
  uint32_t self_fenced = 0;
  uint32_t carry = 0;  ///< carry of add.cc and similar instructions, one bit per lane

  template <class T>
  T* at(int32_t place) {
    return reinterpret_cast<T*>(registers + place);
  }
  uint32_t& mask_at(int32_t place) { return *reinterpret_cast<uint32_t*>(registers + place); }

  /// Runs up to `instructions` instructions, or until it must wait. Returns whether it made progress.
  bool run(int instructions);
  bool done() const { return groups.empty(); }
  /// Finishes the copies of these lanes, except the last `pending` groups; -1: also those not yet in a group.
  void finish_copies(uint32_t mask, int32_t pending);
  /// Called when the block's barrier has completed: the warp now knows what the other warps of the block did before it.
  void merge_barrier();
  /// Joins lanes that continue at the same instruction.
  void merge();

 private:
  bool flow(const Instruction& in, size_t group, uint32_t on);
  bool wait_for_mbarrier(const Instruction& in, size_t group, uint32_t on);
  void wait_at(size_t group, uint32_t on, Group::Wait wait, int pc);
  bool reconverge(size_t group);
};

/// A barrier in shared memory.
struct Mbarrier {
  int64_t expected = 0, pending = 0, bytes = 0;
  uint64_t phase = 0;  ///< number of completed phases
  std::vector<uint32_t> news, last_news;
};

struct Block {
  Cluster* cluster = nullptr;
  int rank = 0;
  Dim index;
  std::vector<std::byte> shared;
  std::vector<Cell> cells;
  std::map<uint32_t, Mbarrier> barriers;
  std::vector<Warp> warps;

  void check_barrier();
  /// Completes the block's barrier of that number once `threads` threads have arrived.
  void check_named_barrier(uint32_t barrier, uint32_t threads);
  bool done() const;
};

/// A write or arrival on its way to shared memory.
struct InFlight {
  enum class Kind : uint8_t { store, tile, arrival } kind = Kind::store;
  Warp* from = nullptr;
  const Instruction* in = nullptr;
  int lane = 0;
  uint32_t clock = 0;
  uint32_t to = 0, barrier = 0;  ///< addresses in the cluster's shared memory
  uint32_t bytes = 0;
  uint32_t data[4] = {};
  const std::byte* map = nullptr;
  int32_t coordinates[2] = {};
};

struct Cluster {
  const Launch* launch = nullptr;
  Dim index;
  uint32_t number = 0;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<InFlight> in_flight;
  Clocks clocks;
  uint64_t cluster_phase = 0;
  std::vector<uint32_t> cluster_news;
  /// By word that was added to in this launch, then by cluster: the clocks of its warps at their last fence before.
  std::map<uint64_t, std::map<uint32_t, std::vector<uint32_t>>> released;

  /// The clock that the recorded accesses of this warp get.
  uint32_t clocks_now(const Warp& warp) { return warp.stamp != 0 ? warp.stamp : clocks.now(warp.number); }

  void check_cluster_barrier();
  void deliver(size_t which);
  /// The block that an address of shared::cluster refers to, as seen from `own`.
  Block& block_of(uint32_t address, Block& own) const;
  void complete(Block& block, Mbarrier& barrier);
};

/// Runs the whole launch. Faults are reported; a Trap ends it.
void run_launch(const Launch& launch);

/// The demangled name of a kernel.
std::string readable(const std::string& name);
/// Describes where an instruction is, for messages.
std::string place_of(const Warp& warp, const Instruction& in, int lane);
/// Describes where the instruction at a line of PTX is, for messages.
std::string line_of(const Warp& warp, int text_line);
/// Reports a fault of a lane, once per kind and instruction.
void fault(const Warp& warp, const Instruction& in, int lane, const char* kind, const std::string& text);
[[noreturn]] void trap(const Warp& warp, const Instruction& in, int lane, const char* kind, const std::string& text);

inline constexpr uint64_t kSharedWindow = uint64_t{0x7f55} << 48, kWindowMask = ~uint64_t{0xffffffff};

// The following functions access memory for one lane, with all checks. Addresses of shared memory are those of
// shared::cluster: if the highest byte is 0, the address is in the warp's own block; if it is n + 1, the address is in
// block n.
const std::byte* read_global(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes);
std::byte* write_global(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes);
/// Returns a word for an atomic operation, which cannot race.
std::byte* global_word(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes);
const std::byte* read_shared(Warp& warp, const Instruction& in, int lane, uint32_t address, uint32_t bytes,
                             bool atomic = false);
/// The same for the lanes of a warp, each of which has its own address. Sets from[lane].
void read_shared_lanes(Warp& warp, const Instruction& in, uint32_t mask, const uint32_t* addresses, uint32_t bytes,
                       const std::byte** from);
std::byte* write_shared(Warp& warp, const Instruction& in, int lane, uint32_t address, uint32_t bytes,
                        const void* value, bool atomic = false);
/// Reads the CUtensorMap at a generic address.
const std::byte* read_map(Warp& warp, const Instruction& in, int lane, uint64_t address);
uint32_t bytes_of_tile(const std::byte* map);
/// Checks whether a later write would race, without writing.
void expect_write(Warp& warp, const Instruction& in, int lane, uint32_t address, uint32_t bytes);

}  // namespace trainctl::emulator
