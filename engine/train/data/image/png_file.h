// Writes images as PNG files.
#pragma once

#include <string>

#include "engine/train/data/image/image.h"

namespace trainctl {

/// Writes an image of 1 or 3 channels, whose rows have no gaps between them. Throws EnvError.
void write_png(const std::string& path, const ImageView& image);

}  // namespace trainctl
