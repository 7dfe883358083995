// Writes arrays like numpy: the fewest digits that distinguish the numbers, columns aligned at the decimal point.
#include "cli/text/tensor_text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "engine/graph/half.h"

namespace trainctl {
namespace {

constexpr int64_t kWhole = 1000;  ///< most elements that are printed in full
constexpr int64_t kEdge = 3;      ///< elements shown at each end of a shortened dim
constexpr int kDigits = 8;

double element(const void* data, int64_t index, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(data)[index];
    case DType::bf16:
      return from_bf16(static_cast<const uint16_t*>(data)[index]);
    case DType::f16:
      return from_f16(static_cast<const uint16_t*>(data)[index]);
    case DType::i32:
      return static_cast<const int32_t*>(data)[index];
  }
  return 0;
}

/// The shortest text that reads back as the same float, at most eight digits after the point.
std::string number(double value, DType dtype, bool scientific) {
  char text[64];
  if (dtype == DType::i32) {
    std::snprintf(text, sizeof text, "%.0f", value);
    return text;
  }
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  for (int digits = 0; digits <= kDigits; ++digits) {
    std::snprintf(text, sizeof text, scientific ? "%#.*e" : "%#.*f", digits, value);
    if (static_cast<float>(std::atof(text)) == static_cast<float>(value)) break;
  }
  return text;
}

class Printer {
 public:
  Printer(const void* data, const Shape& shape, DType dtype, int indent)
      : data_(data), shape_(shape), dtype_(dtype), indent_(indent), shorten_(num_elements(shape) > kWhole) {
    choose_columns();
  }

  std::string text() const {
    std::string out;
    write(0, 0, out);
    return out;
  }

 private:
  bool skipped(size_t dim, int64_t i) const {
    return shorten_ && shape_[dim] > 2 * kEdge && i >= kEdge && i < shape_[dim] - kEdge;
  }

  template <class F>
  void each_shown(size_t dim, int64_t first, const F& visit) const {
    if (dim == shape_.size()) return visit(element(data_, first, dtype_));
    for (int64_t i = 0; i < shape_[dim]; ++i) {
      if (!skipped(dim, i)) each_shown(dim + 1, first * shape_[dim] + i, visit);
    }
  }

  void choose_columns() {
    double largest = 0, smallest = HUGE_VAL;
    each_shown(0, 0, [&](double value) {
      const double size = std::abs(value);
      if (!std::isfinite(size) || size == 0) return;
      largest = std::max(largest, size);
      smallest = std::min(smallest, size);
    });
    scientific_ =
        dtype_ != DType::i32 && largest > 0 && (largest >= 1e8 || smallest < 1e-4 || largest / smallest > 1e3 * 1e5);
    each_shown(0, 0, [&](double value) {
      const std::string word = number(value, dtype_, scientific_);
      const size_t point = std::min(word.find('.'), word.size());
      before_ = std::max(before_, point);
      after_ = std::max(after_, word.size() - point);
    });
  }

  void write(size_t dim, int64_t first, std::string& out) const {
    if (dim == shape_.size()) {
      const std::string word = number(element(data_, first, dtype_), dtype_, scientific_);
      const size_t point = std::min(word.find('.'), word.size());
      out += std::string(before_ - point, ' ') + word + std::string(after_ - (word.size() - point), ' ');
      return;
    }
    out += '[';
    for (int64_t i = 0; i < shape_[dim]; ++i) {
      if (i > 0) separate(dim, out);
      if (skipped(dim, i)) {
        out += "...";
        i = shape_[dim] - kEdge - 1;
      } else {
        write(dim + 1, first * shape_[dim] + i, out);
      }
    }
    out += ']';
  }

  void separate(size_t dim, std::string& out) const {
    if (dim + 1 == shape_.size()) {
      out += ' ';
      return;
    }
    out += std::string(shape_.size() - dim - 1, '\n') + std::string(static_cast<size_t>(indent_) + dim + 1, ' ');
  }

  const void* data_;
  const Shape& shape_;
  DType dtype_;
  int indent_;
  bool shorten_;
  bool scientific_ = false;
  size_t before_ = 0, after_ = 0;
};

}  // namespace

std::string tensor_text(const void* data, const Shape& shape, DType dtype, int indent) {
  return Printer(data, shape, dtype, indent).text();
}

}  // namespace trainctl
