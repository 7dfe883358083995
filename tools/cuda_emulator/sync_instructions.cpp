// Barriers, and exchange between the lanes of a warp.
#include <cstring>

#include "tools/cuda_emulator/decoder.h"
#include "tools/cuda_emulator/global_races.h"
#include "tools/cuda_emulator/lanes.h"

namespace trainctl::emulator {
namespace {

enum class Shuffle : uint8_t { up, down, butterfly, index };

/// The instruction shfl. `from` has the registers of the value, the lane or delta, the clamp, and the member mask.
void shuffle(const Instruction& in, Warp& w, uint32_t mask) {
  uint32_t values[kLanes];
  std::memcpy(values, w.at<uint32_t>(in.from[0]), sizeof values);
  uint32_t inside = 0;
  each_lane(mask, [&](int lane) {
    const auto me = static_cast<uint32_t>(lane);
    const uint32_t b = w.at<uint32_t>(in.from[1])[lane] & 31, c = w.at<uint32_t>(in.from[2])[lane];
    const uint32_t clamp = c & 31, segment = c >> 8 & 31;
    const uint32_t most = (me & segment) | (clamp & ~segment), least = me & segment;
    uint32_t from = me;
    bool ok = false;
    switch (static_cast<Shuffle>(in.data_width)) {
      case Shuffle::up:
        from = me - b, ok = static_cast<int32_t>(me - b) >= static_cast<int32_t>(most);
        break;
      case Shuffle::down:
        from = me + b, ok = from <= most;
        break;
      case Shuffle::butterfly:
        from = me ^ b, ok = from <= most;
        break;
      case Shuffle::index:
        from = least | (b & ~segment), ok = from <= most;
        break;
    }
    if (!ok) from = me;
    if ((mask >> from & 1) == 0)
      trap(w, in, lane, "shuffle", "reads from lane " + std::to_string(from) + ", which does not take part");
    w.at<uint32_t>(in.to[0])[lane] = values[from];
    inside |= uint32_t{ok} << lane;
  });
  if (in.to[1] >= 0) {
    uint32_t& to = w.mask_at(in.to[1]);
    to = (to & ~mask) | inside;
  }
}

void match_any(const Instruction& in, Warp& w, uint32_t mask) {
  uint32_t values[kLanes];
  std::memcpy(values, w.at<uint32_t>(in.from[0]), sizeof values);
  each_lane(mask, [&](int lane) {
    uint32_t same = 0;
    each_lane(mask, [&](int other) { same |= uint32_t{values[other] == values[lane]} << other; });
    w.at<uint32_t>(in.to[0])[lane] = same;
  });
}

enum class Vote : uint8_t { ballot, any, all };
void vote(const Instruction& in, Warp& w, uint32_t mask) {
  const uint32_t yes = (w.mask_at(in.from[0]) ^ static_cast<uint32_t>(in.offset)) & mask;
  if (static_cast<Vote>(in.data_width) == Vote::ballot) {
    put(w.at<uint32_t>(in.to[0]), mask, [=](int) { return yes; });
    return;
  }
  const bool answer = static_cast<Vote>(in.data_width) == Vote::any ? yes != 0 : yes == mask;
  uint32_t& to = w.mask_at(in.to[0]);
  to = (to & ~mask) | (answer ? mask : 0);
}

bool decode_warp(Decoder& d, const Statement& s, Instruction& in) {
  const auto& a = s.arguments;
  if (s.words[0] == "shfl") {
    in.flow = Flow::warp_sync;
    in.data_width = static_cast<uint8_t>(s.has("up")     ? Shuffle::up
                                         : s.has("down") ? Shuffle::down
                                         : s.has("bfly") ? Shuffle::butterfly
                                                         : Shuffle::index);
    const bool pair = a.at(0).kind == Argument::Kind::pair;
    in.to[0] = d.target(pair ? a[0].parts[0] : a[0], 4);
    if (pair && a[0].parts[1].kind != Argument::Kind::sink) in.to[1] = d.predicate(a[0].parts[1]);
    for (size_t i = 0; i < 4; ++i) in.from[i] = d.source(a.at(i + 1), 4);
    in.run = shuffle;
    return true;
  }
  if (s.opcode == "match.any.sync.b32") {
    in.flow = Flow::warp_sync;
    in.to[0] = d.target(a.at(0), 4);
    in.from[0] = d.source(a.at(1), 4);
    in.from[3] = d.source(a.at(2), 4);
    in.run = match_any;
    return true;
  }
  if (s.words[0] == "vote") {
    in.flow = Flow::warp_sync;
    const bool ballot = s.has("ballot");
    in.data_width = static_cast<uint8_t>(ballot ? Vote::ballot : s.has("any") ? Vote::any : Vote::all);
    in.to[0] = ballot ? d.target(a.at(0), 4) : d.predicate(a.at(0));
    in.from[0] = d.predicate(a.at(1));
    in.from[3] = d.source(a.at(2), 4);
    in.run = vote;
    return s.has("sync");
  }
  if (s.opcode == "bar.warp.sync") {
    in.flow = Flow::bar_warp;
    in.from[3] = d.source(a.at(0), 4);
    return true;
  }
  if (s.opcode == "activemask.b32") {
    in.to[0] = d.target(a.at(0), 4);
    in.run = [](const Instruction& i, Warp& w, uint32_t mask) {
      put(w.at<uint32_t>(i.to[0]), mask, [=](int) { return mask; });
    };
    return true;
  }
  return false;
}

Mbarrier& barrier_at(const Instruction& in, Warp& w, int lane, Block& block, uint32_t address) {
  const auto found = block.barriers.find(address & 0xffffff);
  if (found == block.barriers.end()) trap(w, in, lane, "mbarrier", "an mbarrier that is not initialised");
  return found->second;
}

/// One arrival of each lane. data_width: 0 plain, 1 announces from[1] bytes, 2 arrives when the lane's copies are done.
void arrive(const Instruction& in, Warp& w, uint32_t mask) {
  Cluster& cluster = *w.block->cluster;
  each_lane(mask, [&](int lane) {
    const uint32_t address = w.at<uint32_t>(in.from[0])[lane] + static_cast<uint32_t>(in.offset);
    Block& block = cluster.block_of(address, *w.block);
    if (block.done()) trap(w, in, lane, "late arrival", "arrives at a block that has ended");
    Mbarrier& barrier = barrier_at(in, w, lane, block, address);
    cluster.clocks.tell(w.number, barrier.news);
    if (in.data_width == 2) {
      for (PendingCopy& c : w.copies) {
        if (c.lane == lane && c.clock == 0) c.clock = cluster.clocks.now(w.number);
      }
      InFlight f;
      f.kind = InFlight::Kind::arrival;
      f.from = &w;
      f.in = &in;
      f.lane = lane;
      f.to = f.barrier = address;
      cluster.in_flight.push_back(f);
      return;
    }
    if (in.data_width == 1) barrier.bytes += w.at<uint32_t>(in.from[1])[lane];
    if (--barrier.pending < 0) trap(w, in, lane, "mbarrier", "more arrivals than the mbarrier expects");
    cluster.complete(block, barrier);
  });
  cluster.clocks.tick(w.number);
}

void init_barrier(const Instruction& in, Warp& w, uint32_t mask) {
  each_lane(mask, [&](int lane) {
    const uint32_t address = w.at<uint32_t>(in.from[0])[lane] + static_cast<uint32_t>(in.offset);
    if (address % 8 != 0 || address + 8 > w.block->shared.size())
      trap(w, in, lane, "mbarrier", "an mbarrier that is misaligned or outside of shared memory");
    Mbarrier made;
    made.expected = made.pending = w.at<uint32_t>(in.from[1])[lane];
    w.block->barriers[address] = made;
  });
}

bool decode_mbarrier(Decoder& d, const Statement& s, Instruction& in) {
  const auto& a = s.arguments;
  if (s.opcode == "mbarrier.init.shared::cta.b64") {
    d.address(a.at(0), in);
    in.from[1] = d.source(a.at(1), 4);
    in.run = init_barrier;
    return true;
  }
  if (s.opcode == "mbarrier.arrive.expect_tx.shared::cta.b64" ||
      s.opcode == "mbarrier.arrive.release.cluster.shared::cluster.b64" ||
      s.opcode == "mbarrier.arrive.shared::cta.b64") {
    if (a.at(0).kind != Argument::Kind::sink) return false;
    d.address(a.at(1), in);
    if (s.has("expect_tx")) in.from[1] = d.source(a.at(2), 4);
    in.data_width = s.has("expect_tx") ? 1 : 0;
    in.run = arrive;
    return true;
  }
  if (s.opcode == "cp.async.mbarrier.arrive.noinc.shared::cta.b64") {
    d.address(a.at(0), in);
    in.data_width = 2;
    in.run = arrive;
    return true;
  }
  if (s.opcode == "mbarrier.try_wait.parity.shared::cta.b64" ||
      s.opcode == "mbarrier.test_wait.parity.shared::cta.b64") {
    in.flow = Flow::mbarrier_wait;
    in.data_width = s.has("test_wait") ? 1 : 0;
    in.to[0] = d.predicate(a.at(0));
    d.address(a.at(1), in);
    in.from[1] = d.source(a.at(2), 4);
    return in.width == 4;
  }
  return false;
}

}  // namespace

bool decode_sync(Decoder& d, const Statement& s, Instruction& in) {
  in.element_bytes = 4;
  if (decode_mbarrier(d, s, in) || decode_warp(d, s, in)) return true;
  const Run nothing = [](const Instruction&, Warp&, uint32_t) {};
  if (s.opcode == "bar.sync" || s.opcode == "barrier.sync") {
    if (s.arguments.size() == 2) {
      in.flow = Flow::named_barrier;
      for (size_t i = 0; i < 2; ++i) in.from[i] = d.source(s.arguments[i], 4);
      return true;
    }
    in.flow = Flow::block_barrier;
    return s.arguments.size() == 1 && s.arguments[0].kind == Argument::Kind::integer && s.arguments[0].value == 0;
  }
  if (s.words[0] == "barrier" && s.has("cluster")) {
    in.flow = s.has("arrive") ? Flow::cluster_arrive : Flow::cluster_wait;
    in.relaxed = s.has("relaxed");
    return true;
  }
  if (s.opcode == "griddepcontrol.wait") {
    in.run = [](const Instruction&, Warp& w, uint32_t mask) { w.waited |= mask; };
    return true;
  }
  if (s.words[0] == "membar" || s.opcode == "fence.acq_rel.gpu" || s.opcode == "fence.sc.gpu") {
    in.run = [](const Instruction&, Warp& w, uint32_t) { note_fence(w); };
    return true;
  }
  if (s.words[0] == "fence" || s.words[0] == "nanosleep" || s.opcode == "griddepcontrol.launch_dependents") {
    in.run = nothing;
    return true;
  }
  if (s.opcode == "trap") {
    in.run = [](const Instruction& i, Warp& w, uint32_t mask) {
      trap(w, i, __builtin_ctz(mask), "trap", "an assertion of the kernel fails");
    };
    return true;
  }
  return false;
}

}  // namespace trainctl::emulator
