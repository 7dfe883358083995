// A small picture of one sample, for a page.
#pragma once

#include <string>

#include "engine/train/data/dataset.h"

namespace trainctl {

/// Largest side of a thumbnail, in pixels.
inline constexpr int64_t kThumbnailSide = 96;

/// Writes the first field of the sample that is a picture, after the transforms, as a PNG file. Returns false if the
/// samples have no pictures. Throws EnvError.
bool write_thumbnail(const Dataset& set, int64_t sample, const std::string& path);

}  // namespace trainctl
