// The fields of launch.slurm and launch.kubernetes.
#pragma once

#include "engine/spec/fields.h"

namespace trainctl {

const Section& slurm_section();
const Section& kubernetes_section();

}  // namespace trainctl
