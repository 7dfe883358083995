// Prints how good the answers of a network are, as tables.
#pragma once

#include <cstddef>
#include <string>

#include "engine/train/trainer/quality.h"

namespace trainctl {

/// A table of the classes, the confusion matrix (for many classes: the largest entries off its diagonal),
/// and a line with the other measures. Lines fit into `width` columns; 0: unlimited. "" without samples.
std::string quality_text(const Quality& quality, size_t width);

}  // namespace trainctl
