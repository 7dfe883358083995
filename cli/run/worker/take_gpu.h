// Selects the GPU of a rank whose launcher runs on another host and does not know this host's GPUs.
#pragma once

namespace trainctl {

/// Makes GPU `number` (from 0) the only one visible to CUDA, among those visible to this process. Call it before CUDA
/// starts. Returns the host-wide number of the GPU. Throws EnvError if there are too few.
int take_gpu(int number);

}  // namespace trainctl
