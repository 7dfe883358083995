// What dataset.transforms say of batches and of labels, beside what they do with a sample.
#pragma once

#include "engine/spec/job_spec.h"

namespace trainctl {

/// It mixes the rows of a batch (mixup, cutmix): all others are of one sample.
bool is_of_batch(const TransformSpec& transform);

/// The labels are shares of all classes, f32, not classes: one_hot makes them so.
bool has_soft_labels(const DatasetSpec& dataset);

}  // namespace trainctl
