// Describes how bytes from the host become a tensor of floats on a device: pixels take a quarter of their f32 on the
// way to the device and in the host's memory.
//
//   bytes   [sample, pixel, channel], or with from_planes [sample, channel, pixel]
//   tensor  values[channel][byte], in the same places, or with to_planes [sample, channel, pixel]
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainctl {

struct ByteTable {
  static constexpr int64_t kValues = 256;      ///< number of values of a byte
  static constexpr int64_t kMostChannels = 8;  ///< a kernel keeps all values in shared memory

  std::string tensor;  ///< Instruction::op of its loads
  int64_t pixels = 1, channels = 1;
  bool from_planes = false, to_planes = false;
  std::vector<float> values;  ///< [channels, kValues]

  int64_t sample_elements() const { return pixels * channels; }
};

}  // namespace trainctl
