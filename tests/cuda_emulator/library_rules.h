// Calls for which the emulator's stand-in for cuDNN has engines. Tests set other rules, to see what the engine does
// where the library refuses.
#pragma once

#include <cstdint>

namespace trainctl::emulator {

struct LibraryRules {
  bool convolutions = true;
  int64_t channel_unit = 1;                ///< in bf16, of channels-last images
  int64_t most_images = int64_t{1} << 40;  ///< largest number of images per call
  bool only_fused = false;                 ///< forward convolutions only with a fused bias
  bool wide_gradients = true;              ///< weight gradients in f32 for images in bf16
  bool attention = false;
  bool grouped_gradients = true;  ///< gradients of attention with several query heads per kv head

  bool operator==(const LibraryRules&) const = default;
};

LibraryRules& library_rules();

/// Calls of the library so far.
int library_runs();
/// Products that cuBLASLt would compute on a GPU, so far.
int library_products();

}  // namespace trainctl::emulator
