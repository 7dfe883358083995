#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs rotary(const Inputs& in, const Attrs& attrs) {
  const int64_t d = attrs.integer("head_dim"), heads = attrs.integer("heads", 1), rotated = attrs.integer("rotated", 1);
  const bool interleaved = attrs.flag("interleaved");
  return {make(in[0].shape, [&](const Index& index) {
    const int64_t head = index[2] / d % heads, e = index[2] % d;
    const double x = at(in[0], index);
    if (head >= rotated) return x;
    const int64_t pair = interleaved ? e / 2 : e % (d / 2);
    const bool second = interleaved ? e % 2 == 1 : e >= d / 2;
    const int64_t apart = interleaved ? 1 : d / 2;
    const double angle = static_cast<double>(index[1]) *
                         std::pow(attrs.number("base"), -2.0 * static_cast<double>(pair) / static_cast<double>(d)) *
                         (attrs.flag("inverse") ? -1 : 1);
    const double other = at(in[0], {index[0], index[1], index[2] + (second ? -apart : apart)});
    return x * std::cos(angle) + (second ? other : -other) * std::sin(angle);
  })};
}

Attrs rotary_attrs(int64_t head_dim, bool interleaved = false, int64_t heads = 1, int64_t rotated = 1) {
  return {
      {"head_dim", head_dim}, {"heads", heads}, {"rotated", rotated}, {"base", 100.0}, {"interleaved", interleaved}};
}

std::vector<OpCase> rotary_rows() {
  std::vector<OpCase> rotary_rows;
  for (const bool interleaved : {false, true}) {
    rotary_rows.push_back({"rotary", {{{2, 12, 12}}}, rotary_attrs(2, interleaved), {{2, 12, 12}}});
    rotary_rows.push_back({"rotary", {{{1, 7, 30}}}, rotary_attrs(10, interleaved), {{1, 7, 30}}});
    rotary_rows.push_back({"rotary", {{{2, 1, 34}}}, rotary_attrs(34, interleaved), {{2, 1, 34}}});
    rotary_rows.push_back({"rotary", {{{3, 5, 32}}}, rotary_attrs(8, interleaved, 4, 3), {{3, 5, 32}}});
    rotary_rows.push_back({"rotary", {{{2, 4, 36}}}, rotary_attrs(6, interleaved, 3, 2), {{2, 4, 36}}});
    rotary_rows.push_back({"rotary", {{{1, 301, 16}}}, rotary_attrs(16, interleaved), {{1, 301, 16}}});
  }
  return rotary_rows;
}

}  // namespace

extern const OpCases rotary_cases = {
    .rows = rotary_rows(),
    .references = {{"rotary", rotary}},
    .rules = {{{"rotary", {{{2, 3, 12}}}, rotary_attrs(4)}, "bt(gd)->bt(gd)", "d", {{2, 3, 12}}},
              {{"rotary", {{{2, 3, 24}}}, rotary_attrs(4, false, 3, 2)}, "bt(gd)->bt(gd)", "d", {{2, 3, 24}}}},
    .gradients = {{{"rotary", {{{2, 3, 12}}}, rotary_attrs(4)},
                   {"rotary bt(gd)->bt(gd)"},
                   "element pairs of one head"}},
    .shape_errors = {{{"rotary", {{{2, 12}}}, rotary_attrs(4)},
                      "rotary expects [batch, rows, features], but got [2, "
                      "12]"},
                     {{"rotary", {{{2, 3, 9}}}, rotary_attrs(3)},
                      "rotary needs an even number of features per head, "
                      "not 3"},
                     {{"rotary", {{{2, 3, 258}}}, rotary_attrs(258)},
                      "rotary: the heads have 258 features, expected at most 256"},
                     {{"rotary", {{{2, 3, 8}}}, rotary_attrs(4, false, 3, 2)},
                      "rotary: the last dim of [2, 3, 8] is not a multiple of 3 heads of 4"}},
    .layers = {{"rotary", ", heads: 2", {8, 3, 4}, false, {3, 4}},
               {"rotary", ", heads: 2, kv_heads: 1, packing: heads, pairs: interleaved", {8, 1, 16}, false, {1, 16}},
               {"rotary", ", heads: 1, packing: qkv, base: 100", {8, 2, 6}, false, {2, 6}}},
};

}  // namespace trainctl
