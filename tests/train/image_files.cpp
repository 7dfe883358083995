// Writes image files for tests with libjpeg and libpng.
#include "tests/train/image_files.h"

// clang-format off
#include <cstddef>
#include <cstdio>  // jpeglib.h needs it
// clang-format on

#include <jpeglib.h>
#include <png.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "engine/ops/random.h"

namespace trainctl {

Picture make_picture(int64_t height, int64_t width, int64_t channels, uint64_t seed) {
  Picture picture{height, width, channels, {}};
  const double phase = static_cast<double>(philox(seed, 0, 0).v[0] % 1000) / 100;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const auto v = static_cast<double>(y), u = static_cast<double>(x);
      const bool is_inside = std::hypot(v - static_cast<double>(height) / 2, u - static_cast<double>(width) / 3) <
                             static_cast<double>(std::min(height, width)) / 4;
      for (int64_t c = 0; c < channels; ++c) {
        const auto k = static_cast<double>(c + 1);
        double value =
            128 + 60 * std::sin(u / (5 * k) + phase) + 50 * std::cos(v / (7 - k) + k) + (is_inside ? 60 * (2 - k) : 0);
        value +=
            static_cast<double>(philox(seed, static_cast<uint64_t>(y * width + x), static_cast<uint64_t>(c)).v[1] % 9);
        picture.pixels.push_back(static_cast<uint8_t>(std::min(255.0, std::max(0.0, value))));
      }
    }
  }
  return picture;
}

std::vector<uint8_t> exif_data(int orientation, bool is_big_endian) {
  std::vector<uint8_t> data;
  const auto put = [&](uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      data.push_back(static_cast<uint8_t>(value >> 8 * (is_big_endian ? bytes - 1 - i : i)));
  };
  data.insert(data.end(), 2, is_big_endian ? 'M' : 'I');
  put(42, 2);
  put(8, 4);
  put(2, 2);  // two entries
  for (const auto& [tag, value] : {std::pair<uint32_t, int>{0x0103, 6}, {0x0112, orientation}}) {
    put(tag, 2);
    put(3, 2);
    put(1, 4);
    put(static_cast<uint32_t>(value), 2);
    put(0, 2);
  }
  put(0, 4);
  return data;
}

FileBytes write_jpeg(const Picture& picture, const JpegOptions& options) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);  // exits
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_height = static_cast<JDIMENSION>(picture.height);
  info.image_width = static_cast<JDIMENSION>(picture.width);
  info.input_components = static_cast<int>(picture.channels);
  info.in_color_space = picture.channels == 1 ? JCS_GRAYSCALE : picture.channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&info);
  if (options.is_ycck) jpeg_set_colorspace(&info, JCS_YCCK);
  jpeg_set_quality(&info, options.quality, TRUE);
  if (picture.channels == 3 || options.is_ycck) {
    for (const int whole : {0, options.is_ycck ? 3 : 0}) {  // of luma, and of black
      info.comp_info[whole].h_samp_factor = options.horizontal;
      info.comp_info[whole].v_samp_factor = options.vertical;
    }
  }
  info.restart_in_rows = options.restart_rows;
  if (options.is_progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  if (options.orientation > 0) {
    std::vector<uint8_t> marker = {'E', 'x', 'i', 'f', 0, 0};
    const std::vector<uint8_t> tiff = exif_data(options.orientation, options.is_big_endian);
    marker.insert(marker.end(), tiff.begin(), tiff.end());
    jpeg_write_marker(&info, JPEG_APP0 + 1, marker.data(), static_cast<unsigned>(marker.size()));
  }
  for (int64_t y = 0; y < picture.height; ++y) {
    auto* row = const_cast<JSAMPROW>(picture.pixels.data() + y * picture.width * picture.channels);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const auto* first = reinterpret_cast<const std::byte*>(bytes);
  FileBytes file(first, first + size);
  std::free(bytes);
  return file;
}

FileBytes write_png(const Picture& picture, const PngOptions& options) {
  FileBytes file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &file,
      [](png_structp to, png_bytep data, size_t size) {
        auto& bytes = *static_cast<FileBytes*>(png_get_io_ptr(to));
        const auto* first = reinterpret_cast<const std::byte*>(data);
        bytes.insert(bytes.end(), first, first + size);
      },
      nullptr);
  const int types[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGB_ALPHA};
  const int type = options.palette.empty() ? types[picture.channels - 1] : PNG_COLOR_TYPE_PALETTE;
  png_set_IHDR(png, info, static_cast<png_uint_32>(picture.width), static_cast<png_uint_32>(picture.height),
               options.bits, type, options.is_interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_color> colors;
  for (size_t i = 0; i + 2 < options.palette.size(); i += 3)
    colors.push_back({options.palette[i], options.palette[i + 1], options.palette[i + 2]});
  if (!colors.empty()) png_set_PLTE(png, info, colors.data(), static_cast<int>(colors.size()));
  std::vector<uint8_t> exif = exif_data(options.orientation, true);
  if (options.orientation > 0) png_set_eXIf_1(png, info, static_cast<png_uint_32>(exif.size()), exif.data());
  png_write_info(png, info);
  const int passes = png_set_interlace_handling(png);
  const int64_t row_bytes = (picture.width * picture.channels * options.bits + 7) / 8;
  for (int pass = 0; pass < passes; ++pass)
    for (int64_t y = 0; y < picture.height; ++y) png_write_row(png, picture.pixels.data() + y * row_bytes);
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return file;
}

}  // namespace trainctl
