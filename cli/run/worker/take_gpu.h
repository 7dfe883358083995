// Selects the GPUs that are visible to a rank.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/runtime/cuda/devices.h"

namespace trainctl {

/// CUDA_VISIBLE_DEVICES of the rank that uses number `own` of a host's GPUs: only that one, since CUDA then does not
/// start the others. With audits also the next one, which replays the rank's steps, and the one after that if there are
/// three; EnvError if there is only one.
std::string visible_gpus(const std::vector<CudaDevice>& all, size_t own, bool audits);

/// For a rank whose launcher runs on another host and does not know this host's GPUs: makes GPU `number` (from 0) of
/// those visible to this process visible to CUDA, as visible_gpus. Call it before CUDA starts. Returns the host-wide
/// number of the GPU. Throws EnvError if there are too few.
int take_gpu(int number, bool audits);

}  // namespace trainctl
