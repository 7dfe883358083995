// Effects of dataset.transforms on batches and on labels, in addition to their effect on a sample.
#pragma once

#include "engine/spec/job_spec.h"

namespace trainctl {

/// True if the transform mixes the rows of a batch (mixup, cutmix). All other transforms apply to one sample.
bool is_of_batch(const TransformSpec& transform);

/// True if a label is a list of f32 shares of all classes, which one_hot makes, instead of the number of a class.
bool has_soft_labels(const DatasetSpec& dataset);

}  // namespace trainctl
