// Data sets without files: random and constant.
#pragma once

#include <memory>

#include "engine/train/data/dataset.h"

namespace trainctl {

/// Shapes and size of a set of dataset.type random or constant.
DataShapes made_shapes(const DatasetSpec& spec);
int64_t made_size(const DatasetSpec& spec);
/// Throws SpecError (dataset.classes) for random integer labels if there are no classes.
std::unique_ptr<Dataset> make_random_set(const DatasetSpec& spec, uint64_t seed);
std::unique_ptr<Dataset> make_constant_set(const DatasetSpec& spec);

}  // namespace trainctl
