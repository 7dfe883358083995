// Checks whether boxes tile a shape.
#include "engine/train/checkpoint/tiling.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace trainctl {
namespace {

constexpr size_t kMostCutDims = 16;

std::string form_defect(const Shape& shape, const Box& box) {
  if (box.offset.size() != shape.size() || box.shape.size() != shape.size())
    return fmt::format("expected {} dims, found offset {} and shape {}", shape.size(), to_string(box.offset),
                       to_string(box.shape));
  for (size_t d = 0; d < shape.size(); ++d)
    if (box.offset[d] < 0 || box.shape[d] < 1 || box.offset[d] > shape[d] || box.shape[d] > shape[d] - box.offset[d])
      return fmt::format("offset {} and shape {} are not within {}", to_string(box.offset), to_string(box.shape),
                         to_string(shape));
  return "";
}

/// The dims that are cut: some box does not span them.
std::vector<size_t> cut_dims(const Shape& shape, const std::vector<const Box*>& boxes) {
  std::vector<size_t> cut;
  for (size_t d = 0; d < shape.size(); ++d)
    if (std::any_of(boxes.begin(), boxes.end(), [&](const Box* box) { return box->shape[d] != shape[d]; }))
      cut.push_back(d);
  return cut;
}

/// The signed corners of boxes (tiling.h), in the dims that are cut.
class Corners {
 public:
  explicit Corners(std::vector<size_t> dims) : dims_(std::move(dims)) {}

  void add(const Box& box, int sign) {
    for (size_t corner = 0; corner < size_t{1} << dims_.size(); ++corner) {
      int corner_sign = sign;
      for (size_t i = 0; i < dims_.size(); ++i) {
        const bool at_end = corner >> i & 1;
        if (at_end) corner_sign = -corner_sign;
        places_.push_back(box.offset[dims_[i]] + (at_end ? box.shape[dims_[i]] : 0));
      }
      signs_.push_back(corner_sign);
    }
  }

  /// The first corner whose signs do not add up to 0, as the element (of `ndim` dims) and the sum. The sum is 0 if
  /// there is no such corner.
  std::pair<Shape, int> first_remainder(size_t ndim) const {
    const size_t width = dims_.size();
    const auto place = [&](size_t corner) { return places_.begin() + static_cast<std::ptrdiff_t>(corner * width); };
    const auto equal = [&](size_t a, size_t b) {
      return std::equal(place(a), place(a) + static_cast<std::ptrdiff_t>(width), place(b));
    };
    std::vector<size_t> order(signs_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::lexicographical_compare(place(a), place(a) + static_cast<std::ptrdiff_t>(width), place(b),
                                          place(b) + static_cast<std::ptrdiff_t>(width));
    });
    for (size_t first = 0, last; first < order.size(); first = last) {
      int sum = 0;
      for (last = first; last < order.size() && equal(order[first], order[last]); ++last) sum += signs_[order[last]];
      if (sum == 0) continue;
      Shape element(ndim);
      for (size_t i = 0; i < width; ++i) element[dims_[i]] = *(place(order[first]) + static_cast<std::ptrdiff_t>(i));
      return {element, sum};
    }
    return {};
  }

 private:
  std::vector<size_t> dims_;
  std::vector<int64_t> places_;  ///< dims_.size() of each corner
  std::vector<int> signs_;
};

}  // namespace

Box whole_box(const Shape& shape) { return {Shape(shape.size()), shape}; }
bool is_whole(const Box& box, const Shape& shape) { return box.shape == shape; }

std::string tiling_defect(const Shape& shape, const std::vector<const Box*>& boxes) {
  if (boxes.empty()) return "it has no pieces";
  for (size_t i = 0; i < boxes.size(); ++i)
    if (std::string defect = form_defect(shape, *boxes[i]); !defect.empty())
      return fmt::format("pieces[{}]: {}", i, defect);
  std::vector<size_t> cut = cut_dims(shape, boxes);
  if (cut.empty() && boxes.size() == 1) return "";
  if (cut.size() > kMostCutDims) return fmt::format("it is cut along {} dims, more than {}", cut.size(), kMostCutDims);
  Corners corners(std::move(cut));
  for (const Box* box : boxes) corners.add(*box, 1);
  corners.add(whole_box(shape), -1);
  const auto [element, remainder] = corners.first_remainder(shape.size());
  if (remainder == 0) return "";
  if (remainder < 0) return fmt::format("element {} is in no piece", to_string(element));
  return fmt::format("element {} is in {} pieces", to_string(element), 1 + remainder);
}

}  // namespace trainctl
