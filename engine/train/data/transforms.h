// dataset.transforms, checked against the sample's shape and composed once.
//
//   resize [h, w]           bilinear with half-pixel centres, edges repeated, no smoothing when it shrinks:
//                           what OpenCV calls INTER_LINEAR (PIL smooths when it shrinks). Result stays f32.
//   center_crop [h, w]      the middle (an odd rest is larger below and to the right); zeros where the image is smaller
//   random_crop size, padding   [h, w] of the image with zeros around it; top, then left are drawn
//   horizontal_flip p       with that chance
//   rescale scale, shift    x * scale + shift
//   normalize mean, std     (x - mean) / std, one value or one a channel
//   hwc2chw                 [h, w, c] -> [c, h, w]
//   type_cast dtype         f32 or i32 (towards zero); i32 must come last
#pragma once

#include <functional>
#include <vector>

#include "engine/graph/shape.h"
#include "engine/spec/job_spec.h"
#include "engine/train/data/sample_rng.h"

namespace trainctl {

/// Of a sample, before and after each transform: 1 GiB of f32. Two such tensors are the scratch memory of a rank.
inline constexpr int64_t kMaxImageElements = int64_t{1} << 28;

/// Whether a sample looks different in each pass, so that it cannot be kept.
bool has_random_transforms(const std::vector<TransformSpec>& specs);

class Transforms {
 public:
  /// `shape`: of a raw sample, [h, w, c] for images. Throws SpecError at the transform that does not fit.
  Transforms(const std::vector<TransformSpec>& specs, const Shape& shape);

  const Shape& shape() const { return shape_; }  ///< of the result
  bool to_integer() const { return to_integer_; }

  /// `sample`: scratch() floats that begin with the raw sample; the call overwrites them. The result is f32 or
  /// (to_integer) i32. Returns its address, in one of the two halves of the scratch. Random transforms draw from `rng`,
  /// in order, as many numbers for every sample.
  const void* apply(float* scratch, SampleRng& rng) const;
  int64_t scratch_size() const { return 2 * most_elements_; }

 private:
  using Step = std::function<void(const float* in, float* out, SampleRng& rng)>;  ///< in and out may be the same
  struct Bound {
    Step run;
    bool in_place;
  };
  void add(const TransformSpec& spec);
  void require_image(const TransformSpec& spec) const;
  void add_center_crop(const TransformSpec& spec);
  void add_random_crop(const TransformSpec& spec);
  void add_horizontal_flip(const TransformSpec& spec);
  void add_resize(const TransformSpec& spec);
  void add_normalize(const TransformSpec& spec);
  void add_hwc2chw(const TransformSpec& spec);

  Shape shape_;
  bool channels_first_ = false;
  bool to_integer_ = false;
  int64_t most_elements_ = 0;
  std::vector<Bound> steps_;
};

}  // namespace trainctl
