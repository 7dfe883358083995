// How good the answers of a network are, as tables.
#pragma once

#include <cstddef>
#include <string>

#include "engine/train/trainer/quality.h"

namespace trainctl {

/// A table of the classes, the confusion matrix (the largest entries beside its diagonal if there are many classes),
/// and a line with the other measures. Lines fit into `width` columns; 0: unlimited. "" without samples.
std::string quality_text(const Quality& quality, size_t width);

}  // namespace trainctl
