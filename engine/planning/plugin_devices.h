// The devices that the layers of plugins can run on.
#pragma once

#include "engine/spec/job_spec.h"

namespace trainctl {

/// The first layer whose plugin has no CUDA kernels for it; null: none.
const LayerSpec* layer_without_cuda(const JobSpec& spec);

/// Throws SpecError if the job is for GPUs and has such a layer.
void require_plugin_kernels(const JobSpec& spec);

}  // namespace trainctl
