// The sections of the job file. job_section() (fields.h) contains them.
#pragma once

#include "engine/spec/fields.h"

namespace trainctl {

const Section& adapters_section();  ///< adapter_fields.cpp
const Section& launch_section();    ///< launch_fields.cpp
const Section& parallel_section();  ///< parallel_fields.cpp
const Section& train_section();     ///< train_fields.cpp
Field validation_field();           ///< validation_fields.cpp

}  // namespace trainctl
