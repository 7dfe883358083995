// libFuzzer target: any bytes are decoded as an image with the size that its header states, or cause an EnvError.
// Decoding only a region gives the same pixels as decoding the whole image. Any bytes of EXIF data have an orientation.
#include <cstdlib>
#include <cstring>

#include "engine/base/error.h"
#include "engine/train/data/image/decode.h"
#include "engine/train/data/image/exif.h"

namespace {

constexpr int64_t kMostPixels = 1 << 16;  // larger ones only take time

void decode(std::span<const std::byte> file) {
  const trainctl::ImageSize size = trainctl::image_size(file, "fuzz");
  if (size.height * size.width > kMostPixels) return;
  trainctl::Image whole, part;
  trainctl::decode_image(file, "fuzz", {}, whole);
  if (whole.view().height != size.height || whole.view().width != size.width) abort();
  const trainctl::PixelBox box{size.height / 3, size.width / 3, (size.height + 2) / 3, (size.width + 2) / 3};
  trainctl::decode_image(file, "fuzz", {.region = box}, part);
  for (int64_t y = 0; y < box.height; ++y) {
    const uint8_t* wanted = whole.view().row(box.top + y) + box.left * 3;
    if (std::memcmp(part.view().row(y), wanted, static_cast<size_t>(box.width) * 3) != 0) abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  trainctl::exif_orientation({data, size});
  try {
    decode({reinterpret_cast<const std::byte*>(data), size});
  } catch (const trainctl::EnvError&) {
  }
  return 0;
}
