// Checked memory accesses of lanes, and asynchronous arrivals in shared memory.
#include <algorithm>
#include <cstring>

#include "tools/cuda_emulator/global_races.h"
#include "tools/cuda_emulator/machine.h"
#include "tools/cuda_emulator/tensor_map.h"

namespace trainctl::emulator {
namespace {

std::string hex(uint64_t v) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(v));
  return text;
}

Allocation& checked_global(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes,
                           const char* what) {
  if (address % bytes != 0 && (bytes & (bytes - 1)) == 0)
    trap(warp, in, lane, "misaligned address",
         std::string(what) + " of " + std::to_string(bytes) + " bytes at " + hex(address));
  Allocation* found = global_memory().find(address);
  if (found == nullptr || !found->holds(address, bytes))
    trap(warp, in, lane, "out of bounds",
         std::string(what) + " of " + std::to_string(bytes) + " bytes of global memory at " + hex(address));
  return *found;
}

/// Before griddepcontrol.wait, the previous launch may still be writing.
void check_waited(Warp& warp, const Instruction& in, int lane, bool hazard) {
  if (hazard && (warp.waited >> lane & 1) == 0)
    fault(warp, in, lane, "early access", "memory that the previous kernel uses is touched before griddepcontrol.wait");
}

struct Place {
  Block& block;
  uint32_t at;
};

Place shared_place(Warp& warp, const Instruction& in, int lane, uint32_t address, uint32_t bytes, const char* what) {
  Block& block = warp.block->cluster->block_of(address, *warp.block);
  const uint32_t at = address & 0xffffff;
  if (at % bytes != 0 && (bytes & (bytes - 1)) == 0)
    trap(warp, in, lane, "misaligned address",
         std::string(what) + " of " + std::to_string(bytes) + " bytes of shared memory at " + hex(at));
  if (at + bytes > block.shared.size())
    trap(warp, in, lane, "out of bounds",
         std::string(what) + " of " + std::to_string(bytes) + " bytes of shared memory at " + hex(at) + " of " +
             hex(block.shared.size()));
  return {block, at};
}

template <class Do>
void each_cell(Place p, uint32_t bytes, Do work) {
  const uint32_t shift = p.block.cluster->launch->kernel->bytes_shared ? 0 : 2;
  const uint32_t end = (p.at + bytes + (1u << shift) - 1) >> shift;
  for (uint32_t c = p.at >> shift; c < end; ++c) work(p.block.cells[c]);
}

void report_race(Warp& warp, const Instruction& in, int lane, const Access& other, const char* what, uint32_t at) {
  fault(warp, in, lane, "race",
        std::string(what) + " shared memory at " + hex(at) + " with no barrier since warp " +
            std::to_string(other.by.warp()) + " lane " + std::to_string(other.by.lane()) + " used it at " +
            line_of(warp, other.text_line));
}

Access this_access(Warp& warp, const Instruction& in, int lane, bool atomic) {
  return {warp.block->cluster->clocks_now(warp), in.text_line, {warp.number, lane, atomic}};
}

void note_tx(Cluster& cluster, Block& block, uint32_t address, int64_t bytes, Warp& warp, const Instruction& in,
             int lane) {
  const auto found = block.barriers.find(address & 0xffffff);
  if (found == block.barriers.end()) trap(warp, in, lane, "mbarrier", "signals an mbarrier that is not initialised");
  found->second.bytes -= bytes;
  cluster.complete(block, found->second);
}

}  // namespace

namespace {

Allocation& touched(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes, bool reads,
                    bool writes) {
  Allocation& a = checked_global(warp, in, lane, address, bytes, writes ? "write" : "read");
  const Launch& launch = *warp.block->cluster->launch;
  if (writes && a.read_only) trap(warp, in, lane, "read-only", "write to read-only memory");
  if (launch.before != 0)
    check_waited(warp, in, lane, a.written_by == launch.before || (writes && a.read_by == launch.before));
  if (reads) a.read_by = launch.number;
  if (writes) a.written_by = launch.number;
  if (a.written == nullptr) return a;
  uint8_t* written = a.written.get() + (address - a.first);
  if (reads && !std::all_of(written, written + bytes, [](uint8_t w) { return w != 0; })) {
    fault(warp, in, lane, "unwritten",
          "read of " + std::to_string(bytes) + " bytes of global memory that was never written, byte " +
              std::to_string(address - a.first) + " of " + std::to_string(a.bytes));
  }
  if (writes) std::memset(written, 1, bytes);
  return a;
}

}  // namespace

const std::byte* read_global(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes) {
  note_global(warp, in, lane, touched(warp, in, lane, address, bytes, true, false), address, bytes, false);
  return reinterpret_cast<const std::byte*>(address);
}

std::byte* write_global(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes) {
  note_global(warp, in, lane, touched(warp, in, lane, address, bytes, false, true), address, bytes, true);
  return reinterpret_cast<std::byte*>(address);
}

std::byte* global_word(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes) {
  touched(warp, in, lane, address, bytes, true, true);
  return reinterpret_cast<std::byte*>(address);
}

const std::byte* read_shared(Warp& warp, const Instruction& in, int lane, uint32_t address, uint32_t bytes,
                             bool atomic) {
  const Place p = shared_place(warp, in, lane, address, bytes, "read");
  Clocks& clocks = warp.block->cluster->clocks;
  const Access access = this_access(warp, in, lane, atomic);
  each_cell(p, bytes, [&](Cell& cell) {
    if (!cell.written)
      fault(warp, in, lane, "unwritten", "read of shared memory at " + hex(p.at) + " that was never written");
    if (const Access* other = race_of_read(clocks, cell, warp.number, lane, atomic))
      report_race(warp, in, lane, *other, "read of", p.at);
    note_read(cell, access);
  });
  return p.block.shared.data() + p.at;
}

void read_shared_lanes(Warp& warp, const Instruction& in, uint32_t mask, const uint32_t* addresses, uint32_t bytes,
                       const std::byte** from) {
  Block& block = *warp.block;
  Clocks& clocks = block.cluster->clocks;
  Access access = this_access(warp, in, 0, false);
  const uint32_t shift = block.cluster->launch->kernel->bytes_shared ? 0 : 2;
  Cell* const cells = block.cells.data();
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const uint32_t at = addresses[lane];
    bool sound = at >> 24 == 0 && (at & (bytes - 1)) == 0 && at + bytes <= block.shared.size();
    access.by = {warp.number, lane, false};
    for (uint32_t c = at >> shift; sound && c << shift < at + bytes; ++c) {
      Cell& cell = cells[c];
      sound = cell.written && race_of_read(clocks, cell, warp.number, lane) == nullptr;
      if (sound) note_read(cell, access);
    }
    // Other blocks and faults are for the function of one lane.
    from[lane] = sound ? block.shared.data() + at : read_shared(warp, in, lane, at, bytes);
  }
}

std::byte* write_shared(Warp& warp, const Instruction& in, int lane, uint32_t address, uint32_t bytes,
                        const void* value, bool atomic) {
  const Place p = shared_place(warp, in, lane, address, bytes, "write");
  Clocks& clocks = warp.block->cluster->clocks;
  const Access access = this_access(warp, in, lane, atomic);
  std::byte* to = p.block.shared.data() + p.at;
  const bool same = std::memcmp(to, value, bytes) == 0;
  each_cell(p, bytes, [&](Cell& cell) {
    const Access* other = race_of_write(clocks, cell, warp.number, lane, atomic);
    const bool together = other != nullptr && other->text_line == in.text_line &&
                          other->by.warp() == access.by.warp() && other->clock == access.clock;
    if (other != nullptr && !(together && same)) report_race(warp, in, lane, *other, "write to", p.at);
    note_write(cell, access);
  });
  std::memcpy(to, value, bytes);
  return to;
}

void expect_write(Warp& warp, const Instruction& in, int lane, uint32_t address, uint32_t bytes) {
  const Place p = shared_place(warp, in, lane, address, bytes, "copy");
  each_cell(p, bytes, [&](Cell& cell) {
    if (const Access* other = race_of_write(warp.block->cluster->clocks, cell, warp.number, lane))
      report_race(warp, in, lane, *other, "copy to", p.at);
  });
}

const std::byte* read_map(Warp& warp, const Instruction& in, int lane, uint64_t address) {
  if (address % 64 != 0)
    trap(warp, in, lane, "misaligned address", "a tensor map must begin at a multiple of 64 bytes");
  const Allocation* a = global_memory().find(address);
  TensorMap map;
  if (a == nullptr || !a->holds(address, 128)) trap(warp, in, lane, "out of bounds", "tensor map");
  std::memcpy(&map, reinterpret_cast<const void*>(address), sizeof map);
  if (map.mark != TensorMap::kMark) trap(warp, in, lane, "tensor map", "there is no tensor map at this address");
  return reinterpret_cast<const std::byte*>(address);
}

uint32_t bytes_of_tile(const std::byte* at) {
  TensorMap map;
  std::memcpy(&map, at, sizeof map);
  return map.box[0] * map.box[1] * map.element_bytes;
}

void Cluster::deliver(size_t which) {
  const InFlight one = in_flight[which];
  in_flight[which] = in_flight.back();  // order does not matter
  in_flight.pop_back();
  Warp& warp = *one.from;
  const Instruction& in = *one.in;
  Block& counter = block_of(one.barrier, *warp.block);
  Block& target = block_of(one.to, *warp.block);
  const bool own_copies = one.kind == InFlight::Kind::arrival;
  if (own_copies && target.done()) return;  // the block has ended, so nothing waits for them
  if (target.done())
    trap(warp, in, one.lane, "late arrival", "data arrives in the shared memory of a block that has ended");
  const auto put = [&](uint32_t at, const void* value, uint32_t bytes) {
    const Place p = shared_place(warp, in, one.lane, (one.to & 0xff000000) | at, bytes, "copy");
    each_cell(p, bytes, [&](Cell& cell) {
      note_write(cell, {one.clock, in.text_line, {warp.number, one.lane, false}});
    });
    std::memcpy(p.block.shared.data() + p.at, value, bytes);
  };
  if (own_copies) {
    warp.finish_copies(1u << one.lane, -1);
    Mbarrier& barrier = counter.barriers.at(one.barrier & 0xffffff);
    --barrier.pending;
    complete(counter, barrier);
    return;
  }
  if (one.kind == InFlight::Kind::store) {
    put(one.to & 0xffffff, one.data, one.bytes);
  } else {
    TensorMap map;
    std::memcpy(&map, one.map, sizeof map);
    const uint32_t row = map.box[0] * map.element_bytes;
    for (uint32_t line = 0; line < map.box[1]; ++line) {
      for (uint32_t i = 0; i < map.box[0]; ++i) {
        const int64_t x = int64_t{one.coordinates[0]} + i, y = int64_t{one.coordinates[1]} + line;
        uint32_t value = 0;
        if (x >= 0 && y >= 0 && static_cast<uint64_t>(x) < map.sizes[0] && static_cast<uint64_t>(y) < map.sizes[1]) {
          const uint64_t from =
              map.address + static_cast<uint64_t>(y) * map.line_bytes + static_cast<uint64_t>(x) * map.element_bytes;
          std::memcpy(&value, read_global(warp, in, one.lane, from, map.element_bytes), map.element_bytes);
        }
        uint32_t at = (one.to & 0xffffff) + line * row + i * map.element_bytes;
        if (map.swizzle_bytes == 128) at ^= (at >> 7 & 7) << 4;  // 16-byte packs, by the 128-byte line
        put(at, &value, map.element_bytes);
      }
    }
  }
  note_tx(*this, counter, one.barrier, one.bytes, warp, in, one.lane);
}

}  // namespace trainctl::emulator
