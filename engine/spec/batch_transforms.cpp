// Effects of dataset.transforms on batches and on labels, in addition to their effect on a sample.
#include "engine/spec/batch_transforms.h"

#include <algorithm>

namespace trainctl {

bool is_of_batch(const TransformSpec& transform) { return transform.name == "mixup" || transform.name == "cutmix"; }

bool has_soft_labels(const DatasetSpec& dataset) {
  if (dataset.is_mix()) return std::any_of(dataset.sources.begin(), dataset.sources.end(), has_soft_labels);
  return std::any_of(dataset.transforms.begin(), dataset.transforms.end(), [](const TransformSpec& transform) {
    return transform.name == "one_hot" && transform.field == "label";
  });
}

}  // namespace trainctl
