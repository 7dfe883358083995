// Any bytes, raw or gzip, give an array that fits its header or an EnvError.
#include <cstdlib>

#include "engine/base/error.h"
#include "engine/train/data/idx.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kMost = int64_t{64} << 20;
  const std::span<const uint8_t> bytes(data, size);
  try {
    trainctl::parse_idx_header(bytes, "fuzz");
  } catch (const trainctl::EnvError&) {
  }
  try {
    const trainctl::IdxArray array = trainctl::parse_idx(bytes, "fuzz", kMost);
    if (static_cast<int64_t>(array.body.size()) != array.header.body_bytes()) abort();
    if (array.header.body_bytes() > kMost) abort();
    if (trainctl::to_string(array.header).empty()) abort();
  } catch (const trainctl::EnvError&) {
  }
  return 0;
}
