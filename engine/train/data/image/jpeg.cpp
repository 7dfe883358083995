// Reads JPEG with libjpeg-turbo, through its libjpeg interface, since TurboJPEG's own interface decodes no regions
// before version 3.
//
//   rows above the region     entropy decoded, no more          jpeg_skip_scanlines
//   columns outside it        entropy decoded, no more          jpeg_crop_scanline, in whole MCUs
//   rows below it             not read (of a baseline file)
//
// Color differences are stored at half the resolution and interpolated (libjpeg's fancy upsampling), so a pixel also
// depends on its neighbors: a margin around the region is decoded, and not shown.
//
// libjpeg reports errors by a function that must not return. It jumps back to attempt(), over frames of libjpeg and of
// the function that attempt() calls, which has only trivial objects.
// clang-format off
#include <cstddef>
#include <cstdio>  // jpeglib.h needs it
// clang-format on

#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/data/image/formats.h"

namespace trainctl {
namespace {

/// Most scans of a progressive file that are read. A malicious file may repeat scans of a large image without end; real
/// files have about ten.
constexpr int kMostScans = 200;

struct Errors {
  jpeg_error_mgr manager;  // first: libjpeg passes only its address
  std::jmp_buf back;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void on_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<Errors*>(info->err);
  info->err->format_message(info, errors->message);
  std::longjmp(errors->back, 1);
}

/// libjpeg's function for messages. A warning that pixels were invented is an error here, although libjpeg would
/// continue. After other warnings (bytes between markers, unknown versions of JFIF) the pixels are correct.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
    case JWRN_NOT_SEQUENTIAL:
      on_error(info);
    default:
      break;
  }
}

void on_progress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMostScans) return;
  auto* errors = reinterpret_cast<Errors*>(info->err);
  std::snprintf(errors->message, sizeof(errors->message), "more than %d scans", kMostScans);
  std::longjmp(errors->back, 1);
}

struct Decompressor : jpeg_decompress_struct {
  Decompressor() : jpeg_decompress_struct{} {}
  ~Decompressor() { jpeg_destroy_decompress(this); }
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;
};

/// `name`: the file that errors name.
class JpegReader final : public ImageFile {
 public:
  JpegReader(std::span<const std::byte> file, const std::string& name) : name_(name) {
    info_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = on_error;
    errors_.manager.emit_message = on_message;
    progress_.progress_monitor = on_progress;
    attempt([&] {
      jpeg_create_decompress(&info_);
      info_.progress = &progress_;
      jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(file.data()), file.size());
      jpeg_save_markers(&info_, JPEG_APP0 + 1, 0xffff);  // EXIF
      jpeg_read_header(&info_, TRUE);
    });
    check_image_size(name_, size());
    require_end();
  }

  StoredImage header() const override { return {size(), orientation()}; }
  bool has_scales() const override { return true; }
  void decode(int channels, const PixelBox& region, int scale, Image& out) override;

 private:
  ImageSize size() const { return {info_.image_height, info_.image_width}; }
  Orientation orientation() const;
  void choose_colors(int channels);

  /// Calls `run`, whose objects are trivial. Throws EnvError with libjpeg's message if it jumps out of it.
  template <class Run>
  void attempt(Run&& run) {
    if (!runs_through(run)) fail_image(name_, std::string("damaged JPEG: ") + errors_.message);
  }

  template <class Run>
  bool runs_through(Run& run) {
    if (setjmp(errors_.back) != 0) return false;
    run();
    return true;
  }

  /// Requires the end marker. The rows of a region may be complete although the rows below it are missing.
  void require_end() {
    const uint8_t* first = info_.src->next_input_byte;
    for (const uint8_t* at = first + info_.src->bytes_in_buffer; at - first >= 2; --at)
      if (at[-2] == 0xff && at[-1] == JPEG_EOI) return;
    fail_image(name_, "the JPEG is truncated: it has no end marker; download the file again");
  }

  const std::string& name_;
  Errors errors_{};
  jpeg_progress_mgr progress_{};
  Decompressor info_;
};

Orientation JpegReader::orientation() const {
  constexpr std::array<uint8_t, 6> kExif = {'E', 'x', 'i', 'f', 0, 0};
  for (jpeg_saved_marker_ptr marker = info_.marker_list; marker != nullptr; marker = marker->next) {
    const std::span<const uint8_t> data(marker->data, marker->data_length);
    if (data.size() > kExif.size() && std::equal(kExif.begin(), kExif.end(), data.begin()))
      return exif_orientation(data.subspan(kExif.size()));
  }
  return {};
}

void JpegReader::choose_colors(int channels) {
  Decompressor& info = info_;
  switch (info.jpeg_color_space) {
    case JCS_GRAYSCALE:
    case JCS_YCbCr:
    case JCS_RGB:
      info.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
      break;
    case JCS_CMYK:
    case JCS_YCCK:
      info.out_color_space = JCS_CMYK;
      break;
    default:
      fail_image(name_, "a JPEG with " + std::to_string(info.num_components) + " channels and an unknown color space");
  }
}

/// Converts CMYK pixels to 1 or 3 channels. `cmyk` is inverted, as Adobe stores it.
void convert_cmyk(const uint8_t* cmyk, int64_t pixels, int channels, uint8_t* to) {
  for (int64_t i = 0; i < pixels; ++i, cmyk += 4, to += channels) {
    int rgb[3];
    for (int c = 0; c < 3; ++c) rgb[c] = (cmyk[c] * cmyk[3] + 127) / 255;
    if (channels == 1) {
      *to = luma(rgb[0], rgb[1], rgb[2]);
    } else {
      for (int c = 0; c < 3; ++c) to[c] = static_cast<uint8_t>(rgb[c]);
    }
  }
}

void JpegReader::decode(int channels, const PixelBox& region, int scale, Image& out) {
  Decompressor& info = info_;
  choose_colors(channels);
  info.do_block_smoothing = FALSE;  // Smoothing would guess coefficients of files whose last scans are missing.
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned>(scale);
  JDIMENSION first = 0;  // column of the rows that libjpeg writes
  attempt([&] {
    jpeg_start_decompress(&info);
    const auto width = static_cast<int64_t>(info.output_width);
    const int64_t margin = 2 * info.max_h_samp_factor;  // two samples of the most subsampled color
    const int64_t from = std::max<int64_t>(region.left - margin, 0);
    const int64_t to = std::min<int64_t>(region.left + region.width + margin, width);
    first = static_cast<JDIMENSION>(from);
    auto columns = static_cast<JDIMENSION>(to - from);
    if (columns < info.output_width) jpeg_crop_scanline(&info, &first, &columns);
  });
  const auto width = static_cast<int64_t>(info.output_width);
  out.resize(region.height, width, channels);
  const bool is_cmyk = info.out_color_space == JCS_CMYK;
  std::vector<uint8_t> cmyk(is_cmyk ? static_cast<size_t>(width) * 4 : 0);
  attempt([&] {
    if (region.top > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(region.top));
    for (int64_t y = 0; y < region.height;) {
      JSAMPROW rows[4];
      const int64_t most = is_cmyk ? 1 : std::min<int64_t>(std::size(rows), region.height - y);
      for (int64_t i = 0; i < most; ++i) rows[i] = is_cmyk ? cmyk.data() : out.row(y + i);
      const int64_t read = jpeg_read_scanlines(&info, rows, static_cast<JDIMENSION>(most));
      if (is_cmyk) convert_cmyk(cmyk.data(), width, channels, out.row(y));
      y += read;
    }
  });
  out.show({0, region.left - static_cast<int64_t>(first), region.height, region.width});
}

}  // namespace

bool is_jpeg(std::span<const std::byte> file) {
  return file.size() >= 2 && file[0] == std::byte{0xff} && file[1] == std::byte{0xd8};
}

std::unique_ptr<ImageFile> open_jpeg(std::span<const std::byte> file, const std::string& name) {
  return std::make_unique<JpegReader>(file, name);
}

}  // namespace trainctl
