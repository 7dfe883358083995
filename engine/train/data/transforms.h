// The chain of transforms as the present Dataset calls it: samples of one shape, of f32.
#pragma once

#include <algorithm>

#include "engine/train/data/sample_transforms.h"

namespace trainctl {

class Transforms {
 public:
  /// `shape`: of a raw sample, [h, w, c] for images. Throws SpecError at the transform that does not fit.
  Transforms(const std::vector<TransformSpec>& specs, const Shape& shape)
      : chain_(specs, {ElementType::f32, shape}),
        most_elements_(std::max(num_elements(shape), num_elements(chain_.result().shape))) {}

  const Shape& shape() const { return chain_.result().shape; }  ///< of the result
  bool to_integer() const { return chain_.result().type == ElementType::i32; }

  /// `sample`: scratch_size() floats that begin with the raw sample. The result is f32 or (to_integer) i32. Returns its
  /// address, in the second half of the scratch.
  const void* apply(float* sample, SampleRng& rng) const {
    thread_local TransformScratch scratch;
    float* out = sample + most_elements_;
    chain_.run(view_of(sample, chain_.input().shape), rng, scratch, out);
    return out;
  }
  int64_t scratch_size() const { return 2 * most_elements_; }

 private:
  SampleTransforms chain_;
  int64_t most_elements_;
};

}  // namespace trainctl
