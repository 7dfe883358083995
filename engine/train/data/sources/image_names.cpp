// Stores the names of a set's images in little memory: 4 bytes and the name for each image, and each folder once.
#include "engine/train/data/sources/image_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {

void ImageNames::begin_folder(std::string folder, int32_t label) {
  if (!runs_.empty() && runs_.back().first == size()) runs_.pop_back();  // The last folder has no image.
  runs_.push_back({std::move(folder), size(), names_.size(), label});
}

void ImageNames::add(std::string_view name) {
  names_ += name;
  const uint64_t end = names_.size() - runs_.back().names_at;
  if (end > std::numeric_limits<uint32_t>::max())
    throw EnvError(runs_.back().folder + ": the names of its files need more than 4 GiB");
  ends_.push_back(static_cast<uint32_t>(end));
}

void ImageNames::shrink_to_fit() {
  runs_.shrink_to_fit();
  names_.shrink_to_fit();
  ends_.shrink_to_fit();
}

const ImageNames::Run& ImageNames::run_of(int64_t image) const {
  const auto next = std::upper_bound(runs_.begin(), runs_.end(), image,
                                     [](int64_t value, const Run& run) { return value < run.first; });
  return *std::prev(next);
}

std::string ImageNames::path(int64_t image) const {
  const Run& run = run_of(image);
  const uint32_t begin = image == run.first ? 0 : ends_[static_cast<size_t>(image - 1)];
  const uint32_t end = ends_[static_cast<size_t>(image)];
  return run.folder + "/" + names_.substr(run.names_at + begin, end - begin);
}

int64_t ImageNames::memory_bytes() const {
  size_t bytes = names_.capacity() + ends_.capacity() * sizeof(uint32_t) + runs_.capacity() * sizeof(Run);
  for (const Run& run : runs_) bytes += run.folder.capacity();
  return static_cast<int64_t>(bytes);
}

bool is_image_name(std::string_view name, std::string_view folder) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return false;
  const std::string extension = lower_case(std::string(name.substr(dot + 1)));
  const auto is_any_of = [&](std::initializer_list<const char*> list) {
    return std::find(list.begin(), list.end(), extension) != list.end();
  };
  if (is_any_of({"bmp", "gif", "heic", "pgm", "ppm", "tif", "tiff", "webp"}))
    throw SpecError({}, "dataset.path",
                    fmt::format("'{}/{}' has an image format that trainctl does not support", folder, name),
                    "convert it to PNG or JPEG, or remove it");
  return is_any_of({"jpg", "jpeg", "png"});
}

}  // namespace trainctl
