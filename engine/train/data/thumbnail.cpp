// A small picture of one sample, for a page.
#include "engine/train/data/thumbnail.h"

#include <algorithm>
#include <vector>

#include "engine/train/data/contact_sheet.h"
#include "engine/train/data/image/png_file.h"

namespace trainctl {
namespace {

struct Picture {
  int64_t height = 0, width = 0, channels = 0;
  std::vector<float> values;  ///< [h, w, c]
};

/// [h, w, c] from either order of the dims.
Picture channels_last(const Shape& shape, const std::vector<float>& values) {
  const auto has_channels = [](int64_t size) { return size == 1 || size == 3; };
  if (has_channels(shape[2])) return {shape[0], shape[1], shape[2], values};
  Picture picture{shape[1], shape[2], shape[0], std::vector<float>(values.size())};
  const int64_t pixels = picture.height * picture.width;
  for (int64_t c = 0; c < picture.channels; ++c)
    for (int64_t i = 0; i < pixels; ++i)
      picture.values[static_cast<size_t>(i * picture.channels + c)] = values[static_cast<size_t>(c * pixels + i)];
  return picture;
}

/// Each pixel is the mean of a square of `factor` x `factor` pixels; pixels at the end that fill no square are left
/// out.
Picture smaller(const Picture& from, int64_t factor) {
  Picture to{from.height / factor, from.width / factor, from.channels, {}};
  to.values.resize(static_cast<size_t>(to.height * to.width * to.channels));
  size_t out = 0;
  for (int64_t y = 0; y < to.height; ++y)
    for (int64_t x = 0; x < to.width; ++x)
      for (int64_t c = 0; c < to.channels; ++c) {
        float sum = 0;
        for (int64_t dy = 0; dy < factor; ++dy)
          for (int64_t dx = 0; dx < factor; ++dx)
            sum += from.values[static_cast<size_t>(((y * factor + dy) * from.width + x * factor + dx) * from.channels +
                                                   c)];
        to.values[out++] = sum / static_cast<float>(factor * factor);
      }
  return to;
}

}  // namespace

bool write_thumbnail(const Dataset& set, int64_t sample, const std::string& path) {
  const auto field = std::find_if(set.fields().begin(), set.fields().end(), [](const SampleField& one) {
    return !one.is_integer && one.name != "label" && is_picture(one.shape);
  });
  if (field == set.fields().end()) return false;
  std::vector<float> values(static_cast<size_t>(field->elements()));
  set.read(field->name, sample, values.data());
  Picture picture = channels_last(field->shape, values);
  const int64_t side = std::max(picture.height, picture.width);
  const int64_t factor = (side + kThumbnailSide - 1) / kThumbnailSide;
  if (factor > 1 && std::min(picture.height, picture.width) >= factor) picture = smaller(picture, factor);
  ContactSheet sheet({picture.height, picture.width, picture.channels}, 1);
  sheet.draw(0, picture.values);
  write_png(path, sheet.image());
  return true;
}

}  // namespace trainctl
