// The machine that runs a launch: clusters one after another in an order of chance, their warps in turns of chance,
// the lanes of a warp in lock step as long as they go the same way.
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
  bool may_overlap = false;  ///< it may begin before the launch before it has ended
  uint64_t number = 0;
  uint64_t before = 0;  ///< the launch that may still run when this one begins; 0: none
};

/// Numbers of chance that are the same in every run.
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

/// Lanes of a warp that are at one instruction.
struct Group {
  enum class Wait : uint8_t { none, block_barrier, named_barrier, warp, mbarrier, cluster };
  int pc = 0;
  uint32_t mask = 0;
  Wait wait = Wait::none;
  uint32_t barrier = 0;  ///< named_barrier: which of the block's
};

/// A copy to shared memory that a thread has begun and not waited for.
struct PendingCopy {
  uint64_t from = 0;
  uint32_t to = 0;
  uint8_t bytes = 0, taken = 0;  ///< the rest is zeros
  uint8_t lane = 0;
  int32_t group = 0;
  uint32_t clock = 0;  ///< when it was told to a barrier; 0: not yet
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
  uint32_t started = 0;  ///< lanes that there are
  uint32_t waited = 0;   ///< lanes that have waited for the launch before
  uint32_t cluster_arrived = 0;
  std::vector<PendingCopy> copies;
  int32_t copy_groups[kLanes] = {};  ///< committed
  uint32_t stamp = 0;                ///< a clock that accesses bear in place of now's; 0: none
  const Instruction* now = nullptr;
  std::vector<uint64_t> acquired;  ///< words that it has added to, and what they tell it
  std::vector<uint32_t> fenced;    ///< what it had heard of at its last fence
  uint32_t self_fenced = 0;
  uint32_t carry = 0;  ///< of add.cc and the like, a bit a lane

  template <class T>
  T* at(int32_t place) {
    return reinterpret_cast<T*>(registers + place);
  }
  uint32_t& mask_at(int32_t place) { return *reinterpret_cast<uint32_t*>(registers + place); }

  /// Runs for so many instructions or until it must wait. Whether it did anything.
  bool run(int instructions);
  bool done() const { return groups.empty(); }
  /// Copies of the lanes of the mask but the last `pending` groups are done now; -1: also those of no group yet.
  void finish_copies(uint32_t mask, int32_t pending);
  /// The block's barrier is passed.
  void merge_barrier();
  /// Lanes that go on at one instruction go on together.
  void merge();

 private:
  bool flow(const Instruction& in, size_t group, uint32_t on);
  void wait_at(size_t group, uint32_t on, Group::Wait wait, int pc);
  bool meet(size_t group);
};

/// A barrier in shared memory.
struct Mbarrier {
  int64_t expected = 0, pending = 0, bytes = 0;
  uint64_t phase = 0;  ///< how often it was passed
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
  /// Of the block's barrier of that number, where so many threads meet.
  void check_named_barrier(uint32_t barrier, uint32_t threads);
  bool done() const;
};

/// Something on its way to shared memory.
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
  /// In this launch, by word that was added to, and by cluster: up to where its warps' work was fenced off before.
  std::map<uint64_t, std::map<uint32_t, std::vector<uint32_t>>> released;

  /// What accesses of a warp bear.
  uint32_t clocks_now(const Warp& warp) { return warp.stamp != 0 ? warp.stamp : clocks.now(warp.number); }

  void check_cluster_barrier();
  void deliver(size_t which);
  /// The block and the place that an address of shared::cluster means, of `warp`.
  Block& block_of(uint32_t address, Block& own) const;
  void complete(Block& block, Mbarrier& barrier);
};

/// Runs all of it. Faults are reported; a Trap ends it.
void run_launch(const Launch& launch);

/// A kernel's name without its mangling.
std::string readable(const std::string& name);
/// Where an instruction is, for a message.
std::string place_of(const Warp& warp, const Instruction& in, int lane);
/// Where the instruction of a line of PTX is, for a message.
std::string line_of(const Warp& warp, int text_line);
/// Reports what a lane does wrong; deduplicated by kind and instruction.
void fault(const Warp& warp, const Instruction& in, int lane, const char* kind, const std::string& text);
[[noreturn]] void trap(const Warp& warp, const Instruction& in, int lane, const char* kind, const std::string& text);

inline constexpr uint64_t kSharedWindow = uint64_t{0x7f55} << 48, kWindowMask = ~uint64_t{0xffffffff};

// Accesses of one lane, with all checks. Addresses of shared memory are those of shared::cluster: 0 in the highest byte
// is the own block, n + 1 block n.
const std::byte* read_global(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes);
std::byte* write_global(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes);
/// For an atomic, which races with nothing.
std::byte* global_word(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes);
const std::byte* read_shared(Warp& warp, const Instruction& in, int lane, uint32_t address, uint32_t bytes,
                             bool atomic = false);
std::byte* write_shared(Warp& warp, const Instruction& in, int lane, uint32_t address, uint32_t bytes,
                        const void* value, bool atomic = false);
/// A CUtensorMap at a generic address, and what one copy by it brings.
const std::byte* read_map(Warp& warp, const Instruction& in, int lane, uint64_t address);
uint32_t bytes_of_tile(const std::byte* map);
/// Only looks whether a write would be a race, for one that comes later.
void expect_write(Warp& warp, const Instruction& in, int lane, uint32_t address, uint32_t bytes);

}  // namespace trainctl::emulator
