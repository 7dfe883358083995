// Describes the order of our tensors' elements in the tensors of another tool: "ours = theirs", or several of theirs.
// Name maps of checkpoints (docs/weights.md) have such an order for each tensor. parse() reads it, sizes_from_ours()
// finds the size of each letter from the shape of our tensor, and then elements are copied: to_theirs() writes a tensor
// of theirs, and blocks_of() tells which boxes of theirs make up a rank's box of ours.
//
//   order  = dims "=" dims ("," dims)*
//   dims   = (letter | "1" | "(" factor+ ")")*       a dim; 1: a dim of size 1; in ( ) its factors, the slowest first
//   factor = letter | "[" term ("+" term)+ "]"       [ ]: parts of a dim of ours, one for each tensor of theirs
//   term   = letter | "1"
//
//   o i = i o                                        a transpose
//   (h p k) d = d (p h k)                            [heads*3*size, in] from [in, 3*heads*size]
//   p d = 1 p d                                      a dim of size 1 that ours lacks
//   (g [r+1+1] k) d = (g r k) d, (g k) d, (g k) d    for each of g: r rows of the first, then one of the
//                                                    second and one of the third
//
// Each tensor of theirs has the letters of ours, except that in place of [ ] it has its own term.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/graph/box.h"
#include "engine/graph/shape.h"

namespace trainctl {

/// An error in an order, or the reason why sizes do not fit it.
struct OrderFault {
  std::string message;
};

class AxisOrder {
 public:
  using Sizes = std::map<char, int64_t>;
  using Product = std::pair<std::string, int64_t>;  ///< letters, and the product of their sizes

  /// `parts` is the number of tensors of theirs. Throws OrderFault.
  static AxisOrder parse(std::string_view text, size_t parts);
  /// The order of a single tensor of theirs with `ndim` dims, whose elements are in the same places as in ours.
  static AxisOrder same(size_t ndim);

  bool is_same() const { return same_; }

  /// The size of each letter, from the shape of our tensor and the known products. Throws OrderFault if a size does not
  /// follow from these, or if they contradict each other.
  Sizes sizes_from_ours(const Shape& ours, const std::vector<Product>& known) const;

  Shape ours_shape(const Sizes& sizes) const;
  Shape theirs_shape(const Sizes& sizes, size_t part) const;

  /// Copies one of their tensors out of our whole tensor. Elements have `width` bytes.
  void to_theirs(const Sizes& sizes, size_t part, const std::byte* ours, std::byte* theirs, size_t width) const;

  /// The elements of one of their tensors that belong in a box of our tensor.
  struct Block {
    size_t part = 0;
    Shape shape;                   ///< one of theirs, with one dim per letter
    Box box;                       ///< in that shape
    int64_t first = 0;             ///< its first element, in the box of ours
    std::vector<int64_t> strides;  ///< stride of each dim, in the box of ours

    /// Returns whether the elements are contiguous and in the same order in the box of ours.
    bool is_contiguous() const;
    /// Copies the contiguous elements of `box` to their places in the box of ours.
    void place(const float* elements, float* ours) const;
  };
  /// The blocks that together make up a box of our tensor.
  std::vector<Block> blocks_of(const Sizes& sizes, const Box& ours) const;

 private:
  struct Factor {
    char letter = 0;          ///< 0: the parts
    std::vector<char> terms;  ///< terms of the parts: a letter, or '1'
  };
  using Dim = std::vector<Factor>;
  struct Axis {
    int64_t size, ours, theirs;  ///< strides in elements
  };

  struct Equation {
    Dim factors;
    int64_t value;  ///< value of their product
    std::string what;
  };

  static std::vector<Dim> parse_dims(std::string_view text, bool is_ours);
  void check_letters() const;
  static std::vector<Equation> equations_of(const std::vector<std::pair<const std::vector<Dim>*, Shape>>& shapes,
                                            const std::vector<Product>& known);
  static bool is_known(const Factor& factor, const Sizes& sizes);
  void check_sizes(const std::vector<Equation>& equations, const Sizes& sizes) const;
  int64_t size_of(const Factor& factor, const Sizes& sizes) const;
  Shape shape_of(const std::vector<Dim>& dims, const Sizes& sizes) const;
  Shape factors_of(const Dim& dim, const Sizes& sizes) const;
  /// Empty if the part has none of the elements in the box. `factors` has, for each dim of ours, a box over the factors
  /// of that dim.
  std::optional<Block> block_of(const Sizes& sizes, size_t part, const Box& ours,
                                const std::vector<Box>& factors) const;
  Sizes solve(const std::vector<std::pair<const std::vector<Dim>*, Shape>>& shapes,
              const std::vector<Product>& known) const;
  /// The axes of one of their tensors, slowest first in their order, and the offset in our tensor at which it begins.
  std::pair<std::vector<Axis>, int64_t> axes_of(const Sizes& sizes, size_t part) const;

  std::vector<Dim> ours_;
  std::vector<std::vector<Dim>> theirs_;
  bool same_ = false;
};

}  // namespace trainctl
