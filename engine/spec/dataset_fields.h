// The sections of the job file that say where samples come from.
#pragma once

#include "engine/spec/fields.h"

namespace trainctl {

const Section& dataset_section();
/// The section of one entry of dataset.sources.
const Section& source_section();
/// The section validation.dataset.
const Section& validation_dataset_section();

}  // namespace trainctl
