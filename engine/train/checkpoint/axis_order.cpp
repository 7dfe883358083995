// From the text of an order to copies between our tensors and theirs, in three steps:
//
//   parse()   the text becomes lists of factors per dim, one list for ours and one for each of theirs; both sides must
//             have the same letters
//   solve()   each dim gives an equation, because the product of its factors is its size; an equation with one unknown
//             letter determines it, until the size of each letter is known
//   copies    each letter is an axis with a stride in ours and one in theirs: axes_of() for whole tensors (to_theirs),
//             block_of() for a box of ours, which a rank reads as boxes of theirs (blocks_of)
#include "engine/train/checkpoint/axis_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "engine/base/error.h"
#include "engine/runtime/stored_ranges.h"

namespace trainctl {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at; (at = text.find(separator)) != std::string_view::npos; text.remove_prefix(at + 1))
    parts.push_back(text.substr(0, at));
  parts.push_back(text);
  return parts;
}

/// Parses the inside of [ ]: the letter or 1 of each part.
std::vector<char> parse_terms(std::string_view text) {
  std::vector<char> terms;
  for (std::string_view term : split(text, '+')) {
    while (term.starts_with(' ')) term.remove_prefix(1);
    while (term.ends_with(' ')) term.remove_suffix(1);
    if (term.size() != 1 || !(is_letter(term[0]) || term[0] == '1'))
      throw OrderFault{fmt::format("'{}' in [ ] is neither a letter nor 1", term)};
    terms.push_back(term[0]);
  }
  return terms;
}

/// Solves for the one unknown letter of a product: returns value / (product of the known sizes). Throws OrderFault if
/// the division leaves a remainder.
int64_t quotient(int64_t value, int64_t product, const std::string& what) {
  if (product == 0 || value % product != 0)
    throw OrderFault{fmt::format("{} is {}, which is not a multiple of {}", what, value, product)};
  return value / product;
}

/// Copies dst[...] = src[...] along all axes, of which the last one is contiguous. Offsets are in elements.
template <class Element>
void copy_axes(const std::vector<int64_t>& sizes, const std::vector<int64_t>& from, const std::vector<int64_t>& to,
               const Element* source, Element* target) {
  const size_t n = sizes.size();
  if (n == 0) {
    *target = *source;
    return;
  }
  std::vector<int64_t> at(n, 0);
  const int64_t inner = sizes[n - 1], from_step = from[n - 1], to_step = to[n - 1];
  while (true) {
    for (int64_t i = 0; i < inner; ++i) target[i * to_step] = source[i * from_step];
    size_t d = n - 1;
    while (true) {
      if (d == 0) return;
      --d;
      source += from[d];
      target += to[d];
      if (++at[d] < sizes[d]) break;
      source -= from[d] * sizes[d];
      target -= to[d] * sizes[d];
      at[d] = 0;
    }
  }
}

void copy_bytes(const std::vector<int64_t>& sizes, const std::vector<int64_t>& from, const std::vector<int64_t>& to,
                const std::byte* source, std::byte* target, size_t width) {
  check(width == 2 || width == 4, "elements have 2 or 4 bytes");
  if (width == 4)
    copy_axes(sizes, from, to, reinterpret_cast<const uint32_t*>(source), reinterpret_cast<uint32_t*>(target));
  else
    copy_axes(sizes, from, to, reinterpret_cast<const uint16_t*>(source), reinterpret_cast<uint16_t*>(target));
}

}  // namespace

/// Parses one side of an order: letters, groups in ( ), 1, and on our side sums in [ ].
std::vector<AxisOrder::Dim> AxisOrder::parse_dims(std::string_view text, bool is_ours) {
  std::vector<Dim> dims;
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ' ') continue;
    if (c == '(' && !inside) {
      inside = true;
      dims.emplace_back();
    } else if (c == ')' && inside) {
      inside = false;
      if (dims.back().empty()) throw OrderFault{"() is an empty dim"};
    } else if (is_letter(c)) {
      if (!inside) dims.emplace_back();
      dims.back().push_back({c, {}});
    } else if (c == '1' && !inside) {
      dims.emplace_back();
    } else if (c == '[' && is_ours) {
      const size_t close = text.find(']', i);
      if (close == std::string_view::npos) throw OrderFault{"'[' is never closed"};
      if (!inside) dims.emplace_back();
      dims.back().push_back({0, parse_terms(text.substr(i + 1, close - i - 1))});
      i = close;
    } else {
      throw OrderFault{fmt::format("unexpected '{}'", std::string(1, c))};
    }
  }
  if (inside) throw OrderFault{"'(' is never closed"};
  return dims;
}

AxisOrder AxisOrder::parse(std::string_view text, size_t parts) {
  const std::vector<std::string_view> sides = split(text, '=');
  if (sides.size() != 2) throw OrderFault{"expected dims = dims, as in o i = i o"};
  AxisOrder order;
  order.ours_ = parse_dims(sides[0], true);
  for (const std::string_view dims : split(sides[1], ',')) order.theirs_.push_back(parse_dims(dims, false));
  if (order.theirs_.size() != parts)
    throw OrderFault{
        fmt::format("has the dims of {} tensors after '=', but {} are listed", order.theirs_.size(), parts)};
  order.check_letters();
  return order;
}

/// Checks that each of their tensors has the letters of ours, each once, and that [ ] has a part for each of theirs.
void AxisOrder::check_letters() const {
  const size_t parts = theirs_.size();
  std::set<char> shared;
  const Factor* joined = nullptr;
  for (const Dim& dim : ours_)
    for (const Factor& factor : dim) {
      if (factor.letter == 0) {
        if (joined != nullptr) throw OrderFault{"contains [ ] twice"};
        joined = &factor;
      } else if (!shared.insert(factor.letter).second) {
        throw OrderFault{fmt::format("contains '{}' twice", std::string(1, factor.letter))};
      }
    }
  if (joined == nullptr && parts != 1) throw OrderFault{"joins several tensors without [ ]"};
  if (joined != nullptr && joined->terms.size() != parts)
    throw OrderFault{fmt::format("has {} parts in [ ], but {} tensors are listed", joined->terms.size(), parts)};
  for (size_t part = 0; part < parts; ++part) {
    std::set<char> expected = shared, found;
    if (joined != nullptr && joined->terms[part] != '1' && !expected.insert(joined->terms[part]).second)
      throw OrderFault{fmt::format("contains '{}' twice", std::string(1, joined->terms[part]))};
    for (const Dim& dim : theirs_[part])
      for (const Factor& factor : dim)
        if (!found.insert(factor.letter).second)
          throw OrderFault{fmt::format("contains '{}' twice", std::string(1, factor.letter))};
    if (expected != found)
      throw OrderFault{fmt::format("tensor {} after '=' has the letters '{}', expected '{}'", part + 1,
                                   std::string(found.begin(), found.end()),
                                   std::string(expected.begin(), expected.end()))};
  }
}

AxisOrder AxisOrder::same(size_t ndim) {
  AxisOrder order;
  order.same_ = true;
  check(ndim <= 26, "a letter for each dim");
  for (size_t d = 0; d < ndim; ++d) order.ours_.push_back({{static_cast<char>('a' + d), {}}});
  order.theirs_ = {order.ours_};
  return order;
}

int64_t AxisOrder::size_of(const Factor& factor, const Sizes& sizes) const {
  if (factor.letter != 0) return sizes.at(factor.letter);
  int64_t sum = 0;
  for (const char term : factor.terms) sum += term == '1' ? 1 : sizes.at(term);
  return sum;
}

Shape AxisOrder::shape_of(const std::vector<Dim>& dims, const Sizes& sizes) const {
  Shape shape;
  for (const Dim& dim : dims) {
    int64_t size = 1;
    for (const Factor& factor : dim) size *= size_of(factor, sizes);
    shape.push_back(size);
  }
  return shape;
}

Shape AxisOrder::ours_shape(const Sizes& sizes) const { return shape_of(ours_, sizes); }
Shape AxisOrder::theirs_shape(const Sizes& sizes, size_t part) const { return shape_of(theirs_[part], sizes); }

/// The equations that shapes and known products give: the product of some factors has a value.
std::vector<AxisOrder::Equation> AxisOrder::equations_of(
    const std::vector<std::pair<const std::vector<Dim>*, Shape>>& shapes, const std::vector<Product>& known) {
  std::vector<Equation> equations;
  for (const auto& [letters, value] : known) {
    Dim factors;
    for (const char letter : letters)
      if (letter != ' ') factors.push_back({letter, {}});
    equations.push_back({std::move(factors), value, "sizes: '" + letters + "'"});
  }
  for (const auto& [dims, shape] : shapes) {
    if (dims->size() != shape.size())
      throw OrderFault{fmt::format("has {} dims, but the tensor is {}", dims->size(), to_string(shape))};
    for (size_t d = 0; d < shape.size(); ++d)
      equations.push_back({(*dims)[d], shape[d], fmt::format("dim {} of {}", d, to_string(shape))});
  }
  return equations;
}

bool AxisOrder::is_known(const Factor& factor, const Sizes& sizes) {
  if (factor.letter != 0) return sizes.contains(factor.letter);
  return std::all_of(factor.terms.begin(), factor.terms.end(),
                     [&](char term) { return term == '1' || sizes.contains(term); });
}

/// Checks that the sizes are complete and that they satisfy each equation.
void AxisOrder::check_sizes(const std::vector<Equation>& equations, const Sizes& sizes) const {
  for (const Equation& equation : equations) {
    int64_t product = 1;
    for (const Factor& factor : equation.factors) {
      if (!is_known(factor, sizes))
        throw OrderFault{
            fmt::format("{} cannot be derived from the shapes; add it to sizes",
                        factor.letter == 0 ? "the size of [ ]" : "'" + std::string(1, factor.letter) + "'")};
      product *= size_of(factor, sizes);
    }
    if (product != equation.value)
      throw OrderFault{
          fmt::format("{} is {}, but the product of its parts is {}", equation.what, equation.value, product)};
  }
}

/// The size of each letter: an equation with one unknown letter determines it, until none is left. Throws OrderFault.
AxisOrder::Sizes AxisOrder::solve(const std::vector<std::pair<const std::vector<Dim>*, Shape>>& shapes,
                                  const std::vector<Product>& known) const {
  const std::vector<Equation> equations = equations_of(shapes, known);
  Sizes sizes;
  for (bool found = true; found;) {
    found = false;
    for (const Equation& equation : equations) {
      int64_t product = 1;
      std::vector<const Factor*> unknown;
      for (const Factor& factor : equation.factors) {
        if (is_known(factor, sizes))
          product *= size_of(factor, sizes);
        else
          unknown.push_back(&factor);
      }
      if (unknown.size() != 1 || unknown[0]->letter == 0) continue;
      sizes[unknown[0]->letter] = quotient(equation.value, product, equation.what);
      found = true;
    }
  }
  check_sizes(equations, sizes);
  return sizes;
}

AxisOrder::Sizes AxisOrder::sizes_from_ours(const Shape& ours, const std::vector<Product>& known) const {
  return solve({{&ours_, ours}}, known);
}

std::pair<std::vector<AxisOrder::Axis>, int64_t> AxisOrder::axes_of(const Sizes& sizes, size_t part) const {
  std::map<char, int64_t> strides;  // in ours
  int64_t stride = 1, first = 0;
  for (size_t d = ours_.size(); d-- > 0;)
    for (size_t f = ours_[d].size(); f-- > 0;) {
      const Factor& factor = ours_[d][f];
      const char letter = factor.letter != 0 ? factor.letter : factor.terms[part];
      strides[letter] = stride;  // Axes of size 1 ('1') do not use a stride.
      for (size_t before = 0; factor.letter == 0 && before < part; ++before)
        first += stride * (factor.terms[before] == '1' ? 1 : sizes.at(factor.terms[before]));
      stride *= size_of(factor, sizes);
    }
  std::vector<Axis> axes;
  int64_t in_theirs = 1;
  for (size_t d = theirs_[part].size(); d-- > 0;)
    for (size_t f = theirs_[part][d].size(); f-- > 0;) {
      const char letter = theirs_[part][d][f].letter;
      axes.push_back({sizes.at(letter), strides.at(letter), in_theirs});
      in_theirs *= sizes.at(letter);
    }
  std::reverse(axes.begin(), axes.end());
  return {axes, first};
}

void AxisOrder::to_theirs(const Sizes& sizes, size_t part, const std::byte* ours, std::byte* theirs,
                          size_t width) const {
  const auto [axes, first] = axes_of(sizes, part);
  std::vector<int64_t> counts, from, to;
  for (const Axis& axis : axes) counts.push_back(axis.size), from.push_back(axis.ours), to.push_back(axis.theirs);
  copy_bytes(counts, from, to, ours + static_cast<size_t>(first) * width, theirs, width);
}

bool AxisOrder::Block::is_contiguous() const {
  int64_t step = 1;
  for (size_t d = strides.size(); d-- > 0;) {
    if (box.shape[d] != 1 && strides[d] != step) return false;
    step *= box.shape[d];
  }
  return true;
}

void AxisOrder::Block::place(const float* elements, float* ours) const {
  std::vector<int64_t> from(strides.size());
  int64_t step = 1;
  for (size_t d = strides.size(); d-- > 0;) {
    from[d] = step;
    step *= box.shape[d];
  }
  copy_axes(box.shape, from, strides, elements, ours + first);
}

Shape AxisOrder::factors_of(const Dim& dim, const Sizes& sizes) const {
  Shape shape;
  for (const Factor& factor : dim) shape.push_back(size_of(factor, sizes));
  return shape;
}

std::optional<AxisOrder::Block> AxisOrder::block_of(const Sizes& sizes, size_t part, const Box& ours,
                                                    const std::vector<Box>& factors) const {
  struct Range {
    int64_t first, count, stride;
  };
  std::map<char, Range> ranges;  // of the letters of theirs
  Block block{.part = part};
  int64_t row = 1;  // elements of one index of dim d, in the box of ours
  for (size_t d = ours_.size(); d-- > 0;) {
    int64_t stride = 1, first = 0;
    for (size_t f = ours_[d].size(); f-- > 0;) {
      const Factor& factor = ours_[d][f];
      int64_t begin = factors[d].offset[f], end = begin + factors[d].shape[f], before = 0;
      char letter = factor.letter;
      if (letter == 0) {
        const auto size_of_term = [&](char term) { return term == '1' ? int64_t{1} : sizes.at(term); };
        for (size_t p = 0; p < part; ++p) before += size_of_term(factor.terms[p]);
        letter = factor.terms[part];
        begin = std::max(begin, before);
        end = std::min(end, before + size_of_term(letter));
        if (begin >= end) return {};
      }
      ranges[letter] = {begin - before, end - begin, stride * row};
      first += begin * stride;
      stride *= size_of(factor, sizes);
    }
    block.first += (first - ours.offset[d]) * row;
    row *= ours.shape[d];
  }
  for (const Dim& dim : theirs_[part])
    for (const Factor& factor : dim) {
      const Range& range = ranges.at(factor.letter);
      block.shape.push_back(sizes.at(factor.letter));
      block.box.offset.push_back(range.first);
      block.box.shape.push_back(range.count);
      block.strides.push_back(range.stride);
    }
  return block;
}

std::vector<AxisOrder::Block> AxisOrder::blocks_of(const Sizes& sizes, const Box& ours) const {
  std::vector<std::vector<Box>> factors = {{}};  // each: one box per dim
  for (size_t d = 0; d < ours_.size(); ++d) {
    std::vector<std::vector<Box>> longer;
    for (const Box& box : boxes_of(factors_of(ours_[d], sizes), ours.offset[d], ours.shape[d]))
      for (const std::vector<Box>& before : factors) {
        longer.push_back(before);
        longer.back().push_back(box);
      }
    factors = std::move(longer);
  }
  std::vector<Block> blocks;
  for (const std::vector<Box>& each : factors)
    for (size_t part = 0; part < theirs_.size(); ++part)
      if (auto block = block_of(sizes, part, ours, each)) blocks.push_back(std::move(*block));
  return blocks;
}

}  // namespace trainctl
