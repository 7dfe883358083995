// Chooses the devices of a network's ranks from launch.device and this host's GPUs.
#include "cli/run/launch/device_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <set>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/planning/memory_limit.h"
#include "engine/planning/plugin_devices.h"

namespace trainctl {
namespace {

/// Memory that no plan includes: CUDA's own and NCCL's buffers.
constexpr int64_t kOfLibraries = int64_t{1} << 30;

std::string names(const std::vector<CudaDevice>& gpus) {
  std::vector<std::string> words;
  for (const CudaDevice& gpu : gpus) {
    if (std::find(words.begin(), words.end(), gpu.name) == words.end()) words.push_back(gpu.name);
  }
  return join(words);
}

}  // namespace

Device resolve_device(const JobSpec& spec, const CudaDevices& found) {
  if (spec.launch.device != Device::automatic) return spec.launch.device;
  if (spec.servers() > 0) return Device::cpu;  // then no other processes share the servers' cores; cuda requests GPUs
  if (layer_without_cuda(spec) != nullptr) return Device::cpu;
  const bool enough = static_cast<int>(found.list.size()) >= spec.launch.ranks;
  return enough && spec.launch.comm != "gloo" && spec.launch.comm != "shm" ? Device::cuda : Device::cpu;
}

std::vector<CudaDevice> gpus_of_ranks(const PlannedJob& job, const RankClasses& classes, const CudaDevices& found) {
  const LaunchSpec& launch = job.spec.launch;
  const int ranks = classes.num_ranks() - job.plan.servers;  // servers run on the host's cores
  if (static_cast<int>(found.list.size()) < ranks) {
    const std::string have = found.list.empty()
                                 ? "there is none: " + found.why_none
                                 : fmt::format("this host has {} ({})", found.list.size(), names(found.list));
    throw EnvError(fmt::format(
        "launch.device is cuda and launch.ranks is {}, so {} GPUs are needed; {}\n  set "
        "launch.device: cpu{}",
        ranks, ranks, have, found.list.empty() ? "" : fmt::format(", or launch.ranks: {}", found.list.size())));
  }
  if (launch.comm != "auto") {
    throw EnvError(fmt::format(
        "launch.comm is {}, which moves data between CPUs, but GPUs communicate over NCCL; remove launch.comm"
        " or set launch.device: cpu",
        launch.comm));
  }
  const std::vector<CudaDevice> gpus(found.list.begin(), found.list.begin() + ranks);
  for (int r = 0; r < ranks; ++r) {
    const CudaDevice& gpu = gpus[static_cast<size_t>(r)];
    const MemoryHolder holder{fmt::format("gpu {} ({}) has", gpu.index, gpu.name),
                              std::max<int64_t>(gpu.free_bytes - kOfLibraries, 1), "free besides CUDA's own"};
    if (const auto over = over_memory_of(job, {classes.of_rank(r)}, holder))
      throw EnvError("plan: " + over->message + "\n  " + over->advice);
  }
  return gpus;
}

std::string describe_gpus(const std::vector<CudaDevice>& gpus, const CudaDevices& found) {
  const bool all = gpus.size() == found.list.size();
  return (all ? "" : fmt::format("{} of ", gpus.size())) + plural(static_cast<int64_t>(found.list.size()), "GPU") +
         " (" + names(gpus) + ")";
}

std::string describe_cpus(const JobSpec& spec, Device asked, const CudaDevices& found) {
  const size_t have = found.list.size();
  if (asked != Device::automatic || have == 0) return "CPUs";
  if (spec.servers() > 0) return "CPUs (parallel.mode is parameter_server)";
  if (const LayerSpec* layer = layer_without_cuda(spec))
    return "CPUs (the plugin of " + layer->name + " has no CUDA kernels)";
  if (static_cast<int>(have) >= spec.launch.ranks) return "CPUs (launch.comm is " + spec.launch.comm + ")";
  return fmt::format("CPUs (this host has only {})", plural(static_cast<int64_t>(have), "GPU"));
}

int queues_for(const Program& program) {
  constexpr unsigned kDefault = 8, kMost = 32;  // CUDA's limits
  // Streams for compute, collectives, inputs, the watchdog's positions, an abort; and NCCL's two.
  constexpr unsigned kOfEveryRank = 7;
  std::set<int> receivers;  // one stream per receiver
  bool moves = false;       // one more stream for sends and one for receives
  bool copies = false;      // two more for copies to the host and back
  for (const Instruction& i : program.instructions) {
    if (i.opcode == Opcode::send) receivers.insert(i.peer);
    moves = moves || i.opcode == Opcode::send || i.opcode == Opcode::recv;
    copies = copies || i.opcode == Opcode::copy;
  }
  const unsigned streams = kOfEveryRank + (moves ? 2 : 0) + (copies ? 2 : 0) + static_cast<unsigned>(receivers.size());
  return static_cast<int>(std::clamp(std::bit_ceil(streams), kDefault, kMost));
}

std::pair<std::string, std::string> cuda_queues(const Program& program) {
  constexpr const char* kVariable = "CUDA_DEVICE_MAX_CONNECTIONS";
  const char* set = std::getenv(kVariable);
  return {kVariable, set == nullptr ? std::to_string(queues_for(program)) : set};
}

std::pair<std::string, std::string> openmp_spin_limit() {
  const char* const of_user = std::getenv("GOMP_SPINCOUNT");
  return {"GOMP_SPINCOUNT", of_user != nullptr ? of_user : "1000"};  // about 50 us
}

void bind_to_gpus(const std::vector<CudaDevice>& gpus, const Topology& topology, std::vector<RankBinding>& bindings) {
  for (size_t r = 0; r < gpus.size() && r < bindings.size(); ++r) {
    if (!bindings[r].cpus.empty() || gpus[r].numa_node < 0) continue;
    for (const Cpu& cpu : topology.cpus) {
      if (cpu.node == gpus[r].numa_node) bindings[r].cpus.push_back(cpu.id);
    }
    std::sort(bindings[r].cpus.begin(), bindings[r].cpus.end());
  }
}

}  // namespace trainctl
