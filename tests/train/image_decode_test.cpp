// Tests of decoding: regions, orientation, colors, and damaged files.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "engine/base/error.h"
#include "engine/train/data/image/decode.h"
#include "engine/train/data/image/exif.h"
#include "engine/train/data/sample_rng.h"
#include "tests/train/image_files.h"

using namespace trainctl;

namespace {

Picture decode(const FileBytes& file, int channels = 3, std::optional<PixelBox> region = {}, int scale = 1) {
  Image image;
  decode_image(file, "photo", {channels, region, scale}, image);
  const ImageView& view = image.view();
  Picture picture{view.height, view.width, view.channels, {}};
  for (int64_t y = 0; y < view.height; ++y)
    picture.pixels.insert(picture.pixels.end(), view.row(y), view.row(y) + view.width * view.channels);
  return picture;
}

std::vector<uint8_t> cut(const Picture& picture, const PixelBox& box) {
  std::vector<uint8_t> pixels;
  for (int64_t y = box.top; y < box.top + box.height; ++y) {
    const auto row = picture.pixels.begin() + (y * picture.width + box.left) * picture.channels;
    pixels.insert(pixels.end(), row, row + box.width * picture.channels);
  }
  return pixels;
}

PixelBox random_box(const ImageSize& size, SampleRng& rng) {
  PixelBox box;
  box.height = 1 + rng.integer(size.height);
  box.width = 1 + rng.integer(size.width);
  box.top = rng.integer(size.height - box.height + 1);
  box.left = rng.integer(size.width - box.width + 1);
  return box;
}

/// Counts how many of 150 boxes differ from the same part of the whole image.
int differing_regions(const FileBytes& file, int channels) {
  const Picture whole = decode(file, channels);
  SampleRng rng(7, 0, 0);
  int differing = 0;
  for (int i = 0; i < 150; ++i) {
    const PixelBox box = random_box({whole.height, whole.width}, rng);
    const Picture part = decode(file, channels, box);
    differing += part.height != box.height || part.width != box.width || part.pixels != cut(whole, box) ? 1 : 0;
  }
  return differing;
}

std::string env_error(const FileBytes& file, bool header_only = false, std::optional<PixelBox> region = {}) {
  try {
    header_only ? static_cast<void>(image_size(file, "cats/12.jpg")) : [&] {
      Image image;
      decode_image(file, "cats/12.jpg", {3, region}, image);
    }();
  } catch (const EnvError& error) {
    return error.what();
  }
  return "no error";
}

FileBytes bytes(const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

int largest_difference(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  REQUIRE(a.size() == b.size());
  int most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(int{a[i]} - int{b[i]}));
  return most;
}

}  // namespace

TEST_CASE("a region of a JPEG has the bits of the whole image for every sampling of colours") {
  for (const int horizontal : {1, 2, 4}) {
    for (const int vertical : {1, 2}) {
      for (const bool is_progressive : {false, true}) {
        for (const int restart_rows : {0, 1}) {
          JpegOptions options{.horizontal = horizontal, .vertical = vertical};
          options.is_progressive = is_progressive;
          options.restart_rows = restart_rows;
          INFO(horizontal, "x", vertical, " progressive ", is_progressive, " restarts ", restart_rows);
          CHECK(differing_regions(write_jpeg(make_picture(93, 141, 3), options), 3) == 0);
        }
      }
    }
  }
}

TEST_CASE(
    "a region of a grey JPEG, of one channel of a colour JPEG, and of a CMYK one has the bits of the whole image") {
  CHECK(differing_regions(write_jpeg(make_picture(67, 90, 1)), 1) == 0);
  CHECK(differing_regions(write_jpeg(make_picture(67, 90, 1)), 3) == 0);
  CHECK(differing_regions(write_jpeg(make_picture(67, 90, 3)), 1) == 0);
  CHECK(differing_regions(write_jpeg(make_picture(67, 90, 4)), 3) == 0);
  CHECK(differing_regions(write_jpeg(make_picture(67, 90, 4), {.is_ycck = true}), 3) == 0);
}

TEST_CASE("a region of a PNG has the bits of the whole image, interlaced or not") {
  for (const bool is_interlaced : {false, true})
    for (const int64_t channels : {1, 2, 3, 4})
      CHECK(differing_regions(write_png(make_picture(31, 45, channels), {.is_interlaced = is_interlaced}), 3) == 0);
}

TEST_CASE("a region of a turned image has the bits of the whole image") {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    INFO(orientation);
    CHECK(differing_regions(write_jpeg(make_picture(45, 70, 3), {.orientation = orientation}), 3) == 0);
    CHECK(differing_regions(write_png(make_picture(45, 70, 3), {.orientation = orientation}), 3) == 0);
  }
}

TEST_CASE("EXIF's orientation makes the image upright, in JPEG and PNG, in both orders of bytes") {
  //  a b c          where a, the first stored pixel, comes to be, and b, the pixel to its right
  //  d e f
  struct Case {
    int orientation;
    std::string upright;
    int64_t height;
  };
  const std::vector<Case> cases = {{0, "abcdef", 2}, {1, "abcdef", 2}, {2, "cbafed", 2}, {3, "fedcba", 2},
                                   {4, "defabc", 2}, {5, "adbecf", 3}, {6, "daebfc", 3}, {7, "fcebda", 3},
                                   {8, "cfbead", 3}, {9, "abcdef", 2}};
  for (const auto& [orientation, upright, height] : cases) {
    INFO(orientation);
    const Picture stored{2, 3, 1, {'a', 'b', 'c', 'd', 'e', 'f'}};
    const FileBytes png = write_png(stored, {.orientation = orientation});
    const Picture turned = decode(png, 1);
    CHECK(std::string(turned.pixels.begin(), turned.pixels.end()) == upright);
    CHECK(image_size(png, "p") == ImageSize{height, 6 / height});
    for (const bool is_big_endian : {false, true}) {
      // The picture is enlarged eight times, so that each of JPEG's blocks has a single value.
      Picture large{16, 24, 1, {}};
      for (int64_t y = 0; y < 16; ++y)
        for (int64_t x = 0; x < 24; ++x)
          large.pixels.push_back(static_cast<uint8_t>(20 * (stored.at(y / 8, x / 8, 0) - 'a' + 1)));
      const FileBytes jpeg =
          write_jpeg(large, {.quality = 100, .orientation = orientation, .is_big_endian = is_big_endian});
      const Picture image = decode(jpeg, 1);
      CHECK(image_size(jpeg, "p") == ImageSize{8 * height, 48 / height});
      std::string seen;
      for (int64_t y = 0; y < height; ++y)
        for (int64_t x = 0; x < 6 / height; ++x)
          seen += static_cast<char>('a' + (image.at(8 * y + 4, 8 * x + 4, 0) + 10) / 20 - 1);
      CHECK(seen == upright);
    }
  }
}

TEST_CASE("damaged EXIF data leave the image as it is stored") {
  std::vector<uint8_t> data = exif_data(6, false);
  CHECK(exif_orientation(data) == orientation_of(6));
  for (size_t size = 0; size < 34; ++size) CHECK(exif_orientation(std::span(data).first(size)).is_upright());
  for (const size_t at : {0, 2, 4, 8}) {
    std::vector<uint8_t> wrong = data;
    wrong[at] = 0xee;
    CHECK(exif_orientation(wrong).is_upright());
  }
}

TEST_CASE("grey becomes three equal channels, and colours one by their luma") {
  const Picture grey = decode(write_png({1, 2, 1, {7, 200}}));
  CHECK(grey.pixels == std::vector<uint8_t>{7, 7, 7, 200, 200, 200});
  const Picture luma = decode(write_png({1, 4, 3, {255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255}}), 1);
  CHECK(luma.pixels == std::vector<uint8_t>{76, 150, 29, 255});
  const Picture color = make_picture(40, 40, 3);
  const FileBytes jpeg = write_jpeg(color, {.quality = 95, .horizontal = 1, .vertical = 1});
  CHECK(largest_difference(decode(jpeg, 1).pixels, decode(write_png(decode(jpeg, 3)), 1).pixels) <= 2);
}

TEST_CASE("alpha is dropped, palettes become colours, few bits fill the range and 16 bits are rounded to 8") {
  CHECK(decode(write_png({1, 2, 4, {1, 2, 3, 0, 4, 5, 6, 255}})).pixels == std::vector<uint8_t>{1, 2, 3, 4, 5, 6});
  CHECK(decode(write_png({1, 2, 2, {9, 0, 8, 255}}), 1).pixels == std::vector<uint8_t>{9, 8});
  const PngOptions palette{.palette = {10, 20, 30, 40, 50, 60}};
  CHECK(decode(write_png({1, 3, 1, {1, 0, 1}}, palette)).pixels ==
        std::vector<uint8_t>{40, 50, 60, 10, 20, 30, 40, 50, 60});
  CHECK(decode(write_png({1, 4, 1, {0b00011011}}, {.bits = 2}), 1).pixels == std::vector<uint8_t>{0, 85, 170, 255});
  CHECK(decode(write_png({1, 3, 1, {0b10100000}}, {.bits = 1}), 1).pixels == std::vector<uint8_t>{255, 0, 255});
  // A 16-bit value is divided by 257 and rounded: 0x0080 / 257 is 0.498, 0x0081 / 257 is 0.502, and 0xff7f / 257 is
  // 254.502.
  CHECK(decode(write_png({1, 4, 1, {0, 0x80, 0, 0x81, 0xff, 0x7f, 0xff, 0xff}}, {.bits = 16}), 1).pixels ==
        std::vector<uint8_t>{0, 1, 255, 255});
}

TEST_CASE("CMYK and YCCK are read as Adobe stores them, inverted") {
  // The inks are, from left to right: none, black, cyan, and half magenta.
  Picture inks{8, 32, 4, {}};
  const uint8_t stored[4][4] = {{255, 255, 255, 255}, {255, 255, 255, 0}, {0, 255, 255, 255}, {255, 128, 255, 255}};
  for (int64_t y = 0; y < 8; ++y)
    for (int64_t x = 0; x < 32; ++x) inks.pixels.insert(inks.pixels.end(), stored[x / 8], stored[x / 8] + 4);
  for (const bool is_ycck : {false, true}) {
    const Picture image =
        decode(write_jpeg(inks, {.quality = 100, .horizontal = 1, .vertical = 1, .is_ycck = is_ycck}));
    const uint8_t wanted[4][3] = {{255, 255, 255}, {0, 0, 0}, {0, 255, 255}, {255, 128, 255}};
    for (int64_t i = 0; i < 4; ++i)
      for (int64_t c = 0; c < 3; ++c) CHECK(std::abs(int{image.at(4, 8 * i + 4, c)} - int{wanted[i][c]}) <= 2);
  }
}

TEST_CASE("the size is that of the header, and a JPEG at a smaller scale covers its region") {
  const FileBytes file = write_jpeg(make_picture(97, 203, 3));
  CHECK(image_size(file, "p") == ImageSize{97, 203});
  const Picture half = decode(file, 3, PixelBox{10, 21, 50, 100}, 2);
  CHECK(half.height == 25);
  CHECK(half.width == 51);  // The decoded region reaches from 10.5 to 60.5 in pixels of the halved image.
  const Picture whole = decode(file, 3, {}, 2);
  CHECK(whole.height == 49);
  CHECK(whole.width == 102);
  CHECK(half.pixels == cut(whole, {5, 10, 25, 51}));
  for (const int scale : {2, 4, 8}) {
    const Picture small = decode(file, 3, {}, scale), full = decode(file);
    double sum = 0;
    for (int64_t y = 0; y + 1 < small.height; ++y)
      for (int64_t x = 0; x + 1 < small.width; ++x) {
        double mean = 0;
        for (int64_t i = 0; i < scale * scale; ++i) mean += full.at(scale * y + i / scale, scale * x + i % scale, 1);
        sum += std::abs(mean / (scale * scale) - small.at(y, x, 1));
      }
    CHECK(sum / static_cast<double>(small.height * small.width) < 2);
  }
}

TEST_CASE("a truncated JPEG or PNG is an error that names it, even if the requested region is present") {
  const Picture picture = make_picture(64, 80, 3);
  for (const FileBytes& whole :
       {write_jpeg(picture), write_jpeg(picture, {.is_progressive = true}), write_png(picture)}) {
    REQUIRE(env_error(whole) == "no error");
    for (size_t size = 0; size < whole.size() - 1; size += 1 + size / 40) {
      const FileBytes part(whole.begin(), whole.begin() + static_cast<int64_t>(size));
      INFO(size, " of ", whole.size());
      CHECK(env_error(part, false, PixelBox{0, 0, 8, 8}).starts_with("cats/12.jpg: "));
    }
  }
  FileBytes part = write_jpeg(picture);
  part.resize(part.size() / 2);
  CHECK(env_error(part) == "cats/12.jpg: the JPEG is truncated: it has no end marker; download the file again");
}

TEST_CASE("a JPEG whose data are damaged is an error, although libjpeg only warns") {
  FileBytes file = write_jpeg(make_picture(64, 80, 3));
  const size_t end = file.size() - 2;
  FileBytes hole = file;
  hole.erase(hole.begin() + static_cast<int64_t>(end / 2), hole.begin() + static_cast<int64_t>(end));
  CHECK(env_error(hole) == "cats/12.jpg: damaged JPEG: Corrupt JPEG data: premature end of data segment");
}

TEST_CASE("an image that claims more pixels than the limit is refused before memory is taken") {
  FileBytes png = write_png(make_picture(8, 8, 3));
  for (const size_t at : {size_t{16}, size_t{20}}) png[at + 1] = std::byte{1};  // Width and height become 65,544.
  CHECK(env_error(png).find("cats/12.jpg: ") == 0);
  FileBytes jpeg = write_jpeg(make_picture(8, 8, 3));
  const std::byte kFrame[] = {std::byte{0xff}, std::byte{0xc0}};
  const auto frame = std::search(jpeg.begin(), jpeg.end(), std::begin(kFrame), std::end(kFrame));
  REQUIRE(frame != jpeg.end());
  for (int i = 5; i < 9; ++i) frame[i] = std::byte{0x80};
  CHECK(env_error(jpeg, true) == "cats/12.jpg: an image of 32,896 x 32,896 pixels; the limit is 67,108,864");
}

TEST_CASE("the error for a file that is no image says how it begins") {
  CHECK(env_error({}) == "cats/12.jpg: empty: 0 bytes");
  CHECK(env_error(bytes("<html><body>404")) ==
        "cats/12.jpg: neither a JPEG (ff d8) nor a PNG (89 50 4e 47): begins with 3c 68 74 6d");
  CHECK(env_error(bytes("\xff\xd8")).starts_with("cats/12.jpg: damaged JPEG: "));
}
