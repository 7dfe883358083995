// dataset.type shapes: made-up images for segmentation. Each has one to three discs, squares and diamonds of random
// size, place and colour on noise; the label has the class of each pixel.
#pragma once

#include <memory>

#include "engine/train/data/dataset.h"

namespace trainctl {

/// Classes of pixels: the background, discs, squares and diamonds.
inline constexpr int64_t kDrawnClasses = 4;

/// data [c, h, w] f32, label [h, w] i32.
DataShapes drawn_shapes(const DatasetSpec& spec);
/// Samples depend only on the seed and their number. With spec.takes_validation_share the set has other samples.
std::unique_ptr<Dataset> make_drawn_set(const DatasetSpec& spec, uint64_t seed);

}  // namespace trainctl
