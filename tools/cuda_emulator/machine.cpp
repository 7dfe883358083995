// Runs a launch: its clusters one after another, and the warps of a cluster interleaved.
//
// Races are found with vector clocks (shared_checks.h): each warp of a cluster has a clock, and knows the latest clock
// of every other warp that is ordered before its own next access. "News" is such knowledge on its way from warps that
// arrive at a barrier to warps that pass it: Clocks::tell adds the knowledge of a warp to the news, Clocks::hear adds
// the news to the knowledge of a warp. An mbarrier collects the news of all arrivals so far in `news`; `last_news` is a
// copy from the end of its last complete phase, for the warps that waited for that phase. For global memory
// (global_races.cpp), `fenced` is what a warp knew of other warps at its last fence, and `self_fenced` is its own clock
// then. `acquired` lists the words to which it has added atomically, also by way of warps that it has met at the
// barrier of the block.
#include "tools/cuda_emulator/machine.h"

#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <set>

#include "tools/cuda_emulator/tensor_map.h"

namespace trainctl::emulator {
namespace {

uint64_t seed() {
  const char* asked = std::getenv("TRAINCTL_EMULATOR_SEED");
  return asked == nullptr ? 1 : std::strtoull(asked, nullptr, 10);
}

void set_special(Warp& warp, const Launch& launch, const SpecialRegister& special) {
  const std::string_view name = special.name;
  const Block& block = *warp.block;
  auto* to = warp.at<uint32_t>(special.at);
  const auto part = [&](const Dim& d) { return name.back() == 'x' ? d.x : name.back() == 'y' ? d.y : d.z; };
  const Dim clusters{launch.grid.x / launch.cluster, launch.grid.y, launch.grid.z};
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t thread = static_cast<uint32_t>(warp.index) * kLanes + lane;
    const Dim tid{thread % launch.block.x, thread / launch.block.x % launch.block.y,
                  thread / launch.block.x / launch.block.y};
    if (name.substr(0, 5) == "%tid.")
      to[lane] = part(tid);
    else if (name.substr(0, 6) == "%ntid.")
      to[lane] = part(launch.block);
    else if (name.substr(0, 7) == "%ctaid.")
      to[lane] = part(block.index);
    else if (name.substr(0, 8) == "%nctaid.")
      to[lane] = part(launch.grid);
    else if (name.substr(0, 11) == "%clusterid.")
      to[lane] = part(block.cluster->index);
    else if (name.substr(0, 12) == "%nclusterid.")
      to[lane] = part(clusters);
    else if (name == "%cluster_ctarank")
      to[lane] = static_cast<uint32_t>(block.rank);
    else if (name == "%cluster_nctarank")
      to[lane] = launch.cluster;
    else if (name == "%laneid")
      to[lane] = lane;
    else if (name == "%warpid")
      to[lane] = static_cast<uint32_t>(warp.index);
    else if (name == "%lanemask_lt")
      to[lane] = (1u << lane) - 1;
    else
      throw Trap("unknown special register " + special.name);
  }
}

/// Resets a block and its warps to the state before their first instruction. Blocks are used again for each cluster.
void begin_block(Block& block, const Launch& launch) {
  const Kernel& kernel = *launch.kernel;
  const size_t shared = kernel.dynamic_shared_at + launch.dynamic_shared;
  block.shared.assign(shared, std::byte{0xff});  // NaNs
  block.cells.assign(kernel.bytes_shared ? shared : (shared + 3) / 4, Cell{});
  block.barriers.clear();
  const auto threads = static_cast<uint32_t>(launch.block.all());
  for (Warp& warp : block.warps) {
    const uint32_t first = static_cast<uint32_t>(warp.index) * kLanes;
    const uint32_t lanes = std::min<uint32_t>(threads - first, kLanes);
    warp.live = warp.started = lanes == kLanes ? kAllLanes : (1u << lanes) - 1;
    warp.groups.assign(1, {0, warp.live, Group::Wait::none});
    warp.waited = warp.cluster_arrived = 0;
    warp.copies.clear();
    warp.acquired.clear();
    warp.fenced.clear();
    warp.self_fenced = 0;
    std::fill(std::begin(warp.copy_groups), std::end(warp.copy_groups), 0);
    warp.local.assign(kernel.local_bytes * kLanes, std::byte{0xcd});
    for (const SpecialRegister& special : kernel.specials) set_special(warp, launch, special);
  }
}

[[noreturn]] void report_deadlock(Cluster& cluster) {
  for (const auto& block : cluster.blocks) {
    for (const Warp& warp : block->warps) {
      if (warp.done()) continue;
      const Group& g = warp.groups.front();
      const bool passed = g.wait == Group::Wait::block_barrier || g.wait == Group::Wait::named_barrier;
      const Instruction& in = cluster.launch->kernel->code[static_cast<size_t>(g.pc - (passed ? 1 : 0))];
      trap(warp, in, __builtin_ctz(g.mask), "deadlock", "waits here, and no thread can continue");
    }
  }
  throw Trap("no thread can continue");
}

void run_cluster(Cluster& cluster, Chance& chance) {
  std::vector<Warp*> warps;
  for (const auto& block : cluster.blocks) {
    for (Warp& warp : block->warps) warps.push_back(&warp);
  }
  int idle_rounds = 0;
  while (true) {
    bool worked = false;
    const auto n = static_cast<uint32_t>(warps.size());
    const uint32_t first = chance.below(n);
    for (uint32_t i = 0; i < n; ++i) {
      Warp& warp = *warps[(first + i) % n];
      if (warp.done()) continue;
      worked |= warp.run(chance.below(4) == 0 ? static_cast<int>(1 + chance.below(50)) : 2000);
      if (!cluster.in_flight.empty() && chance.below(3) == 0)
        cluster.deliver(chance.below(static_cast<uint32_t>(cluster.in_flight.size())));
    }
    std::erase_if(warps, [](const Warp* w) { return w->done(); });
    if (warps.empty() && cluster.in_flight.empty()) return;
    if (!cluster.in_flight.empty() && (!worked || warps.empty())) {
      cluster.deliver(chance.below(static_cast<uint32_t>(cluster.in_flight.size())));
      worked = true;
    }
    idle_rounds = worked ? 0 : idle_rounds + 1;
    if (idle_rounds > 2) report_deadlock(cluster);
  }
}

/// Reports a block that did not wait for the previous launch. A launch that may begin before the previous one has ended
/// must not end before it.
void check_waited(Cluster& cluster) {
  for (const auto& block : cluster.blocks) {
    const bool waited =
        std::any_of(block->warps.begin(), block->warps.end(), [](const Warp& w) { return w.waited != 0; });
    if (!waited)
      fault(block->warps[0], cluster.launch->kernel->code[0], 0, "no wait",
            "a block of a launch that may begin early ends without griddepcontrol.wait");
  }
}

}  // namespace

bool Block::done() const {
  return std::all_of(warps.begin(), warps.end(), [](const Warp& w) { return w.done(); });
}

/// Completes the barrier of the whole block if all of its live threads wait there: every warp then knows what the
/// others did before it, and which words they acquired.
void Block::check_barrier() {
  bool any = false;
  for (const Warp& warp : warps) {
    uint32_t waiting = 0;
    for (const Group& g : warp.groups) {
      if (g.wait == Group::Wait::block_barrier) waiting |= g.mask;
    }
    if (waiting != warp.live) return;
    any |= waiting != 0;
  }
  if (!any) return;
  Clocks& clocks = cluster->clocks;
  std::vector<uint32_t> news;   // by warp: its latest clock that any warp of the block knows
  std::set<uint64_t> acquired;  // by any warp of the block
  for (Warp& warp : warps) {
    clocks.tell(warp.number, news);
    acquired.insert(warp.acquired.begin(), warp.acquired.end());
    warp.merge_barrier();
  }
  for (Warp& warp : warps) warp.acquired.assign(acquired.begin(), acquired.end());
  for (Warp& warp : warps) {
    clocks.hear(warp.number, news);
    clocks.tick(warp.number);
  }
}

void Block::check_named_barrier(uint32_t barrier, uint32_t threads) {
  const auto waits = [&](const Group& g) { return g.wait == Group::Wait::named_barrier && g.barrier == barrier; };
  uint32_t here = 0;
  std::vector<Warp*> met;
  for (Warp& warp : warps) {
    const uint32_t before = here;
    for (const Group& g : warp.groups) here += waits(g) ? static_cast<uint32_t>(__builtin_popcount(g.mask)) : 0;
    if (here > before) met.push_back(&warp);
  }
  if (here < threads) return;
  Clocks& clocks = cluster->clocks;
  std::vector<uint32_t> news;
  for (Warp* warp : met) {
    clocks.tell(warp->number, news);
    for (Group& g : warp->groups)
      if (waits(g)) g.wait = Group::Wait::none;
    warp->merge();
  }
  for (Warp* warp : met) {
    clocks.hear(warp->number, news);
    clocks.tick(warp->number);
  }
}

void Warp::merge_barrier() {
  merge();
  const auto& code = block->cluster->launch->kernel->code;
  if (groups.size() > 1) {
    fault(*this, code[static_cast<size_t>(groups[1].pc - 1)], __builtin_ctz(groups[1].mask), "divergent barrier",
          "lanes of a warp wait at different bar.sync");
  }
  for (Group& g : groups) g.wait = Group::Wait::none;
}

void Cluster::check_cluster_barrier() {
  bool any = false;
  for (const auto& block : blocks) {
    for (const Warp& warp : block->warps) {
      if ((warp.live & ~warp.cluster_arrived) != 0) return;
      any |= warp.cluster_arrived != 0;
    }
  }
  if (!any) return;
  for (const auto& block : blocks) {
    for (Warp& warp : block->warps) warp.cluster_arrived = 0;
  }
  ++cluster_phase;
}

Block& Cluster::block_of(uint32_t address, Block& own) const {
  const uint32_t rank = address >> 24;
  if (rank == 0) return own;
  if (rank > blocks.size()) throw Trap("an address of no block of the cluster");
  return *blocks[rank - 1];
}

/// Begins the next phase of the barrier if all arrivals and all bytes of its current phase are there. Warps that wait
/// for the completed phase hear last_news.
void Cluster::complete(Block&, Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.expected;
  barrier.last_news = barrier.news;
}

void run_launch(const Launch& launch) {
  const Kernel& kernel = *launch.kernel;
  Chance chance(seed() + launch.number * 7919);
  const auto threads = static_cast<uint32_t>(launch.block.all());
  const uint32_t warps = (threads + kLanes - 1) / kLanes;
  Cluster cluster;
  cluster.launch = &launch;
  std::vector<std::byte> registers(size_t{launch.cluster} * warps * kernel.register_bytes + 64);
  std::byte* place = registers.data() + (64 - reinterpret_cast<uintptr_t>(registers.data()) % 64) % 64;
  for (uint32_t rank = 0; rank < launch.cluster; ++rank) {
    auto block = std::make_unique<Block>();
    block->cluster = &cluster;
    block->rank = static_cast<int>(rank);
    block->warps.resize(warps);
    for (uint32_t w = 0; w < warps; ++w) {
      Warp& warp = block->warps[w];
      warp.block = block.get();
      warp.index = static_cast<int>(w);
      warp.number = static_cast<int>(rank * warps + w);
      warp.registers = place;
      std::memcpy(place, kernel.constants.data(), kernel.constants.size());
      place += kernel.register_bytes;
    }
    cluster.blocks.push_back(std::move(block));
  }
  const uint64_t clusters = launch.grid.all() / launch.cluster;
  const uint32_t across = launch.grid.x / launch.cluster;
  // Pseudo-random order: a step coprime to the number of clusters visits all of them.
  uint64_t step = 1 + chance.below(static_cast<uint32_t>(std::min<uint64_t>(clusters, 1u << 30)));
  while (std::gcd(step, clusters) != 1) ++step;
  for (uint64_t i = 0; i < clusters; ++i) {
    const uint64_t c = i * step % clusters;
    cluster.number = static_cast<uint32_t>(i);
    cluster.index = {static_cast<uint32_t>(c % across), static_cast<uint32_t>(c / across % launch.grid.y),
                     static_cast<uint32_t>(c / across / launch.grid.y)};
    cluster.clocks.reset(static_cast<int>(launch.cluster * warps));
    cluster.in_flight.clear();
    cluster.cluster_news.clear();
    for (uint32_t rank = 0; rank < launch.cluster; ++rank) {
      Block& block = *cluster.blocks[rank];
      block.index = {cluster.index.x * launch.cluster + rank, cluster.index.y, cluster.index.z};
      begin_block(block, launch);
    }
    run_cluster(cluster, chance);
    if (launch.may_overlap) check_waited(cluster);
  }
}

std::string readable(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 ? text : name;
  std::free(text);
  for (const std::string& noise :
       {std::string("trainctl::"), std::string("(anonymous namespace)::"), std::string("cuda::")}) {
    for (size_t at = result.find(noise); at != std::string::npos; at = result.find(noise))
      result.erase(at, noise.size());
  }
  if (result.substr(0, 5) == "void ") result.erase(0, 5);
  return result.substr(0, result.find('('));
}

std::string place_of(const Warp& warp, const Instruction& in, int lane) {
  const Kernel& kernel = *warp.block->cluster->launch->kernel;
  const auto file = [&](int number) {
    if (static_cast<size_t>(number) >= kernel.files.size()) return std::string("?");
    const std::string& path = kernel.files[static_cast<size_t>(number)];
    const size_t engine = path.rfind("engine/");
    return engine == std::string::npos ? path : path.substr(engine);
  };
  std::string text =
      "kernel " + readable(kernel.name) + ", " + file(in.source.file) + ":" + std::to_string(in.source.line);
  if (in.source.caller_line > 0)
    text += " (in " + file(in.source.caller_file) + ":" + std::to_string(in.source.caller_line) + ")";
  const Dim& b = warp.block->index;
  text += ", PTX line " + std::to_string(in.text_line) + ", block " + std::to_string(b.x) + "," + std::to_string(b.y) +
          "," + std::to_string(b.z) + " thread " + std::to_string(warp.index * kLanes + lane);
  return text;
}

std::string line_of(const Warp& warp, int text_line) {
  for (const Instruction& in : warp.block->cluster->launch->kernel->code) {
    if (in.text_line != text_line) continue;
    const std::string all = place_of(warp, in, 0);
    const size_t end = all.rfind(", block"), file = all.find(", engine/");
    return all.substr(file == std::string::npos ? 0 : file + 2, end - (file == std::string::npos ? 0 : file + 2));
  }
  return "PTX line " + std::to_string(text_line);
}

void fault(const Warp& warp, const Instruction& in, int lane, const char* kind, const std::string& text) {
  const std::string key = std::string(kind) + warp.block->cluster->launch->kernel->name + std::to_string(in.text_line);
  report_fault(key, std::string(kind) + ": " + text + ": " + place_of(warp, in, lane));
}

void trap(const Warp& warp, const Instruction& in, int lane, const char* kind, const std::string& text) {
  throw Trap(std::string(kind) + ": " + text + ": " + place_of(warp, in, lane));
}

}  // namespace trainctl::emulator
