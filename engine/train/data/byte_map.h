// The end of a chain of transforms that maps each byte by itself: to_float, rescale, normalize, and the layout. A set
// leaves such a field in bytes; the batch gets floats from a worker, or bytes that a device maps by a table, with the
// same bits.
#pragma once

#include <cstdint>

#include "engine/graph/dtype.h"
#include "engine/runtime/byte_table.h"
#include "engine/train/data/sample_steps.h"

namespace trainctl {

class ByteMap {
 public:
  /// `pass`: from u8 to f32, of a sample of `size` and `channels`.
  ByteMap(PixelPass pass, const ImageSize& size, int64_t channels);

  /// One sample to f32 or bf16.
  void load(const void* bytes, DType type, void* to) const;
  /// Without the tensor's name.
  ByteTable table() const;

 private:
  PixelPass pass_;
  SampleStep step_;
  SampleView view_;
  std::vector<float> values_;  ///< same as ByteTable::values
};

}  // namespace trainctl
