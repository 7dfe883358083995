// Finds races in global memory between the warps of a launch.
#include "tools/cuda_emulator/global_races.h"

#include <algorithm>

namespace trainctl::emulator {
namespace {

bool ordered(Warp& warp, int lane, const GlobalAccess& other) {
  Cluster& cluster = *warp.block->cluster;
  if (other.cluster == cluster.number && cluster.clocks.ordered(warp.number, lane, other.warp, other.lane, other.clock))
    return true;
  return std::any_of(warp.acquired.begin(), warp.acquired.end(), [&](uint64_t word) {
    const auto& by_cluster = cluster.released[word];
    const auto found = by_cluster.find(other.cluster);
    return found != by_cluster.end() && other.clock <= found->second[other.warp];
  });
}

void tell(Warp& warp, const Instruction& in, int lane, const GlobalAccess& other, bool writes, uint64_t byte) {
  const Cluster& cluster = *warp.block->cluster;
  const bool same = other.cluster == cluster.number;
  fault(warp, in, lane, "race",
        std::string(writes ? "write to" : "read of") + " global memory, byte " + std::to_string(byte) +
            " of its allocation, that " +
            (same ? "warp " + std::to_string(other.warp) + " lane " + std::to_string(other.lane) : "another block") +
            " used without any ordering between the two, at " + line_of(warp, other.text_line));
}

/// Records the access `now` of a lane to bytes of an allocation, counted from its first.
void note(Warp& warp, const Instruction& in, Allocation& a, GlobalAccess& now, uint64_t first, uint32_t bytes,
          bool writes) {
  const uint64_t end = first + bytes;
  const int lane = now.lane;
  for (uint64_t word = first / 4; word * 4 < end; ++word) {
    const uint64_t from = std::max(first, word * 4) % 4, to = std::min(end, word * 4 + 4) - word * 4;
    now.bytes = static_cast<uint8_t>((1u << to) - (1u << from));
    GlobalCell& cell = a.accesses[word];
    const auto races = [&](const GlobalAccess& other) {
      if (other.launch != now.launch || (other.bytes & now.bytes) == 0) return false;
      const bool same_instruction = other.text_line == now.text_line && other.warp == now.warp &&
                                    other.cluster == now.cluster && other.clock == now.clock;
      return !same_instruction && !ordered(warp, lane, other);
    };
    if (races(cell.write)) tell(warp, in, lane, cell.write, writes, word * 4);
    if (writes && races(cell.read)) tell(warp, in, lane, cell.read, writes, word * 4);
    (writes ? cell.write : cell.read) = now;
  }
}

}  // namespace

void note_global_lanes(Warp& warp, const Instruction& in, uint32_t mask, Allocation& a, const uint64_t* addresses,
                       uint32_t bytes, bool writes) {
  if (a.written == nullptr) return;  // host memory, or parameters
  Cluster& cluster = *warp.block->cluster;
  if (a.accesses == nullptr) a.accesses.reset(new GlobalCell[(a.bytes + 3) / 4]());
  GlobalAccess now{static_cast<uint32_t>(cluster.launch->number),
                   cluster.number,
                   cluster.clocks_now(warp),
                   in.text_line,
                   static_cast<uint16_t>(warp.number),
                   0,
                   0};
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    now.lane = static_cast<uint8_t>(__builtin_ctz(left));
    note(warp, in, a, now, addresses[now.lane] - a.first, bytes, writes);
  }
}

void note_global(Warp& warp, const Instruction& in, int lane, Allocation& a, uint64_t address, uint32_t bytes,
                 bool writes) {
  uint64_t addresses[kLanes];
  addresses[lane] = address;
  note_global_lanes(warp, in, 1u << lane, a, addresses, bytes, writes);
}

void note_fence(Warp& warp) {
  Clocks& clocks = warp.block->cluster->clocks;
  warp.fenced.clear();
  clocks.tell(warp.number, warp.fenced);
  warp.self_fenced = clocks.now(warp.number);
  clocks.tick(warp.number);
}

void note_atomic(Warp& warp, uint64_t address) {
  Cluster& cluster = *warp.block->cluster;
  std::vector<uint32_t>& known = cluster.released[address][cluster.number];
  known.resize(static_cast<size_t>(cluster.clocks.warps()));
  const uint32_t* heard = cluster.clocks.of(warp.number);
  for (const auto& block : cluster.blocks) {
    for (const Warp& other : block->warps) {
      const auto i = static_cast<size_t>(other.number);
      const uint32_t fenced =
          std::max(i < warp.fenced.size() ? warp.fenced[i] : 0, std::min(heard[i], other.self_fenced));
      known[i] = std::max(known[i], fenced);
    }
  }
  if (std::find(warp.acquired.begin(), warp.acquired.end(), address) == warp.acquired.end())
    warp.acquired.push_back(address);
}

}  // namespace trainctl::emulator
