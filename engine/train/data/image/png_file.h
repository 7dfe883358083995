// Writes images as PNG files.
#pragma once

#include <string>

#include "engine/train/data/image/image.h"

namespace trainctl {

/// `image`: 1 or 3 channels, its rows without gaps. Throws EnvError.
void write_png(const std::string& path, const ImageView& image);

}  // namespace trainctl
