// Cases of rotary: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// The linear function that is 0 at `from` and 1 at `to`, clamped to [0, 1].
double ramp(double x, double from, double to) { return std::min(std::max((x - from) / (to - from), 0.0), 1.0); }

/// The inverse frequency of a pair of d features, with the formulas of transformers' modeling_rope_utils.py.
double naive_frequency(const Attrs& attrs, int64_t pair, double d) {
  const double base = attrs.number("base"), factor = attrs.number("factor", 1);
  const double frequency = 1.0 / std::pow(base, 2.0 * static_cast<double>(pair) / d);
  const double length = static_cast<double>(attrs.integer("original_max_position_embeddings", 1));
  const std::string scaling = attrs.text("scaling", "none");
  if (scaling == "linear") return frequency / factor;
  if (scaling == "llama3") {
    const double wavelength = 2 * M_PI / frequency;
    const double low = attrs.number("low_freq_factor"), high = attrs.number("high_freq_factor");
    if (wavelength > length / low) return frequency / factor;
    if (wavelength < length / high) return frequency;
    const double smooth = (length / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
  }
  if (scaling == "yarn") {
    const auto correction = [&](double rotations) {
      return d * std::log(length / (rotations * 2 * M_PI)) / (2 * std::log(base));
    };
    double low = correction(attrs.number("beta_fast", 32)), high = correction(attrs.number("beta_slow", 1));
    if (attrs.flag("truncate", true)) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, d - 1);
    const double extrapolated = 1 - ramp(static_cast<double>(pair), low, high == low ? high + 0.001 : high);
    return frequency / factor * (1 - extrapolated) + frequency * extrapolated;
  }
  if (scaling == "longrope") return frequency / attrs.numbers("factors")[static_cast<size_t>(pair)];
  return frequency;
}

double naive_magnitude(const Attrs& attrs) {
  const std::string scaling = attrs.text("scaling", "none");
  if (attrs.has("attention_factor")) return attrs.number("attention_factor");
  const double log = std::log(attrs.number("factor", 1));
  if (scaling == "longrope")
    return std::sqrt(1 + log / std::log(static_cast<double>(attrs.integer("original_max_position_embeddings"))));
  if (scaling != "yarn") return 1;
  return (0.1 * attrs.number("mscale", 1) * log + 1) /
         (attrs.has("mscale") ? 0.1 * attrs.number("mscale_all_dim") * log + 1 : 1);
}

/// Rotates each pair of features by its angle in double precision; other features are copied.
Outputs rotary(const Inputs& in, const Attrs& attrs) {
  const int64_t d = attrs.integer("head_dim"), heads = attrs.integer("heads", 1), rotated = attrs.integer("rotated", 1);
  const int64_t turned = attrs.integer("rotary_dim", d), begin = attrs.integer("rotary_offset", 0);
  const bool interleaved = attrs.flag("interleaved");
  const double magnitude = naive_magnitude(attrs), direction = attrs.flag("inverse") ? -1 : 1;
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < turned / 2; ++pair)
    frequencies.push_back(naive_frequency(attrs, pair, static_cast<double>(turned)));
  return {make(in[0].shape, [&](const Index& index) {
    const int64_t head = index[2] / d % heads, e = index[2] % d - begin;
    const double x = at(in[0], index);
    if (head >= rotated || e < 0 || e >= turned) return x;
    const int64_t pair = interleaved ? e / 2 : e % (turned / 2);
    const bool second = interleaved ? e % 2 == 1 : e >= turned / 2;
    const int64_t apart = interleaved ? 1 : turned / 2;
    double row = static_cast<double>(index[1]);
    if (in.size() > 1) row -= std::min(row, in[1].values[index[0] * in[0].shape[1] + index[1]]);
    const double angle = direction * row * frequencies[static_cast<size_t>(pair)];
    const double other = at(in[0], {index[0], index[1], index[2] + (second ? -apart : apart)});
    return magnitude * (x * std::cos(angle) + (second ? other : -other) * std::sin(angle));
  })};
}

Attrs rotary_attrs(int64_t head_dim, bool interleaved = false, int64_t heads = 1, int64_t rotated = 1) {
  return {
      {"head_dim", head_dim}, {"heads", heads}, {"rotated", rotated}, {"base", 100.0}, {"interleaved", interleaved}};
}

Attrs with(Attrs attrs, const Attrs& more) {
  for (const auto& [name, value] : more) attrs.set(name, value);
  return attrs;
}

Attrs scaled(const char* scaling, const Attrs& more) {
  Attrs attrs{{"scaling", std::string(scaling)}, {"factor", 4.0}, {"original_max_position_embeddings", int64_t{64}}};
  return with(std::move(attrs), more);
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
    // Only some features of a head are rotated.
    for (const int64_t heads : {1, 3}) {
      const Attrs attrs =
          with(rotary_attrs(10, interleaved, heads, std::min<int64_t>(heads, 2)), {{"rotary_dim", int64_t{4}}});
      rotary_rows.push_back({"rotary", {{{2, 6, 60}}}, attrs, {{2, 6, 60}}});
      for (const int64_t offset : {3, 6})
        rotary_rows.push_back({"rotary", {{{2, 6, 60}}}, with(attrs, {{"rotary_offset", offset}}), {{2, 6, 60}}});
    }
    // The same cases at offsets where GPUs read and write packs of several features.
    for (const int64_t offset : {8, 16})
      rotary_rows.push_back(
          {"rotary",
           {{{2, 6, 96}}},
           with(rotary_attrs(32, interleaved, 3, 2), {{"rotary_dim", int64_t{16}}, {"rotary_offset", offset}}),
           {{2, 6, 96}}});
  }
  rotary_rows.push_back({"rotary", {{{2, 12, 12}}, ids({2, 12}, 9)}, rotary_attrs(4), {{2, 12, 12}}});
  rotary_rows.push_back({"rotary", {{{4, 6, 36}}, ids({4, 6}, 3)}, rotary_attrs(6, true, 3, 2), {{4, 6, 36}}});
  for (const Attrs& scaling :
       {scaled("linear", {}), scaled("llama3", {{"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}}),
        scaled("yarn", {}), scaled("yarn", {{"beta_fast", 8.0}, {"beta_slow", 2.0}, {"rotary_dim", int64_t{8}}}),
        scaled("yarn", {{"mscale", 0.7}, {"mscale_all_dim", 0.3}}), scaled("yarn", {{"attention_factor", 0.9}}),
        scaled("yarn", {{"truncate", false}}),
        scaled("longrope", {{"factors", std::vector<double>{1, 1.1, 1.3, 2, 2.5, 3, 7.5, 20}}}),
        scaled("longrope",
               {{"factors", std::vector<double>{3, 2}}, {"attention_factor", 1.2}, {"rotary_dim", int64_t{4}}})})
    rotary_rows.push_back({"rotary", {{{1, 24, 32}}}, with(rotary_attrs(16, false, 2, 1), scaling), {{1, 24, 32}}});
  return rotary_rows;
}

}  // namespace

extern const OpCases rotary_cases = {
    .rows = rotary_rows(),
    .references = {{"rotary", rotary}},
    .rules =
        {{{"rotary", {{{2, 3, 12}}}, rotary_attrs(4)}, "bt(gd)->bt(gd)", "d", {{2, 3, 12}}},
         {{"rotary", {{{2, 3, 12}}, {{2, 3}, DType::i32}}, rotary_attrs(4)}, "bt(gd),bt->bt(gd)", "d", {{2, 3, 12}}},
         {{"rotary", {{{2, 3, 24}}}, rotary_attrs(4, false, 3, 2)}, "bt(gd)->bt(gd)", "d", {{2, 3, 24}}}},
    .gradients = {{{"rotary", {{{2, 3, 12}}}, rotary_attrs(4)},
                   {"rotary bt(gd)->bt(gd)"},
                   "it turns pairs of elements, both of one head"}},
    .shape_errors = {{{"rotary", {{{2, 12}}}, rotary_attrs(4)},
                      "rotary expects [batch, rows, features], but got [2, "
                      "12]"},
                     {{"rotary", {{{2, 3, 9}}}, rotary_attrs(3)},
                      "rotary needs an even number of features per head, "
                      "not 3"},
                     {{"rotary", {{{2, 3, 258}}}, rotary_attrs(258)},
                      "rotary: the heads have 258 features, expected at most 256"},
                     {{"rotary", {{{2, 3, 8}}}, with(rotary_attrs(4), {{"rotary_dim", int64_t{6}}})},
                      "rotary: rotary_dim is 6, expected an even number of at most 4, the features per head"},
                     {{"rotary", {{{2, 3, 8}}}, rotary_attrs(4, false, 3, 2)},
                      "rotary: the last dim of [2, 3, 8] is not a multiple of 3 heads of 4"}},
    .layers = {{"rotary", ", heads: 2", {8, 3, 4}, false, {3, 4}},
               {"rotary", ", heads: 2, kv_heads: 1, packing: heads, pairs: interleaved", {8, 1, 16}, false, {1, 16}},
               {"rotary", ", heads: 1, packing: qkv, base: 100", {8, 2, 6}, false, {2, 6}},
               {"rotary", ", heads: 1, rotary_dim: 2, scaling: linear, factor: 2", {8, 3, 4}, false, {3, 4}}},
};

}  // namespace trainctl
