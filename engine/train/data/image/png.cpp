// Reads PNG with libpng, the format's reference implementation: it is well maintained and installed everywhere. It
// reads rows one after another, so a region needs no more memory than itself. As with JPEG, its errors jump back to
// attempt().
#include <png.h>

#include <csetjmp>
#include <cstring>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/data/image/formats.h"

namespace trainctl {
namespace {

constexpr size_t kSignatureBytes = 8;

struct Input {
  std::span<const std::byte> rest;
  std::jmp_buf back;
  char message[128];
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* input = static_cast<Input*>(png_get_error_ptr(png));
  std::snprintf(input->message, sizeof(input->message), "%s", message);
  std::longjmp(input->back, 1);
}
void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep out, size_t bytes) {
  auto* input = static_cast<Input*>(png_get_io_ptr(png));
  if (input->rest.size() < bytes) png_error(png, "unexpected end of the file");
  std::memcpy(out, input->rest.data(), bytes);
  input->rest = input->rest.subspan(bytes);
}

struct Structs {
  png_structp png = nullptr;
  png_infop info = nullptr;
  Structs() = default;
  ~Structs() { png_destroy_read_struct(&png, &info, nullptr); }
  Structs(const Structs&) = delete;
  Structs& operator=(const Structs&) = delete;
};

/// `name`: the file that errors name.
class PngReader final : public ImageFile {
 public:
  PngReader(std::span<const std::byte> file, const std::string& name) : name_(name) {
    require_end(file);
    input_.rest = file;
    structs_.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &input_, on_error, on_warning);
    if (structs_.png != nullptr) structs_.info = png_create_info_struct(structs_.png);
    if (structs_.info == nullptr) throw EnvError(name + ": out of memory while reading a PNG");
    attempt([&] {
      png_set_read_fn(png(), &input_, read_bytes);
      png_read_info(png(), info());
    });
    check_image_size(name_, size());
  }

  StoredImage header() const override { return {size(), orientation()}; }
  bool has_scales() const override { return false; }
  void decode(int channels, const PixelBox& region, int scale, Image& out) override;

 private:
  png_structp png() const { return structs_.png; }
  png_infop info() const { return structs_.info; }
  ImageSize size() const { return {png_get_image_height(png(), info()), png_get_image_width(png(), info())}; }
  Orientation orientation() const {
    png_uint_32 bytes = 0;
    png_bytep exif = nullptr;
    if (png_get_eXIf_1(png(), info(), &bytes, &exif) == 0) return {};
    return exif_orientation({exif, bytes});
  }

  /// Calls `run`, whose objects are trivial. Throws EnvError with libpng's message if it jumps out of it.
  template <class Run>
  void attempt(Run&& run) {
    if (!runs_through(run)) fail_image(name_, std::string("damaged PNG: ") + input_.message);
  }

  template <class Run>
  bool runs_through(Run& run) {
    if (setjmp(input_.back) != 0) return false;
    run();
    return true;
  }

  void require_end(std::span<const std::byte> file) {
    constexpr char kEnd[] = {'I', 'E', 'N', 'D'};
    for (size_t end = file.size(); end >= kSignatureBytes + sizeof(kEnd); --end)
      if (std::memcmp(file.data() + end - sizeof(kEnd), kEnd, sizeof(kEnd)) == 0) return;
    fail_image(name_, "the PNG is truncated: it has no IEND chunk; download the file again");
  }

  const std::string& name_;
  Input input_{};
  Structs structs_;
};

void PngReader::decode(int channels, const PixelBox& region, int, Image& out) {
  const png_structp png = this->png();
  const png_infop info = this->info();
  int passes = 1;
  attempt([&] {
    png_set_expand(png);  // Expands palettes, samples of fewer than 8 bits, and transparent colors.
    png_set_scale_16(png);
    png_set_strip_alpha(png);
    passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
  });
  const int64_t stored_channels = png_get_channels(png, info);
  const auto row_bytes = static_cast<int64_t>(png_get_rowbytes(png, info));
  // An interlaced image is decoded as a whole in several passes, each of which fills in more pixels.
  const int64_t rows_kept = passes > 1 ? size().height : 1;
  std::vector<uint8_t> rows(static_cast<size_t>(rows_kept * row_bytes));
  out.resize(region.height, region.width, channels);
  attempt([&] {
    for (int pass = 0; pass + 1 < passes; ++pass)
      for (int64_t y = 0; y < size().height; ++y) png_read_row(png, rows.data() + y * row_bytes, nullptr);
    for (int64_t y = 0; y < region.top + region.height; ++y) {
      uint8_t* row = rows.data() + (passes > 1 ? y * row_bytes : 0);
      png_read_row(png, row, nullptr);
      if (y < region.top) continue;
      convert_channels(row + region.left * stored_channels, stored_channels, region.width, channels,
                       out.row(y - region.top));
    }
  });
}

}  // namespace

bool is_png(std::span<const std::byte> file) {
  return file.size() >= kSignatureBytes &&
         png_sig_cmp(reinterpret_cast<png_const_bytep>(file.data()), 0, kSignatureBytes) == 0;
}

std::unique_ptr<ImageFile> open_png(std::span<const std::byte> file, const std::string& name) {
  return std::make_unique<PngReader>(file, name);
}

}  // namespace trainctl
