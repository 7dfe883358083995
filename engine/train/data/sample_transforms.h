// The transforms of one field of a sample, checked against its type and shape and composed once.
//
//   array    -------------------------> run
//   image    plan_crop -> decode_image -> run           as run_encoded does
//
// u8 stays u8 until a transform needs more: crops and flips are views, resize (antialias, area) rounds to u8, and
// to_float, rescale, normalize and hwc2chw become one pass.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/shape.h"
#include "engine/spec/job_spec.h"
#include "engine/train/data/image/decode.h"
#include "engine/train/data/image/image.h"
#include "engine/train/data/image/resample.h"
#include "engine/train/data/sample_rng.h"
#include "engine/train/data/source.h"

namespace trainctl {

/// A dim that differs from sample to sample: h and w of photos, the length of a text.
inline constexpr int64_t kAnySize = -1;

/// Most elements of a sample before and after each transform: 1 GiB of f32.
inline constexpr int64_t kMaxImageElements = int64_t{1} << 28;

/// Type of a value that enters or leaves a chain: u8, i32 or f32 elements, row-major.
struct SampleType {
  ElementType type = ElementType::f32;
  Shape shape;  ///< [h, w, c] is an image; photos are u8 [kAnySize, kAnySize, 1 or 3]
};

/// A view of a sample: rows of `width` pixels. A value that is no image [h, w, c] is one row of one channel.
struct SampleView {
  const void* data = nullptr;
  int64_t height = 1, width = 0, channels = 1;
  int64_t stride = 0;  ///< elements from a row to the next one
};
SampleView view_of(const void* data, const Shape& shape);
SampleView view_of(const ImageView& image);

/// Scratch memory of one worker, which grows to the needs of the largest sample.
struct TransformScratch {
  std::vector<std::byte> buffers[2];  ///< between transforms
  std::vector<std::byte> row;         ///< within one
  ResampleScratch resample;
  Image decoded;
  int64_t memory_bytes() const;
};

/// The part that the first transform cuts out of an image; only this part is decoded.
struct CropPlan {
  std::optional<PixelBox> box;  ///< drawn already; may be partly outside of the image (zeros there)
  bool is_inside = false;       ///< decode only the box
  int scale = 1;                ///< decode at 1/scale of the size; then, at which it was decoded
};

/// Returns whether a row of a batch looks different in each pass, so that a device cannot keep it.
bool has_random_transforms(const std::vector<TransformSpec>& specs);

struct SampleStep;  ///< sample_steps.h
class ByteMap;      ///< byte_map.h

class SampleTransforms {
 public:
  /// Throws SpecError at the transform that does not fit, or at `path` if samples of different shapes come out.
  /// `keeps_bytes`: see byte_map().
  SampleTransforms(const std::vector<TransformSpec>& specs, const SampleType& input,
                   const std::string& path = "dataset.transforms", bool keeps_bytes = false);
  ~SampleTransforms();
  SampleTransforms(SampleTransforms&&) noexcept;
  SampleTransforms(const SampleTransforms&) = delete;

  const SampleType& input() const { return input_; }
  /// Type and shape of the result, the same for all samples: u8, i32 or f32.
  const SampleType& result() const { return result_; }
  bool is_random() const { return is_random_; }
  /// With keeps_bytes, for a chain that ends by mapping each byte: the result is u8 with the shape of the floats, and
  /// this map converts it to floats. Otherwise null.
  const std::shared_ptr<const ByteMap>& byte_map() const { return byte_map_; }

  /// Transforms one sample. `in` has the type of the input and fits its shape. Writes the result, row-major, to `out`.
  /// Random transforms draw from `rng`, in order, the same number of random numbers for every sample. If `plan` is
  /// given, plan_crop has drawn its box, and with is_inside `in` is only that box. Any number of threads may call it,
  /// each with its own scratch memory.
  void run(const SampleView& in, SampleRng& rng, TransformScratch& scratch, void* out, const CropPlan& plan = {}) const;

  /// Returns the part that the first transform will cut out of an image of this size. Draws only the random numbers of
  /// that transform.
  CropPlan plan_crop(const ImageSize& size, SampleRng& rng) const;

  /// Decodes a JPEG or PNG file to the input's channels, but only as much of it as is needed, and transforms it. Throws
  /// the same EnvError as decode_image.
  void run_encoded(std::span<const std::byte> file, const std::string& name, SampleRng& rng, TransformScratch& scratch,
                   void* out) const;

 private:
  SampleType input_, result_;
  bool is_random_ = false;
  std::vector<SampleStep> steps_;
  std::shared_ptr<const ByteMap> byte_map_;
  size_t last_write_ = 0;  ///< the step that writes the result
};

}  // namespace trainctl
