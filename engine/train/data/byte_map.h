// Maps the bytes of a sample, such as pixels, to f32 or bf16: the last transforms of a chain, if each of them treats
// every byte by itself (to_float, rescale, normalize, hwc2chw). A data set then stores the field as bytes. Either a
// worker thread maps them when it fills a batch, or the device does, by a table of the 256 values. Both give the same
// bits.
#pragma once

#include <cstdint>

#include "engine/graph/dtype.h"
#include "engine/runtime/byte_table.h"
#include "engine/train/data/sample_steps.h"

namespace trainctl {

class ByteMap {
 public:
  /// `pass`: the transforms from u8 to f32 of a sample with size.height x size.width pixels of `channels` bytes each.
  ByteMap(PixelPass pass, const ImageSize& size, int64_t channels);

  /// Maps one sample from `bytes` to `to`, whose elements are of `type`: f32 or bf16.
  void load(const void* bytes, DType type, void* to) const;
  /// The table for the device; the caller sets the name of the tensor.
  ByteTable table() const;

 private:
  PixelPass pass_;
  SampleStep step_;
  SampleView view_;
  std::vector<float> values_;  ///< same as ByteTable::values
};

}  // namespace trainctl
