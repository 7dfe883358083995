// The CPUs of this host, read by hwloc.
#include "launcher/topology.h"

#include <hwloc.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "engine/base/error.h"
#include "launcher/control_group.h"

namespace trainctl {
namespace {

/// Disables hwloc's plugins. It would open all that are installed (OpenCL, CUDA, libxml2 with ICU), and none is needed.
class NoPlugins {
 public:
  NoPlugins() : ours_(std::getenv(kPath) == nullptr) {
    if (ours_) setenv(kPath, "/dev/null", 1);
  }
  ~NoPlugins() {
    if (ours_) unsetenv(kPath);
  }
  NoPlugins(const NoPlugins&) = delete;
  NoPlugins& operator=(const NoPlugins&) = delete;

 private:
  static constexpr const char* kPath = "HWLOC_PLUGINS_PATH";
  const bool ours_;
};

void demand(int result) {
  if (result < 0) throw EnvError(std::string("cannot read this host's CPUs (hwloc): ") + std::strerror(errno));
}

/// Loads the host's nodes, cores and CPUs, without caches, packages or devices.
using Host = std::unique_ptr<hwloc_topology, void (*)(hwloc_topology*)>;
Host load() {
  const NoPlugins guard;
  hwloc_topology_t made = nullptr;
  demand(hwloc_topology_init(&made));
  Host host(made, hwloc_topology_destroy);
  demand(hwloc_topology_set_all_types_filter(made, HWLOC_TYPE_FILTER_KEEP_NONE));
  demand(hwloc_topology_set_type_filter(made, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL));
  demand(hwloc_topology_set_flags(made, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING | HWLOC_TOPOLOGY_FLAG_NO_DISTANCES |
                                            HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS | HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS));
  demand(hwloc_topology_load(made));
  return host;
}

int node_of(hwloc_topology* host, const hwloc_obj* cpu) {
  const hwloc_obj* smallest = nullptr;
  for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(host, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    if (hwloc_bitmap_isset(node->cpuset, cpu->os_index) == 0) continue;
    if (smallest == nullptr || hwloc_bitmap_weight(node->cpuset) < hwloc_bitmap_weight(smallest->cpuset)) {
      smallest = node;
    }
  }
  return smallest == nullptr ? 0 : static_cast<int>(smallest->os_index);
}

}  // namespace

std::vector<Cpu> cpus_of(hwloc_topology* host) {
  std::vector<Cpu> cpus;
  const hwloc_obj* core_before = nullptr;
  int core_number = -1;
  for (hwloc_obj_t cpu = nullptr; (cpu = hwloc_get_next_obj_by_type(host, HWLOC_OBJ_PU, cpu)) != nullptr;) {
    const hwloc_obj* core = hwloc_get_ancestor_obj_by_type(host, HWLOC_OBJ_CORE, cpu);
    if (core == nullptr) core = cpu;  // the kernel does not report cores
    if (core != core_before) ++core_number;
    core_before = core;
    cpus.push_back({static_cast<int>(cpu->os_index), core_number, node_of(host, cpu)});
  }
  return cpus;
}

Topology read_topology() {
  const Host host = load();
  // hwloc respects the control group; the affinity mask of taskset or srun may allow less.
  const std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)> mask(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  demand(hwloc_get_cpubind(host.get(), mask.get(), HWLOC_CPUBIND_THREAD));
  demand(hwloc_topology_restrict(host.get(), mask.get(), 0));
  return {cpus_of(host.get()), quota_cores()};
}

}  // namespace trainctl
