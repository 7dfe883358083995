// Cases of attention: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/naive_attention.h"

namespace trainctl {
namespace {

using namespace naive_attention;

Attrs of(int64_t head_dim, int64_t group = 1, bool causal = false, double scale = 0.5) {
  return {{"head_dim", head_dim}, {"group", group}, {"causal", causal}, {"scale", scale}};
}
Attrs side_by_side(Attrs attrs) {
  attrs.set("packing", std::string("qkv"));
  return attrs;
}

Attrs sinking(Attrs attrs) {
  attrs.set(kSinks, true);
  return attrs;
}
Attrs exchanging(Attrs attrs) {
  attrs.set(kExchangesKeys, true);
  return attrs;
}

/// A case whose one input x [b, t, ..] has queries, keys and values packed.
OpCase packed(int64_t b, int64_t t, int64_t kv_heads, int64_t d, int64_t group, bool causal, double scale = 0.5) {
  OpCase row{"attention", {{{b, t, kv_heads * (group + 2) * d}}}, of(d, group, causal, scale)};
  row.outputs = {{b, t, kv_heads * group * d}, {b, kv_heads, group, t}};
  row.tolerance = 5e-6;
  return row;
}

OpCase with_mask(OpCase row) {
  const Shape& keys = row.inputs.size() == 1 ? row.inputs[0].shape : row.inputs[1].shape;
  row.inputs.push_back(ids({keys[0], keys[1]}, 2));
  return row;
}

OpCase apart(int64_t b, int64_t t, int64_t s, int64_t kv_heads, int64_t group, int64_t d, bool causal,
             double scale = 0.5) {
  const Shape keys{b, s, kv_heads * d};
  OpCase row{"attention", {{{b, t, kv_heads * group * d}}, {keys}, {keys}}, of(d, 1, causal, scale)};
  row.attrs.erase("group");
  row.outputs = {{b, t, kv_heads * group * d}, {b, kv_heads, group, t}};
  row.tolerance = 5e-6;
  return row;
}

OpCase windowed(OpCase row, int64_t window, double softcap = 0) {
  if (window > 0) row.attrs.set("window", window);
  if (softcap > 0) row.attrs.set("softcap", softcap);
  return row;
}

/// Adds a documents input with random first rows. Some rows then see no key.
OpCase with_documents(OpCase row) {
  row.inputs.push_back(ids({row.inputs[0].shape[0], row.inputs[0].shape[1]}, 3));
  row.attrs.set("mask", std::string("documents"));
  return row;
}

/// Adds cases with windows shorter and longer than a tile of keys and of a single key, with sharded rows, with softcaps
/// that scores reach, and with documents.
void add_windows(std::vector<OpCase>& rows) {
  rows.push_back(windowed(packed(1, 17, 2, 4, 1, true), 1));
  rows.push_back(windowed(packed(2, 33, 1, 3, 2, true), 5));
  rows.push_back(windowed(packed(1, 70, 1, 2, 1, true), 40));
  rows.push_back(windowed(packed(1, 100, 1, 1, 1, true), 80));
  rows.push_back(windowed(apart(2, 12, 12, 4, 1, 2, true), 4));
  rows.push_back(windowed(apart(1, 12, 5, 2, 2, 3, true), 3));  // the last rows see no key
  rows.push_back(windowed(packed(2, 12, 2, 8, 2, true), 3));
  rows.push_back(windowed(apart(1, 12, 12, 2, 1, 8, true), 7));
  rows.push_back(windowed(with_mask(packed(6, 5, 2, 2, 1, true)), 2));
  for (const bool causal : {false, true}) {
    rows.push_back(windowed(packed(2, 9, 2, 4, 2, causal), 0, 0.7));
    rows.push_back(windowed(apart(2, 12, 7, 2, 2, 3, causal), 0, 2));
    rows.push_back(windowed(with_mask(apart(2, 12, 10, 2, 1, 2, causal)), 0, 1.5));
    rows.push_back(with_documents(packed(6, 7, 2, 2, 1, causal)));
    rows.push_back(with_documents(packed(2, 40, 1, 2, 1, causal)));
    rows.push_back(with_documents(apart(3, 12, 12, 2, 2, 2, causal)));
  }
  rows.push_back(windowed(packed(1, 70, 1, 1, 1, true), 50, 1.5));
  rows.push_back(windowed(with_documents(packed(2, 40, 1, 2, 2, true)), 6, 2));
}

OpCase with_sinks(OpCase row) {
  row.inputs.push_back({{row.outputs[1][1] * row.outputs[1][2]}});
  row.attrs.set(kSinks, true);
  return row;
}

OpCase with_attrs(OpCase row, const Attrs& more) {
  for (const auto& [name, value] : more) row.attrs.set(name, value);
  return row;
}
OpCase with_bias(OpCase row, const Shape& shape, const char* dims) {
  row.inputs.push_back({shape});
  row.attrs.set(kScoreBias, std::string(dims));
  return row;
}
OpCase dropping(OpCase row, double p, int64_t key, const Ints& batch = {}) {
  row.attrs.set(kScoreDropout, p);
  row.attrs.set(kScoreDropoutKey, key);
  if (!batch.empty()) row.attrs.set("batch", batch);
  return row;
}

/// Adds cases with terms of the scores, each with and without causal: biases of all shapes, with packed and separate q,
/// k and v, and combined with other terms and masks.
void add_terms_cases(std::vector<OpCase>& rows) {
  const Attrs alibi{{kAlibi, true}};
  for (const bool causal : {false, true}) {
    rows.push_back(with_attrs(packed(2, 9, 3, 2, 1, causal), alibi));
    rows.push_back(with_attrs(apart(2, 12, 12, 4, 1, 2, causal), alibi));
    rows.push_back(with_attrs(apart(2, 6, 6, 1, 6, 2, causal), alibi));  // query heads are cut
    rows.push_back(with_bias(packed(2, 9, 2, 2, 2, causal), {9, 9}, "rk"));
    rows.push_back(with_bias(apart(2, 12, 7, 2, 2, 3, causal), {4, 12, 7}, "hrk"));
    rows.push_back(with_bias(with_mask(apart(2, 6, 10, 2, 1, 2, causal)), {2, 6, 10}, "brk"));
    rows.push_back(with_bias(apart(2, 6, 6, 1, 4, 2, causal), {2, 4, 6, 6}, "bhrk"));
    rows.push_back(with_bias(apart(2, 4, 9, 2, 1, 2, causal), {2, 1, 1, 9}, "bhrk"));
    rows.push_back(dropping(packed(2, 9, 2, 2, 1, causal), 0.3, 11));
    rows.push_back(dropping(apart(2, 12, 7, 2, 2, 3, causal), 0.5, 12, {4, 0, 1}));
    rows.push_back(dropping(with_bias(apart(2, 6, 6, 2, 1, 2, causal), {2, 6, 6}, "hrk"), 0.4, 13));
  }
  rows.push_back(with_bias(packed(2, 70, 1, 1, 1, false), {1, 70, 70}, "hrk"));  // more than one block of rows
  rows.push_back(dropping(packed(1, 150, 1, 1, 1, true), 0.1, 14));              // more than one block of keys
  // One case with everything: documents, a window, a softcap and sinks.
  OpCase all = with_bias(windowed(with_documents(packed(2, 12, 2, 2, 2, true)), 6, 2), {4, 12, 12}, "hrk");
  all = dropping(with_sinks(with_attrs(all, alibi)), 0.2, 15);
  all.tolerance = 8e-6;  // in bf16 the gradients of peaked rows are small differences of rounded numbers
  rows.push_back(all);
  OpCase grouped = packed(2, 9, 2, 2, 3, true);
  grouped.attrs = side_by_side(grouped.attrs);
  rows.push_back(dropping(with_bias(with_attrs(grouped, alibi), {6, 9, 9}, "hrk"), 0.2, 16, {4, 0, 1}));
}

/// Adds cases with attention sinks: packed and separate q, k and v, some of them with masks, documents or windows.
void add_sinks_cases(std::vector<OpCase>& rows) {
  for (const bool causal : {false, true}) {
    rows.push_back(with_sinks(packed(2, 9, 2, 4, 2, causal)));
    rows.push_back(with_sinks(apart(2, 12, 7, 2, 2, 3, causal)));
    rows.push_back(with_sinks(with_mask(apart(2, 12, 10, 2, 1, 2, causal))));
    rows.push_back(with_sinks(with_mask(packed(6, 1, 2, 3, 2, causal))));  // some rows see no key
    rows.push_back(with_sinks(with_documents(packed(2, 40, 1, 2, 1, causal))));
    rows.push_back(with_sinks(packed(2, 12, 2, 8, 2, causal)));  // heads as the library takes them
  }
  rows.push_back(with_sinks(apart(2, 6, 6, 1, 4, 2, true)));  // query heads are cut
  rows.push_back(with_sinks(windowed(apart(1, 12, 12, 2, 1, 8, true), 4)));
  rows.push_back(with_sinks(windowed(packed(1, 70, 1, 1, 1, true), 50, 1.5)));
  OpCase grouped = packed(2, 9, 2, 2, 3, true);
  grouped.attrs = side_by_side(grouped.attrs);
  rows.push_back(with_sinks(grouped));
}

/// Wide heads need a smaller scale: softmax would round all but one weight of a row away in bf16.
OpCase scaled(OpCase row, double scale) {
  row.attrs.set("scale", scale);
  return row;
}

/// Gives the values of each head `features` features, a number that may differ from that of the keys.
OpCase with_values(OpCase row, int64_t features) {
  const int64_t kv_heads = row.inputs[1].shape[2] / row.attrs.integer("head_dim");
  row.inputs[2].shape[2] = kv_heads * features;
  row.outputs[0][2] = row.outputs[1][1] * row.outputs[1][2] * features;
  return row;
}

std::vector<OpCase> attention_rows() {
  std::vector<OpCase> attention_rows;
  add_windows(attention_rows);
  add_sinks_cases(attention_rows);
  add_terms_cases(attention_rows);
  for (const bool causal : {false, true}) {
    attention_rows.push_back(packed(1, 1, 1, 2, 1, causal));
    attention_rows.push_back(packed(4, 17, 3, 4, 1, causal));
    attention_rows.push_back(packed(2, 33, 1, 3, 3, causal));
    attention_rows.push_back(packed(1, 64, 2, 2, 1, causal));
    attention_rows.push_back(packed(1, 100, 1, 2, 1, causal));
    attention_rows.push_back(packed(1, 150, 1, 2, 1, causal));  // more than one block of keys
    attention_rows.push_back(packed(2, 6, 4, 5, 2, causal));
    attention_rows.push_back(packed(1, 33, 1, 3, 1, causal, 10.0));  // scores from -100 to 100
    attention_rows.push_back(packed(1, 5, 1, 40, 1, causal));
    attention_rows.push_back(apart(2, 12, 12, 4, 1, 2, causal));
    attention_rows.push_back(apart(2, 12, 7, 2, 2, 3, causal));
    attention_rows.push_back(apart(1, 4, 9, 2, 1, 2, causal));
    attention_rows.push_back(apart(2, 6, 6, 1, 4, 2, causal));  // query heads are cut
    attention_rows.push_back(packed(2, 12, 2, 8, 2, causal));   // heads as the library takes them
    attention_rows.push_back(apart(1, 12, 12, 2, 1, 8, causal));
    attention_rows.push_back(packed(1, 2, 1, 128, 2, causal, 0.09));  // on Hopper, in bf16: the gradient in one pass
    attention_rows.push_back(apart(1, 3, 4, 1, 1, 72, causal, 0.12));
    attention_rows.push_back(with_values(apart(2, 12, 12, 4, 1, 2, causal), 3));
    attention_rows.push_back(with_values(apart(2, 12, 7, 2, 2, 3, causal), 1));
    attention_rows.push_back(with_values(apart(2, 6, 6, 1, 4, 2, causal), 5));                 // query heads are cut
    attention_rows.push_back(scaled(with_values(apart(1, 5, 5, 1, 2, 24, causal), 16), 0.2));  // ratio of DeepSeek
    attention_rows.push_back(with_mask(with_values(apart(2, 12, 10, 2, 1, 2, causal), 4)));
    attention_rows.push_back(with_mask(packed(6, 5, 2, 2, 1, causal)));
    attention_rows.push_back(with_mask(packed(6, 1, 2, 3, 2, causal)));  // some rows see no key
    attention_rows.push_back(with_mask(apart(2, 12, 10, 2, 1, 2, causal)));
  }
  OpCase floats = packed(2, 7, 2, 3, 1, false);
  floats.inputs.push_back(fixed({2, 7}));
  attention_rows.push_back(floats);
  OpCase gpt = packed(2, 9, 3, 2, 1, true), grouped = packed(2, 9, 2, 2, 3, true);
  gpt.attrs = side_by_side(gpt.attrs);
  grouped.attrs = side_by_side(grouped.attrs);
  attention_rows.push_back(gpt);
  attention_rows.push_back(grouped);
  return attention_rows;
}

CaseOperand filled(Shape shape, double number, DType dtype = DType::f32) {
  return {std::move(shape), CaseOperand::Fill::number, dtype, false, number};
}

/// Kernels of ranks that share rows: rows that see no key of a part, the merge of two parts, and the order of rows.
void add_exchanges(std::vector<KernelCase>& calls) {
  const Shape q{2, 24, 12}, keys{2, 24, 6}, logs{2, 2, 2, 24};
  const std::vector<CaseOperand> inputs = {{q},
                                           {keys},
                                           {keys},
                                           {{2, 24}, CaseOperand::Fill::ids, DType::i32, false, 3}},
                                 outputs = {unwritten(q), unwritten(logs)};
  Attrs part{{"head_dim", int64_t{3}}, {"causal", true}, {"scale", 0.5}, {"mask", std::string("documents")}};
  part.set(kExchangesKeys, true), part.set(kPartOfKeys, true);
  calls.push_back({"attention", inputs, outputs, part, 1e-5});
  part.set("window", int64_t{5});
  calls.push_back({"attention", inputs, outputs, part, 1e-5});
  for (const int64_t ranks : {2, 3}) {
    calls.push_back({"reorder_rows", {{q}}, {unwritten(q)}, {{kRowOrder, ranks}}});
    calls.push_back({"reorder_rows", {{q}}, {unwritten(q)}, {{kRowOrder, ranks}, {"to_order", true}}});
  }
  const CaseOperand none = filled(logs, double{kNoKeys});
  for (const bool last : {false, true}) {
    const Attrs attrs = last ? Attrs{{"last", true}} : Attrs{};
    calls.push_back({"attention_merge", {{q}, {logs}, {q}, {logs}}, outputs, attrs, 1e-5});
    calls.push_back({"attention_merge", {{q}, {logs}, filled(q, 0), none}, outputs, attrs, 1e-5});
    calls.push_back({"attention_merge", {filled(q, 0), none, filled(q, 0), none}, outputs, attrs, 1e-5});
  }
}

/// The gradient of a bias, where no row sees a key, added to what is there.
void add_bias_grads(std::vector<KernelCase>& calls) {
  const Shape out{2, 20, 6}, logs{2, 2, 1, 20}, x{2, 20, 18};
  for (const bool adds : {false, true}) {
    CaseOperand dbias = adds ? CaseOperand{{2, 20, 20}} : unwritten({2, 20, 20});
    dbias.accumulate = adds;
    calls.push_back({"attention_score_bias_grad",
                     {{out}, {x}, filled({2, 20}, 0), {{2, 20, 20}}, filled(out, 0), filled(logs, 0)},
                     {dbias},
                     with_bias(packed(2, 20, 2, 3, 1, true), {2, 20, 20}, "hrk").attrs,
                     1e-6});
  }
}

/// Calls of kernels with given operands, such as rows with extreme scores.
std::vector<KernelCase> attention_kernels() {
  const Shape out{2, 70, 6}, logs{2, 2, 1, 70}, x{2, 70, 18};
  std::vector<KernelCase> calls;
  for (const double mask : {0.0, 1.0}) {
    // Scores of -9000 in every place: no exponential may vanish because of their size.
    calls.push_back({"attention",
                     {filled(out, 30), filled(out, -30), {out}, filled({2, 70}, mask)},
                     {unwritten(out), unwritten(logs)},
                     {{"head_dim", int64_t{3}}, {"causal", true}, {"scale", 10.0 / 3}},
                     1e-5});
  }
  calls.push_back({"attention", {{x}, filled({2, 70}, 0)}, {unwritten(out), unwritten(logs)}, of(3), 1e-6});
  calls.push_back({"attention_grad",
                   {{out}, {x}, filled({2, 70}, 0), filled(out, 0), filled(logs, 0)},
                   {unwritten(x)},
                   of(3),
                   1e-6});
  // An additive mask that hides all keys.
  calls.push_back({"attention",
                   {{x}, filled({70, 70}, -INFINITY)},
                   {unwritten(out), unwritten(logs)},
                   with_bias(packed(2, 70, 2, 3, 1, true), {70, 70}, "rk").attrs,
                   1e-6});
  add_bias_grads(calls);
  add_exchanges(calls);
  for (const int64_t ranks : {1, 3}) {
    calls.push_back({"attention_sinks_grad",
                     {{{2, 24, 12}}, {{2, 24, 12}}, {{2, 2, 2, 24}}, {{4}}},
                     {unwritten({4})},
                     {{kRowOrder, ranks}},
                     1e-5});
  }
  return calls;
}

}  // namespace

extern const OpCases attention_cases = {
    .rows = attention_rows(),
    .references = {{"attention", attention}},
    .rules =
        {{{"attention", {{{2, 3, 36}}}, of(2, 4)}, "bt(gn)->bt(gm),bgrt", "tnmr", {{2, 3, 24}, {2, 3, 4, 3}}},
         {{"attention", {{{2, 3, 36}}, {{2, 3}, DType::i32}}, of(2, 4)},
          "bt(gn),bt->bt(gm),bgrt",
          "tnmr",
          {{2, 3, 24}, {2, 3, 4, 3}}},
         {{"attention", {{{2, 3, 36}}}, side_by_side(of(2, 4))}, "btn->btm,bgrt", "tnmgr", {{2, 3, 24}, {2, 3, 4, 3}}},
         {{"attention", {{{2, 3, 12}}, {{2, 5, 4}}, {{2, 5, 4}}}, of(2)},
          "bt(grd),bs(gd),bs(gd)->bt(grd),bgrt",
          "sdr",
          {{2, 3, 12}, {2, 2, 3, 3}}},
         {{"attention", {{{2, 3, 12}}, {{2, 5, 2}}, {{2, 5, 2}}, {{2, 5}}}, of(2)},
          "bt(grd),bs(gd),bs(gd),bs->bt(grd),bgrt",
          "sd",
          {{2, 3, 12}, {2, 1, 6, 3}}},
         {{"attention", {{{2, 4, 12}}, {{2, 4, 4}}, {{2, 4, 4}}}, exchanging(of(2))},
          "bt(gn),bt(gd),bt(gd)->bt(gm),bgrt",
          "dmnr",
          {{2, 4, 12}, {2, 2, 3, 4}}},
         {{"attention", {{{2, 4, 4}}, {{2, 4, 4}}, {{2, 4, 4}}, {{2, 4}}}, exchanging(of(2))},
          "bt(gd),bt(gd),bt(gd),bt->bt(gm),bgrt",
          "dmr",
          {{2, 4, 4}, {2, 2, 1, 4}}},
         {{"attention", {{{2, 3, 12}}, {{2, 5, 4}}, {{2, 5, 6}}}, of(2)},
          "bt(grd),bs(gd),bs(ge)->bt(gre),bgrt",
          "sder",
          {{2, 3, 18}, {2, 2, 3, 3}}},
         {{"attention", {{{2, 3, 12}}, {{2, 5, 2}}, {{2, 5, 3}}, {{2, 5}}}, of(2)},
          "bt(grd),bs(gd),bs(ge),bs->bt(gre),bgrt",
          "sde",
          {{2, 3, 18}, {2, 1, 6, 3}}},
         {{"attention", {{{2, 3, 36}}, {{12}}}, sinking(of(2, 4))},
          "bt(gn),(gr)->bt(gm),bgrt",
          "tnmr",
          {{2, 3, 24}, {2, 3, 4, 3}}},
         {{"attention", {{{2, 3, 36}}, {{12}}}, sinking(side_by_side(of(2, 4)))},
          "btn,h->btm,bgrt",
          "tnmgrh",
          {{2, 3, 24}, {2, 3, 4, 3}}},
         {{"attention", {{{2, 3, 36}}, {{12, 3, 3}}}, with_bias(packed(2, 3, 3, 2, 4, true), {}, "hrk").attrs},
          "bt(gn),(gr)pk->bt(gm),bgrt",
          "tnmrpk",
          {{2, 3, 24}, {2, 3, 4, 3}}},
         {{"attention",
           {{{2, 3, 12}}, {{2, 5, 4}}, {{2, 5, 4}}, {{2, 1, 1, 5}}},
           with_bias(apart(2, 3, 5, 2, 3, 2, true), {}, "bhrk").attrs},
          "bt(grd),bs(gd),bs(gd),b()()k->bt(grd),bgrt",
          "sdrk",
          {{2, 3, 12}, {2, 2, 3, 3}}}},
    .gradients = {{{"attention", {{{2, 3, 18}}}, of(2)},
                   {"attention_grad bt(gm),bt(gn),bt(gm),bgrt->bt(gn) sums mr"},
                   "a rank has whole heads of whole samples, which do not depend on each other",
                   "mr"},
                  {{"attention", {{{2, 3, 4}}, {{2, 5, 4}}, {{2, 5, 4}}}, of(2)},
                   {"attention_grad bt(grd),bt(grd),bs(gd),bs(gd),bt(grd),bgrt->bt(grd),bs(gd),bs(gd) sums s sums tr "
                    "sums tr"},
                   "dk and dv sum over the rows of queries; a rank that has a kv head has all of its query heads",
                   "sr"},
                  {{"attention", {{{2, 3, 4}}, {{2, 5, 2}}, {{2, 5, 2}}}, of(2)},
                   {"attention_grad bt(grd),bt(grd),bs(gd),bs(gd),bt(grd),bgrt->bt(grd),bs(gd),bs(gd) sums s sums tr "
                    "sums tr"},
                   "dk and dv of one kv head sum over the rows of queries and over the query heads",
                   "s"},
                  {{"attention", {{{2, 3, 18}}, {{3}}}, sinking(of(2))},
                   {"attention_sinks_grad bt(gm),bt(gm),bgrt,(gr)->(gr) sums btm",
                    "attention_grad bt(gm),bt(gn),bt(gm),bgrt->bt(gn) sums rm"},
                   "the gradient of a sink sums over the rows of its head",
                   "mrt"},
                  {{"attention",
                    {{{2, 3, 4}}, {{2, 5, 4}}, {{2, 5, 4}}, {{2, 3, 5}}},
                    with_bias(apart(2, 3, 5, 2, 1, 2, false), {}, "hrk").attrs},
                   {"attention_score_bias_grad bt(grd),bt(grd),bs(gd),bs(gd),(gr)pk,bt(grd),bgrt->(gr)pk sums btds",
                    "attention_grad bt(grd),bt(grd),bs(gd),bs(gd),(gr)pk,bt(grd),bgrt->bt(grd),bs(gd),bs(gd) sums spk "
                    "sums trpk sums trpk"},
                   "the gradient of the bias sums over the samples; it is 0 in the rows of other ranks",
                   "sdrpk"}},
    .shape_errors =
        {{{"attention", {{{2, 3}}}, of(2)}, "attention expects [batch, rows, features], but got [2, 3]"},
         {{"attention", {{{2, 3, 8}}}, of(2)},
          "attention: the last dim of [2, 3, 8] is not a multiple of 6: 1 query heads, one key and one value head of "
          "2"},
         {{"attention", {{{2, 3, 8}}}, of(300)}, "attention: the heads have 300 features, expected 1 to 256"},
         {{"attention", {{{2, 3, 8}}, {{1, 3, 8}}, {{2, 3, 8}}}, of(2)},
          "attention: the keys are [1, 3, 8], expected [2, rows, heads x 2]"},
         {{"attention", {{{2, 3, 8}}, {{2, 3, 8}}, {{2, 4, 8}}}, of(2)},
          "attention: the values are [2, 4, 8], expected [2, 3, 4 heads x features]"},
         {{"attention", {{{2, 3, 8}}, {{2, 3, 8}}, {{2, 3, 6}}}, of(2)},
          "attention: the values are [2, 3, 6], expected [2, 3, 4 heads x features]"},
         {{"attention", {{{2, 3, 2}}, {{2, 3, 2}}, {{2, 3, 300}}}, of(2)},
          "attention: the heads of the values have 300 features, expected at most 256"},
         {{"attention", {{{2, 3, 8}}, {{2, 3, 6}}, {{2, 3, 6}}}, of(2)},
          "attention: the queries are [2, 3, 8], expected a multiple of the 6 features of the keys"},
         {{"attention", {{{2, 3, 6}}, {{2, 4}}}, of(2)}, "attention: the mask is [2, 4], expected [2, 3]"},
         {{"attention", {{{2, 3, 12}}, {{3}}}, sinking(of(2))}, "attention: the input of sinks is [3], expected [2]"},
         {{"attention", {{{2, 3, 6}}}, windowed(packed(2, 3, 1, 2, 1, false), 2).attrs},
          "attention: a window requires causal"},
         {{"attention", {{{2, 3, 6}}}, with_documents(packed(2, 3, 1, 2, 1, true)).attrs},
          "attention: mask: documents needs as many queries as keys, and a last input i32 [2, 3]"},
         {{"attention", {{{2, 3, 6}}, {{2, 4, 3}}}, with_bias(packed(2, 3, 1, 2, 1, true), {}, "brk").attrs},
          "attention: the bias of the scores is [2, 4, 3], expected [2, 3, 3], or 1 in place of any but the last"},
         {{"attention", {{{2, 3, 6}}}, dropping(packed(2, 3, 1, 2, 1, true), 1, 1).attrs},
          "attention: dropout is 1, expected 0 <= dropout < 1"}},
    .kernels = attention_kernels(),
    .kernel_references = {{"attention", attention_call},
                          {"attention_grad", unseen_grad},
                          {"attention_sinks_grad", sinks_grad},
                          {"attention_score_bias_grad", unseen_grad},
                          {"attention_merge", merged},
                          {"reorder_rows", reordered}},
    .layers = {{"attention", ", heads: 2", {8, 2, 2}, false, {2, 6}},
               {"attention", ", heads: 2, kv_heads: 1, causal: true, scale: 0.1", {8, 3, 2}, false, {3, 4}},
               {"attention", ", heads: 1, packing: qkv", {8, 4, 1}, false, {4, 3}},
               {"attention", ", heads: 1, causal: true, window: 2, softcap: 5", {8, 4, 1}, false, {4, 3}},
               {"attention", ", heads: 2, causal: true, sinks: true", {8, 2, 2}, false, {2, 6}},
               {"attention", ", heads: 2, alibi: true, dropout: 0.1", {8, 2, 2}, false, {2, 6}},
               {"attention", ", heads: 1, score_bias: trained, init: {type: normal}", {8, 4, 1}, false, {4, 3}},
               {"attention", ", heads: 2, score_bias: input, inputs: [shaped, shaped]", {8, 6, 2}, false, {6, 6}},
               {"attention", ", heads: 3, inputs: [shaped, shaped, shaped]", {8, 2, 6}, false, {2, 6}}},
};

}  // namespace trainctl
