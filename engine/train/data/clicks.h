// Synthetic clicks: a data set for networks with tables. A sample is what one user was shown:
//
//   data   shape, f32       uniform in [-1, 1)
//   ids    [ids], i32       by Zipf's law: id r - 1 is the r-th most frequent
//   label  i32              1: a click, with probability sigmoid(2 * (s / sqrt(ids) + data[0])), where s is the
//                           sum of the weights of the ids
//
// A validation has different samples than the training. The weights of ids depend on the seed and are uniform in
// [-1.7, 1.7): a network can learn them.
#pragma once

#include <memory>

#include "engine/train/data/dataset.h"

namespace trainctl {

DataShapes click_shapes(const DatasetSpec& spec);
std::unique_ptr<Dataset> make_clicks(const DatasetSpec& spec, uint64_t seed);

}  // namespace trainctl
