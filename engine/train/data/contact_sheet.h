// Samples drawn side by side, as a network sees them.
#pragma once

#include <span>

#include "engine/graph/shape.h"
#include "engine/train/data/image/image.h"

namespace trainctl {

/// Returns whether a field of this shape is a picture: [h, w, 1 or 3], or [1 or 3, h, w].
bool is_picture(const Shape& shape);

/// Pictures in rows, with a gap between them. Each is stretched so that its smallest value is black and its largest is
/// white: transforms may have left any range.
class ContactSheet {
 public:
  /// `shape` is that of a picture (is_picture). `count` is the number of pictures, at least 1.
  ContactSheet(const Shape& shape, int64_t count);
  void draw(int64_t number, std::span<const float> picture);
  const ImageView& image() const { return image_.view(); }
  int64_t columns() const { return columns_; }

 private:
  int64_t height_, width_, channels_;
  bool channels_first_;
  int64_t columns_;
  Image image_;
};

}  // namespace trainctl
