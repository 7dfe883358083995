// Synthetic clicks: a data set for networks with tables. A sample is what one user was shown:
//
//   data   shape, f32       uniform in [-1, 1)
//   ids    [ids], i32       by Zipf's law: id r - 1 is the r-th most frequent
//   label  i32              1: a click, with probability sigmoid(2 * (s / sqrt(ids) + data[0])), where s is the
//                           sum of the weights of the ids
//
// The validation has other samples than the training. Each id has a weight, uniform in [-1.7, 1.7), that depends on the
// seed; a network can learn these weights.
#pragma once

#include <memory>

#include "engine/train/data/dataset.h"

namespace trainctl {

DataShapes click_shapes(const DatasetSpec& spec);
std::unique_ptr<Dataset> make_clicks(const DatasetSpec& spec, uint64_t seed);

}  // namespace trainctl
