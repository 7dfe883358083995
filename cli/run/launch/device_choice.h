// Chooses the devices of a network's ranks from launch.device and this host's GPUs. Used only by `run`: `plan` looks at
// no device.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/runtime/cuda/devices.h"
#include "launcher/binding.h"

namespace trainctl {

/// launch.device; auto becomes cuda if there are enough GPUs for the ranks, else cpu.
Device resolve_device(const JobSpec& spec, const CudaDevices& found);

/// One GPU per rank, by its number among the ranks of its host. Throws EnvError if there are too few GPUs, if
/// launch.comm does not work with GPUs, or if a rank's memory exceeds the free memory of its GPU.
std::vector<CudaDevice> gpus_of_ranks(const PlannedJob& job, const RankClasses& classes, const CudaDevices& found);

/// Describes the ranks' GPUs: "2 of 8 GPUs (NVIDIA H200)".
std::string describe_gpus(const std::vector<CudaDevice>& gpus, const CudaDevices& found);
/// "CPUs", with the reason if launch.device is auto and there are GPUs: "CPUs (this host has only 1 GPU)".
std::string describe_cpus(const JobSpec& spec, Device asked, const CudaDevices& found);

/// Number of hardware queues for a rank's streams. Streams that share a queue wait for each other, and communication
/// must not wait for kernels that wait for it. The driver takes some milliseconds to create each, for one rank of the
/// host after another.
int queues_for(const Program& program);

/// The environment variable that requests these queues from CUDA; a value in the launcher's environment takes
/// precedence.
std::pair<std::string, std::string> cuda_queues(const Program& program);

/// The environment variable that says how long OpenMP's threads, which compute convolutions on CPUs, look for work
/// before they sleep. By default that is about 15 ms, in which they would take a core from the threads of the next
/// kernels.
std::pair<std::string, std::string> openmp_spin_limit();

/// Binds ranks without a binding to the cores next to their GPUs.
void bind_to_gpus(const std::vector<CudaDevice>& gpus, const Topology& topology, std::vector<RankBinding>& bindings);

}  // namespace trainctl
