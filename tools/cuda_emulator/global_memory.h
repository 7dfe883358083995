// Device memory: addresses are the host's own. Anything outside an allocation is out of bounds. Each byte records
// whether it has been written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace trainctl::emulator {

/// The thread that used a word of global memory, and the launch.
struct GlobalAccess {
  uint32_t launch = 0;  ///< 0: none
  uint32_t cluster = 0, clock = 0;
  int32_t text_line = 0;
  uint16_t warp = 0;
  uint8_t lane = 0;
  uint8_t bytes = 0;  ///< one bit a byte
};
struct GlobalCell {
  GlobalAccess write, read;
};

struct Allocation {
  uint64_t first = 0, bytes = 0;
  std::unique_ptr<uint8_t[]> written;      ///< 1: written; null: all bytes are, since the host writes there too
  std::unique_ptr<std::byte[]> memory;     ///< null: not ours
  std::unique_ptr<GlobalCell[]> accesses;  ///< by word; null: none yet
  bool read_only = false, of_device = false;
  uint64_t written_by = 0, read_by = 0;  ///< the last launch that did

  bool holds(uint64_t address, uint64_t n) const { return address - first < bytes && n <= bytes - (address - first); }
};

class GlobalMemory {
 public:
  /// Allocates memory that is aligned to 256 bytes and has a wide gap on both sides.
  void* allocate(size_t bytes, bool of_host = false);
  /// Frees an allocation. Returns false if no allocation begins at this address.
  bool free(void* memory);
  /// Registers memory of the host program, such as kernel parameters, as an allocation all of whose bytes are written.
  Allocation& adopt(const void* memory, size_t bytes, bool read_only);
  void forget(const void* memory) { free(const_cast<void*>(memory)); }
  /// Returns the allocation that contains the address; null if there is none.
  Allocation* find(uint64_t address);
  /// Bytes of all allocations of device memory.
  size_t bytes_in_use() const { return in_use_; }

 private:
  std::map<uint64_t, std::unique_ptr<Allocation>> by_first_;
  size_t in_use_ = 0;
  Allocation* last_ = nullptr;  ///< the last result of find()
};

GlobalMemory& global_memory();

}  // namespace trainctl::emulator
