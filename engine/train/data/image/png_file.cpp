// Writes images as PNG files, with libpng's simplified interface, which returns its errors.
#include "engine/train/data/image/png_file.h"

#include <png.h>

#include "engine/base/error.h"
#include "engine/base/output_file.h"

namespace trainctl {

void write_png(const std::string& path, const ImageView& image) {
  check(image.stride == image.width * image.channels, "the rows of a picture that is written have no gaps");
  png_image out{};
  out.version = PNG_IMAGE_VERSION;
  out.width = static_cast<png_uint_32>(image.width);
  out.height = static_cast<png_uint_32>(image.height);
  out.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  const auto write = [&](std::string& bytes) {
    png_alloc_size_t size = bytes.size();
    void* to = bytes.empty() ? nullptr : bytes.data();
    if (png_image_write_to_memory(&out, to, &size, 0, image.pixels, 0, nullptr) == 0)
      throw EnvError(path + ": cannot be written: " + out.message);
    bytes.resize(size);
  };
  std::string bytes;
  write(bytes);  // The first call only counts the bytes.
  write(bytes);
  write_output(path, bytes);
}

}  // namespace trainctl
