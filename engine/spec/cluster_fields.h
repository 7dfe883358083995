// The fields of launch.slurm, launch.pbs, launch.lsf and launch.kubernetes.
#pragma once

#include "engine/spec/fields.h"

namespace trainctl {

const Section& slurm_section();
const Section& kubernetes_section();
const Section& pbs_section();
const Section& lsf_section();

}  // namespace trainctl
