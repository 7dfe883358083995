// Effects of dataset.transforms on batches and on labels, in addition to their effect on a sample.
#pragma once

#include "engine/spec/job_spec.h"

namespace trainctl {

/// True if it mixes the rows of a batch (mixup, cutmix): all others apply to one sample.
bool is_of_batch(const TransformSpec& transform);

/// True if the labels are shares of all classes, f32, not classes: one_hot makes them so.
bool has_soft_labels(const DatasetSpec& dataset);

}  // namespace trainctl
