// What the ranks of a network run on: launch.device, and what this host has. Asked by `run` alone: `plan` looks at no
// device.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/runtime/cuda/devices.h"
#include "engine/train/job.h"
#include "launcher/binding.h"

namespace trainctl {

/// launch.device: auto as cuda where there are GPUs enough for the ranks, else as cpu. Others as they are.
Device resolve_device(const JobSpec& spec, const CudaDevices& found);

/// A GPU a rank, by its number among the ranks of its host. Throws EnvError where there are too few of them, where
/// launch.comm wants it otherwise, or where a rank's memory does not fit in what its GPU has free.
std::vector<CudaDevice> gpus_of_ranks(const PlannedJob& job, const RankClasses& classes, const CudaDevices& found);

/// "2 of 8 GPUs (NVIDIA H200)".
std::string describe_gpus(const std::vector<CudaDevice>& gpus, const CudaDevices& found);
/// "CPUs", and why, where launch.device is auto and there are GPUs: "CPUs (of GPUs there is 1)".
std::string describe_cpus(const JobSpec& spec, Device asked, const CudaDevices& found);

/// Queues of the device for a rank's streams: streams that share one wait for each other, and communication must not
/// wait for what waits for it. Each takes the driver some milliseconds to make, one rank of the host after another.
int queues_for(const Program& program);

/// What a rank's process is started with: it sees its own GPU alone, so CUDA need not start the others.
std::vector<std::pair<std::string, std::string>> cuda_environment(const CudaDevice& gpu, const Program& program);

/// Binds the ranks that nobody has bound to the cores next to their GPUs.
void bind_to_gpus(const std::vector<CudaDevice>& gpus, const Topology& topology, std::vector<RankBinding>& bindings);

}  // namespace trainctl
