// Cases of cached_attention: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include <cmath>

#include "engine/ops/attention/score_terms.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// The queries, keys and values of the new rows by head, whatever the packing of the inputs. The inputs are the caches
/// of keys and of values, the first positions, and then x (packed), or q, k and v.
struct NewRows {
  const Inputs& in;
  int64_t t, s;  ///< new rows, positions of the caches
  int64_t g, r;  ///< kv heads, query heads per kv head
  int64_t d, e;  ///< features per head of queries and keys, and per head of values
  bool packed, side_by_side;

  NewRows(const Inputs& inputs, const Attrs& attrs) : in(inputs), d(attrs.integer("head_dim")) {
    packed = in.size() - (attrs.flag(kSinks) ? 1 : 0) == 4;
    side_by_side = attrs.text("packing", "heads") == "qkv";
    t = in[3].shape[1], s = in[0].shape[1];
    g = in[0].shape[2] / d;
    r = packed ? attrs.integer("group", 1) : in[3].shape[2] / in[4].shape[2];
    e = in[1].shape[2] / g;
  }

  double of(size_t input, int64_t b, int64_t row, int64_t feature) const {
    const Shape& shape = in[input].shape;
    return in[input].values[(b * shape[1] + row) * shape[2] + feature];
  }
  double q(int64_t b, int64_t i, int64_t head, int64_t f) const {
    return of(3, b, i, (packed && !side_by_side ? head / r * (r + 2) + head % r : head) * d + f);
  }
  /// which: 0 keys, 1 values. Rows of this call come from x, earlier ones from the caches.
  double key(size_t which, int64_t b, int64_t j, int64_t head, int64_t f) const {
    const auto start = static_cast<int64_t>(in[2].values[b]);
    const int64_t features = which == 0 ? d : e, i = j - start, w = static_cast<int64_t>(which);
    if (i < 0) return of(which, b, j, head * features + f);
    if (!packed) return of(4 + which, b, i, head * features + f);
    const int64_t block = side_by_side ? g * r + w * g + head : head * (r + 2) + r + w;
    return of(3, b, i, block * d + f);
  }
};

/// The output of the new rows, by the definition of attention.
Outputs cached_attention(const Inputs& in, const Attrs& attrs) {
  const NewRows n(in, attrs);
  const double scale = attrs.number("scale", 1.0), softcap = attrs.number("softcap", 0);
  const int64_t batch = in[0].shape[0], heads = n.g * n.r, window = attrs.integer("window", 0);
  Outputs out{zeros({batch, n.t, heads * n.e})};
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < n.t; ++i) {
        const int64_t position = static_cast<int64_t>(in[2].values[b]) + i;
        if (position >= n.s) continue;
        const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
        std::vector<double> p;
        const double sink = attrs.flag(kSinks) ? in.back().values[h] : -INFINITY;
        double top = sink, total = 0;
        for (int64_t j = first; j <= position; ++j) {
          double score = 0;
          for (int64_t f = 0; f < n.d; ++f) score += scale * n.q(b, i, h, f) * n.key(0, b, j, h / n.r, f);
          if (softcap > 0) score = softcap * std::tanh(score / softcap);
          if (attrs.flag(kAlibi)) score -= double{alibi_slope(h, heads)} * static_cast<double>(position - j);
          p.push_back(score);
          top = std::max(top, score);
        }
        for (double& each : p) total += each = std::exp(each - top);
        if (attrs.flag(kSinks)) total += std::exp(sink - top);
        for (int64_t f = 0; f < n.e; ++f)
          for (int64_t j = first; j <= position; ++j)
            out[0].values[((b * n.t + i) * heads + h) * n.e + f] +=
                p[static_cast<size_t>(j - first)] / total * n.key(1, b, j, h / n.r, f);
      }
    }
  }
  return out;
}

Attrs cached_attrs(int64_t head_dim, int64_t group = 1) {
  return {{"head_dim", head_dim}, {"group", group}, {"scale", 0.5}};
}

Attrs with_more(Attrs attrs, const Attrs& more) {
  for (const auto& [name, value] : more) attrs.set(name, value);
  return attrs;
}

/// A case with packed new rows x.
OpCase packed_rows(int64_t b, int64_t t, int64_t positions, int64_t kv_heads, int64_t group, int64_t d,
                   const Attrs& more = {}) {
  const CaseInput cache = fixed({b, positions, kv_heads * d});
  OpCase row{"cached_attention",
             {cache, cache, ids({b}, positions), fixed({b, t, kv_heads * (group + 2) * d})},
             with_more(cached_attrs(d, group), more)};
  row.outputs = {{b, t, kv_heads * group * d}};
  row.tolerance = 5e-6;
  return row;
}

/// The same with queries, keys and values as separate inputs.
OpCase apart_rows(int64_t b, int64_t t, int64_t positions, int64_t kv_heads, int64_t group, int64_t d, int64_t e,
                  const Attrs& more = {}) {
  OpCase row{"cached_attention",
             {fixed({b, positions, kv_heads * d}), fixed({b, positions, kv_heads * e}), ids({b}, positions),
              fixed({b, t, kv_heads * group * d}), fixed({b, t, kv_heads * d}), fixed({b, t, kv_heads * e})},
             with_more(cached_attrs(d), more)};
  row.attrs.erase("group");
  row.outputs = {{b, t, kv_heads * group * e}};
  row.tolerance = 5e-6;
  return row;
}

OpCase with_cached_sinks(OpCase row) {
  const int64_t kv_heads = row.inputs[0].shape[2] / row.attrs.integer("head_dim");
  const int64_t features = row.inputs[1].shape[2] / kv_heads;
  row.inputs.push_back(fixed({row.outputs[0][2] / features}));
  row.attrs.set(kSinks, true);
  return row;
}

TensorInfo starts(int64_t b) { return {{b}, DType::i32}; }

}  // namespace

extern const OpCases cached_attention_cases = {
    .rows = {packed_rows(2, 1, 12, 2, 1, 4), packed_rows(4, 3, 9, 2, 2, 4), packed_rows(1, 1, 300, 1, 4, 8),
             packed_rows(2, 5, 7, 1, 3, 20, {{"window", int64_t{3}}}),
             packed_rows(2, 2, 11, 2, 2, 6, {{"packing", std::string("qkv")}}),
             packed_rows(2, 1, 11, 2, 1, 34, {{"softcap", 1.5}}), apart_rows(2, 1, 13, 2, 2, 4, 4),
             apart_rows(3, 4, 10, 1, 4, 8, 8), apart_rows(2, 2, 530, 2, 1, 12, 6, {{"window", int64_t{300}}}),
             packed_rows(2, 3, 9, 3, 2, 4, {{kAlibi, true}}), apart_rows(2, 1, 300, 1, 4, 8, 8, {{kAlibi, true}}),
             with_cached_sinks(packed_rows(4, 3, 9, 2, 2, 4)), with_cached_sinks(packed_rows(1, 1, 300, 1, 4, 8)),
             with_cached_sinks(packed_rows(2, 2, 11, 2, 2, 6, {{"packing", std::string("qkv")}})),
             with_cached_sinks(apart_rows(2, 2, 530, 2, 1, 12, 6, {{"window", int64_t{300}}}))},
    .references = {{"cached_attention", cached_attention}},
    .rules = {{{"cached_attention", {{{2, 5, 8}}, {{2, 5, 8}}, starts(2), {{2, 1, 32}}}, cached_attrs(4, 2)},
               "bs(gd),bs(gd),b,bt(gn)->bt(gm)",
               "tnsdm",
               {{2, 1, 16}}},
              {{"cached_attention",
                {{{2, 5, 8}}, {{2, 5, 8}}, starts(2), {{2, 1, 16}}, {{2, 1, 8}}, {{2, 1, 8}}},
                cached_attrs(4)},
               "bs(gd),bs(gd),b,bt(grd),bt(gd),bt(gd)->bt(grd)",
               "tsdr",
               {{2, 1, 16}}},
              {{"cached_attention",
                {{{2, 5, 8}}, {{2, 5, 8}}, starts(2), {{2, 1, 32}}, {{4}}},
                with_more(cached_attrs(4, 2), {{kSinks, true}})},
               "bs(gd),bs(gd),b,bt(gn),(gr)->bt(gm)",
               "tnsdmr",
               {{2, 1, 16}}},
              {{"cached_attention",
                {{{2, 5, 4}}, {{2, 5, 6}}, starts(2), {{2, 1, 8}}, {{2, 1, 4}}, {{2, 1, 6}}},
                cached_attrs(4)},
               "bs(gd),bs(ge),b,bt(grd),bt(gd),bt(ge)->bt(gre)",
               "tsde",
               {{2, 1, 12}}}},
    .shape_errors = {{{"cached_attention", {{{2, 5, 8}}, {{2, 5, 8}}, starts(3), {{2, 1, 32}}}, cached_attrs(4, 2)},
                      "cached_attention: the input of first positions is [3] i32, expected [2]"},
                     {{"cached_attention", {{{2, 5, 8}}, {{2, 5, 4}}, starts(2), {{2, 1, 32}}}, cached_attrs(4, 2)},
                      "cached_attention: the cache of values is [2, 5, 4], expected [2, 5, 8]"},
                     {{"cached_attention", {{{2, 5, 8}}, {{2, 5, 8}}, starts(2), {{2, 1, 30}}}, cached_attrs(4, 2)},
                      "cached_attention: the last dim of [2, 1, 30] is not a multiple of 16"}},
};

}  // namespace trainctl
