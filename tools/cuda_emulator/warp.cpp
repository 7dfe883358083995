// Control flow of a warp: the group of lanes furthest behind runs first, so that groups rejoin where paths meet.
#include <algorithm>
#include <climits>

#include "tools/cuda_emulator/machine.h"

namespace trainctl::emulator {

bool Warp::run(int instructions) {
  bool worked = false;
  for (Group& g : groups) {
    if (g.wait == Group::Wait::mbarrier || g.wait == Group::Wait::cluster)
      g.wait = Group::Wait::none;  // they check again
  }
  const Instruction* const code = block->cluster->launch->kernel->code.data();
  while (instructions > 0) {
    merge();
    size_t current = groups.size();
    int next = INT_MAX;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].wait == Group::Wait::warp && reconverge(g)) {
        worked = true;
        current = groups.size();
        next = -1;
        break;
      }
    }
    if (next == -1) continue;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].wait == Group::Wait::none && (current == groups.size() || groups[g].pc < groups[current].pc))
        current = g;
    }
    if (current == groups.size()) return worked;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (g != current && groups[g].wait == Group::Wait::none) next = std::min(next, groups[g].pc);
    }
    int pc = groups[current].pc;
    const uint32_t mask = groups[current].mask;
    for (; instructions > 0 && pc < next; --instructions) {
      const Instruction& in = code[pc];
      uint32_t on = mask;
      if (in.predicate >= 0) on &= mask_at(in.predicate) ^ in.flip;
      now = &in;
      if (in.flow == Flow::plain) {
        if (on != 0) in.run(in, *this, on);
        ++pc;
        worked = true;
        continue;
      }
      if (on == 0) {
        ++pc;
        continue;
      }
      if (in.flow == Flow::branch && on == mask) {
        pc = in.target;
        worked = true;
        if (next != INT_MAX) break;
        continue;
      }
      groups[current].pc = pc;
      worked |= flow(in, current, on);
      pc = -1;
      break;
    }
    if (pc >= 0) groups[current].pc = pc;
  }
  return worked;
}

void Warp::merge() {
  for (size_t a = 0; a < groups.size(); ++a) {
    for (size_t b = a + 1; b < groups.size();) {
      const bool same_way = groups[a].wait == groups[b].wait && groups[a].wait != Group::Wait::cluster;
      if (groups[a].pc == groups[b].pc && same_way) {
        groups[a].mask |= groups[b].mask;
        groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(b));
      } else {
        ++b;
      }
    }
  }
}

/// Lets the lanes `on` of the group wait; they later resume at pc. The other lanes of the group continue now.
void Warp::wait_at(size_t group, uint32_t on, Group::Wait wait, int pc) {
  Group& g = groups[group];
  const Group waiting{pc, on, wait};
  if (on == g.mask) {
    g = waiting;
    return;
  }
  g.mask &= ~on;
  ++g.pc;
  groups.push_back(waiting);
}

/// Handles lanes that wait for other lanes of the warp. Returns whether all of them have arrived and have continued.
bool Warp::reconverge(size_t group) {
  Group& g = groups[group];
  const Instruction& in = block->cluster->launch->kernel->code[static_cast<size_t>(g.pc)];
  const int lane = __builtin_ctz(g.mask);
  const uint32_t named = *(at<uint32_t>(in.from[3]) + lane);
  if ((named & g.mask) != g.mask)
    trap(*this, in, lane, "member mask", "a lane that the member mask does not name takes part");
  const uint32_t needed = named & live;
  uint32_t here = g.mask;
  if (in.flow == Flow::bar_warp) {
    const auto& code = block->cluster->launch->kernel->code;
    for (const Group& other : groups) {
      if (other.wait == Group::Wait::warp && code[static_cast<size_t>(other.pc)].flow == Flow::bar_warp)
        here |= other.mask;
    }
  }
  if ((needed & ~here) != 0) return false;
  now = &in;
  if (in.run != nullptr) in.run(in, *this, g.mask);
  if (in.flow == Flow::bar_warp) {
    block->cluster->clocks.tick(number);
    const auto& code = block->cluster->launch->kernel->code;
    for (Group& other : groups) {
      if (other.wait == Group::Wait::warp && code[static_cast<size_t>(other.pc)].flow == Flow::bar_warp) {
        other.wait = Group::Wait::none;
        ++other.pc;
      }
    }
    return true;
  }
  g.wait = Group::Wait::none;
  ++g.pc;
  return true;
}

/// Returns false if the group has to wait and execute the instruction again.
bool Warp::wait_for_mbarrier(const Instruction& in, size_t group, uint32_t on) {
  const uint32_t* addresses = at<uint32_t>(in.from[0]);
  const uint32_t* parities = at<uint32_t>(in.from[1]);
  uint32_t passed = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((on >> lane & 1) == 0) continue;
    const auto address = static_cast<uint32_t>(addresses[lane] + in.offset);
    const auto found = block->barriers.find(address & 0xffffff);
    if (found == block->barriers.end())
      trap(*this, in, lane, "mbarrier", "waits at an mbarrier that is not initialised");
    Mbarrier& barrier = found->second;
    if ((barrier.phase & 1) == (parities[lane] & 1)) continue;
    passed |= 1u << lane;
    block->cluster->clocks.hear(number, barrier.last_news);
  }
  if (passed == 0 && in.data_width == 0) {  // 1: a test that does not wait
    wait_at(group, on, Group::Wait::mbarrier, groups[group].pc);
    return false;
  }
  uint32_t& answer = mask_at(in.to[0]);
  answer = (answer & ~on) | passed;
  ++groups[group].pc;
  return true;
}

bool Warp::flow(const Instruction& in, size_t group, uint32_t on) {
  Cluster& cluster = *block->cluster;
  const int pc = groups[group].pc;
  switch (in.flow) {
    case Flow::plain:
      return true;
    case Flow::branch:
      groups[group].mask &= ~on;
      ++groups[group].pc;
      groups.push_back({in.target, on, Group::Wait::none});
      return true;
    case Flow::exit:
      live &= ~on;
      groups[group].mask &= ~on;
      ++groups[group].pc;
      if (groups[group].mask == 0) groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(group));
      block->check_barrier();
      cluster.check_cluster_barrier();
      return true;
    case Flow::block_barrier:
      wait_at(group, on, Group::Wait::block_barrier, pc + 1);
      block->check_barrier();
      return true;
    case Flow::named_barrier: {
      const int lane = __builtin_ctz(on);
      const uint32_t barrier = at<uint32_t>(in.from[0])[lane], threads = at<uint32_t>(in.from[1])[lane];
      wait_at(group, on, Group::Wait::named_barrier, pc + 1);
      for (Group& g : groups)
        if (g.wait == Group::Wait::named_barrier && (g.mask & on) != 0) g.barrier = barrier;
      block->check_named_barrier(barrier, threads);
      return true;
    }
    case Flow::warp_sync:
    case Flow::bar_warp:
      wait_at(group, on, Group::Wait::warp, pc);
      return true;
    case Flow::mbarrier_wait:
      return wait_for_mbarrier(in, group, on);
    case Flow::cluster_arrive:
      if ((cluster_arrived & on) != 0)
        trap(*this, in, __builtin_ctz(on), "cluster barrier", "arrives twice at the cluster's barrier");
      cluster_arrived |= on;
      if (!in.relaxed) cluster.clocks.tell(number, cluster.cluster_news), cluster.clocks.tick(number);
      ++groups[group].pc;
      cluster.check_cluster_barrier();
      return true;
    case Flow::cluster_wait:
      if ((cluster_arrived & on) != 0) {  // of the phase that is not yet complete
        wait_at(group, on, Group::Wait::cluster, pc);
        return false;
      }
      cluster.clocks.hear(number, cluster.cluster_news);
      ++groups[group].pc;
      return true;
  }
  return true;
}

void Warp::finish_copies(uint32_t mask, int32_t pending) {
  size_t kept = 0;
  for (size_t i = 0; i < copies.size(); ++i) {
    const PendingCopy c = copies[i];
    if ((mask >> c.lane & 1) == 0 || c.group + pending >= copy_groups[c.lane]) {
      copies[kept++] = c;
      continue;
    }
    std::byte bytes[16] = {};
    if (c.taken > 0) {
      const std::byte* from = read_global(*this, *c.in, c.lane, c.from, c.taken);
      std::copy(from, from + c.taken, bytes);
    }
    stamp = c.clock;
    write_shared(*this, *c.in, c.lane, c.to, c.bytes, bytes);
    stamp = 0;
  }
  copies.resize(kept);
}

}  // namespace trainctl::emulator
