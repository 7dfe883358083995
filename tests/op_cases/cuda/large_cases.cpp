// Cases each of which reaches another path in the kernels: packs or single elements, a warp or a block per row, one or
// many blocks per sum, rows that fit into shared memory or do not.
#include "tests/op_cases/cuda/large_cases.h"

#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

Attrs dims(Ints summed) { return {{"dims", std::move(summed)}, {"scale", 0.5}}; }
Attrs perm(Ints order) { return {{"perm", std::move(order)}}; }
Attrs dim(int64_t d) { return {{"dim", d}}; }

void add_elementwise(std::vector<OpCase>& rows) {
  for (const char* op : {"relu", "gelu", "tanh"}) {
    rows.push_back({op, {{{257, 263}}}, {}, {{257, 263}}});
    rows.push_back({op, {{{96, 1024}}}, {}, {{96, 1024}}});
  }
  rows.push_back({"add", {{{64, 1024}}, {{1024}}}, {}, {{64, 1024}}});
  rows.push_back({"mul", {{{64, 3, 128}}, {{64, 1, 128}}}, {}, {{64, 3, 128}}});
  rows.push_back({"add", {{{33, 1, 65}}, {{47, 1}}}, {}, {{33, 47, 65}}});
  rows.push_back({"add_bias", {{{128, 513}}, {{513}}}, {}, {{128, 513}}});
  rows.push_back({"add_bias", {{{128, 512}}, {{512}}}, {}, {{128, 512}}});
  rows.push_back({"dropout", {{{129, 517}}}, {{"p", 0.4}, {"key", int64_t{7}}}, {{129, 517}}});
  rows.push_back({"dropout", {{{64, 1024}}}, {{"p", 0.1}, {"key", int64_t{8}}}, {{64, 1024}}});
  for (const Ints& batch : {Ints{4, 0, 1}, Ints{4, 1, 1}, Ints{4, 1, 16}})
    rows.push_back({"dropout", {{{64, 1024}}}, {{"p", 0.1}, {"key", int64_t{8}}, {"batch", batch}}, {{64, 1024}}});
}

void add_shapes(std::vector<OpCase>& rows) {
  rows.push_back({"reshape", {{{64, 1024}}}, {{"shape", Shape{1024, 64}}}, {{1024, 64}}});
  rows.push_back({"reshape", {{{101, 103}}}, {{"shape", Shape{10403}}}, {{10403}}});
  rows.push_back({"transpose", {{{131, 257}}}, perm({1, 0}), {{257, 131}}});
  rows.push_back({"transpose", {{{256, 320}}}, perm({1, 0}), {{320, 256}}});
  rows.push_back({"transpose", {{{3, 40, 6, 32}}}, perm({0, 2, 1, 3}), {{3, 6, 40, 32}}});
  rows.push_back({"transpose", {{{2, 65, 3, 66}}}, perm({0, 2, 3, 1}), {{2, 3, 66, 65}}});
  rows.push_back({"transpose", {{{5000, 3}}}, perm({1, 0}), {{3, 5000}}});
  rows.push_back({"transpose", {{{200, 136}}}, perm({1, 0}), {{136, 200}}});  // bf16: packs, partial tiles
  rows.push_back({"transpose", {{{3, 72, 256}}}, perm({0, 2, 1}), {{3, 256, 72}}});
  rows.push_back({"transpose", {{{2, 64, 3, 64}}}, perm({0, 2, 3, 1}), {{2, 3, 64, 64}}});
  rows.push_back({"reduce_sum", {{{70001}}}, dims({0}), {{1}}});
  rows.push_back({"reduce_sum", {{{600, 512}}}, dims({0}), {{512}}});
  rows.push_back({"reduce_sum", {{{40000, 3}}}, dims({0}), {{3}}});
  rows.push_back({"reduce_sum", {{{9001, 136}}}, dims({0}), {{136}}});  // the last share is not a whole round
  rows.push_back({"reduce_sum", {{{40000, 3}}}, dims({1}), {{40000}}});
  rows.push_back({"reduce_sum", {{{3, 40000}}}, dims({1}), {{3}}});
  rows.push_back({"reduce_sum", {{{257, 1023}}}, dims({1}), {{257}}});
  rows.push_back({"reduce_sum", {{{300, 2, 128}}}, dims({0, 2}), {{2}}});
  rows.push_back({"reduce_sum", {{{17, 300, 24}}}, dims({1}), {{17, 24}}});
}

void add_rows(std::vector<OpCase>& rows) {
  const Attrs eps{{"eps", 1e-5}};
  for (const Shape& x : {
           Shape{700, 64},
           Shape{33, 1024},
           Shape{3, 30000},  // rows of packs, in registers and in shared memory
           Shape{530, 1024},
           Shape{530, 2056},  // rows enough that a thread keeps all of its packs in registers
           Shape{700, 65},
           Shape{600, 131},
           Shape{700, 1023},
           Shape{1, 257},
           Shape{5, 4099},  // with edges
           Shape{4, 8193},
           Shape{3, 16385},
           Shape{2, 50257},   // in shared memory
           Shape{2, 120011},  // longer than shared memory
           Shape{300, 3072},
           Shape{2, 8192},
       }) {
    const int64_t n = x[1];
    rows.push_back({"layer_norm", {{x}, {{n}}, {{n}}}, eps, {x, {x[0]}, {x[0]}}});
    rows.push_back({"rms_norm", {{x}, {{n}}}, eps, {x, {x[0]}}});
    rows.push_back({"softmax", {{x}}, dim(1), {x}});
    rows.push_back({"softmax_cross_entropy", {{x}, ids({x[0]}, n)}, {{"scale", 0.01}}, {{1}}});
  }
  // There are more rows than groups of threads: the threads of a row synchronize while the next row is loading.
  rows.push_back({"softmax_cross_entropy", {{{30011, 70}}, ids({30011}, 70)}, {{"scale", 0.01}}, {{1}}});
  // There are more rows than blocks: one row is loaded into shared memory while the previous one is stored. Rows of f32
  // do not fit.
  rows.push_back({"softmax", {{{134, 114001}}}, dim(1), {{134, 114001}}});
  rows.push_back({"softmax_cross_entropy", {{{134, 114001}}, ids({134}, 114001)}, {{"scale", 0.01}}, {{1}}});
  rows.push_back(batch_norm_case({3000, 64}, true));
  rows.push_back(batch_norm_case({700, 37}, false));
  rows.push_back(batch_norm_case({33, 24, 15, 16}, true));
  rows.push_back(batch_norm_case({50, 7, 331}, true));
  rows.push_back(batch_norm_case({64, 16, 7, 7}, true));  // packs across two features
  rows.push_back(batch_norm_case({20, 33, 14, 14}, false));
  rows.push_back(batch_norm_case({50, 31, 3}, true));  // features shorter than a pack
  rows.push_back(batch_norm_case({4099, 9}, true));
  rows.push_back(batch_norm_case({20011, 72}, false));
  rows.push_back(batch_norm_case({3, 2, 20000}, true));
  rows.push_back(batch_norm_case({8, 15, 15, 64}, true, 3));  // channels last
  rows.push_back(batch_norm_case({5, 7, 9, 37}, true, 3));
  rows.push_back(batch_norm_case({40, 14, 6}, false, 2));
  const auto group_norm = [&](const Shape& x, int64_t groups) {
    const Shape of_group{x[0], groups};
    rows.push_back(
        {"group_norm", {{x}, {{x[1]}}, {{x[1]}}}, {{"eps", 1e-5}, {"groups", groups}}, {x, of_group, of_group}});
  };
  group_norm({3, 64, 28, 28}, 32);
  group_norm({2, 6, 131, 127}, 2);  // rows in shared memory, with edges
  group_norm({2, 4, 300, 100}, 1);
  group_norm({64, 96, 1}, 8);
  group_norm({33, 40, 7}, 5);  // channels shorter than a pack
  const auto reduce_max = [&](const Shape& x, Ints dims, const Shape& y) {
    rows.push_back({"reduce_max", {{x}}, {{"dims", std::move(dims)}}, {y}});
  };
  reduce_max({300, 1023}, {1}, {300});
  reduce_max({2011, 65}, {0}, {65});
  reduce_max({17, 129, 70}, {1}, {17, 70});
  reduce_max({33, 24, 15, 16}, {2, 3}, {33, 24});
  reduce_max({40011}, {0}, {1});
  rows.push_back(
      {"slice", {{{130, 9, 384}}}, {{"begin", Ints{0, 2, 128}}, {"size", Ints{130, 5, 256}}}, {{130, 5, 256}}});
  rows.push_back({"slice", {{{1000, 131}}}, {{"begin", Ints{0, 1}}, {"size", Ints{1000, 129}}}, {{1000, 129}}});
  rows.push_back({"pad",
                  {{{16, 5, 56, 56}}},
                  {{"before", Ints{0, 0, 1, 1}}, {"after", Ints{0, 0, 1, 1}}, {"value", -1.0}},
                  {{16, 5, 58, 58}}});
  rows.push_back({"one_hot", {ids({2011}, 1000)}, {{"classes", int64_t{1000}}}, {{2011, 1000}}});
  rows.push_back({"one_hot", {ids({777}, 37)}, {{"classes", int64_t{37}}}, {{777, 37}}});
  rows.push_back({"position_embedding", {{{9, 129, 72}}, {{200, 72}}}, {}, {{9, 129, 72}}});
  rows.push_back({"softmax", {{{3, 129, 70}}}, dim(1), {{3, 129, 70}}});
  rows.push_back({"mae", {{{513, 257}}, fixed({513, 257})}, {{"scale", 1e-4}}, {{1}}});
  rows.push_back({"mse", {{{512, 256}}, fixed({512, 256})}, {{"scale", 1e-4}}, {{1}}});
  rows.push_back({"embedding", {ids({4099}, 37), {{37, 65}}}, {}, {{4099, 65}}});
  rows.push_back({"embedding", {ids({64, 33}, 1000), {{1000, 128}}}, {}, {{64, 33, 128}}});
  rows.push_back({"embedding", {ids({2011}, 5000), {{5000, 9}}}, {}, {{2011, 9}}});
  rows.push_back({"embedding", {ids({40000}, 70000), {{70000, 8}}}, {}, {{40000, 8}}});  // ids are sorted first
  rows.push_back({"embedding", {ids({300}, 3), {{3, 2500}}}, {}, {{300, 2500}}});
  rows.push_back({"embedding", {ids({20000}, 3), {{1000, 24}}}, {}, {{20000, 24}}});  // rows of many pieces
  rows.push_back({"embedding", {ids({6000}, 60), {{300, 136}}}, {}, {{6000, 136}}});  // rows of one piece
  rows.push_back({"embedding", {ids({5000}, 7), {{9, 129}}}, {}, {{5000, 129}}});
  rows.push_back({"embedding", {ids({3000}, 1000), {{1000, 1100}}}, {}, {{3000, 1100}}});
  rows.push_back({"embedding", {ids({2048}, 256), {{256, 8}}}, {}, {{2048, 8}}});    // windows that end with the list
  rows.push_back({"embedding", {ids({4096}, 1), {{70000, 4}}}, {}, {{4096, 4}}});    // one id; a wide gap after it
  rows.push_back({"embedding", {ids({1100}, 255), {{255, 16}}}, {}, {{1100, 16}}});  // sorted in one pass
}

/// Adds heads of many sizes. In bf16, heads with a multiple of 8 features are computed by cuDNN or, on Hopper, by the
/// engine's own gradients; in f32 by the engine's own tiles.
void add_attention(std::vector<OpCase>& rows) {
  const auto attrs = [](int64_t d, int64_t group, bool causal, const char* packing = "heads") -> Attrs {
    return {{"head_dim", d},
            {"group", group},
            {"causal", causal},
            {"scale", 1.0 / std::sqrt(static_cast<double>(d))},
            {"packing", std::string(packing)}};
  };
  const auto add = [&](int64_t b, int64_t t, int64_t kv_heads, int64_t d, int64_t group, bool causal,
                       const char* packing = "heads") {
    rows.push_back({"attention",
                    {{{b, t, kv_heads * (group + 2) * d}}},
                    attrs(d, group, causal, packing),
                    {{b, t, kv_heads * group * d}, {b, kv_heads, group, t}}});
  };
  for (const bool causal : {false, true}) {
    for (const int64_t t : {1, 64, 192, 704, 1000, 1024}) add(1, t, 2, 64, 1, causal);
    add(2, 333, 2, 128, 1, causal);
    for (const int64_t t : {1, 64, 129, 1000}) add(1, t, 2, 128, 4, causal);
    add(2, 700, 2, 96, 3, causal);
    add(2, 300, 2, 80, 2, causal, "qkv");
    for (const int64_t t : {1, 130, 517}) add(2, t, 2, 256, 2, causal);
    add(1, 300, 2, 192, 1, causal, "qkv");
    const Attrs deepseek{{"head_dim", int64_t{192}}, {"causal", causal}, {"scale", 0.07}};
    rows.push_back(
        {"attention", {{{1, 517, 768}}, {{1, 517, 384}}, {{1, 517, 256}}}, deepseek, {{1, 517, 512}, {1, 2, 2, 517}}});
    add(3, 77, 2, 20, 1, causal);  // no multiple of 8
    add(2, 300, 2, 64, 3, causal);
    add(2, 300, 2, 64, 3, causal, "qkv");
    add(2, 300, 1, 32, 6, causal);
  }
  add(16, 200, 3, 64, 1, true);
  add(1, 4096, 1, 64, 1, true);
  for (const int64_t window : {1, 64, 100, 129, 700, 2000}) {  // the gradient in one pass takes windows too
    add(1, 1000, 2, 128, 4, true);
    rows.back().attrs.set("window", window);
  }
  for (const int64_t window : {100, 700}) {
    add(1, 1000, 2, 64, 2, true);
    rows.back().attrs.set("window", window);
  }
  for (const bool causal : {false, true}) add(1, 4100, 1, 64, 2, causal);
  add(2, 333, 2, 96, 3, true, "qkv");
  rows.back().attrs.set("window", int64_t{200});
  const Attrs apart{{"head_dim", int64_t{64}}, {"causal", false}, {"scale", 0.125}};
  const Attrs wide{{"head_dim", int64_t{128}}, {"causal", false}, {"scale", 0.09}};
  rows.push_back(
      {"attention", {{{2, 100, 256}}, {{2, 333, 128}}, {{2, 333, 128}}}, apart, {{2, 100, 256}, {2, 2, 2, 100}}});
  rows.push_back(
      {"attention", {{{2, 100, 512}}, {{2, 533, 256}}, {{2, 533, 256}}}, wide, {{2, 100, 512}, {2, 2, 2, 100}}});
  rows.push_back({"attention",
                  {{{2, 100, 256}}, {{2, 333, 128}}, {{2, 333, 128}}, ids({2, 333}, 3)},
                  apart,
                  {{2, 100, 256}, {2, 2, 2, 100}}});
  for (const bool interleaved : {false, true}) {
    const Attrs turn{{"head_dim", int64_t{64}},
                     {"heads", int64_t{3}},
                     {"rotated", int64_t{2}},
                     {"base", 10000.0},
                     {"interleaved", interleaved}};
    rows.push_back({"rotary", {{{2, 4096, 384}}}, turn, {{2, 4096, 384}}});
  }
}

/// Adds cases in which the rows of each expert fill several tiles, the last one in part. The experts have very
/// different numbers of rows, some of them none.
void add_experts(std::vector<OpCase>& rows) {
  const Attrs gated{
      {"experts", int64_t{3}}, {"function", std::string("swiglu")}, {"capacity", 3.0}, {"block", int64_t{17}}};
  rows.push_back({"experts",
                  {{{2, 190, 24}}, {{2, 190, 2}}, ids({2, 190, 2}, 3), {{3, 2, 136, 24}}, {{3, 24, 136}}},
                  gated,
                  {{2, 190, 24}, {2, 190, 3, 8, 68}},
                  5e-6});
  const Attrs plain{
      {"experts", int64_t{12}}, {"function", std::string("relu")}, {"capacity", 12.0}, {"block", int64_t{3}}};
  rows.push_back({"experts",
                  {{{300, 264}}, {{300, 1}}, ids({300, 1}, 2), {{12, 1, 24, 264}}, {{12, 264, 24}}},
                  plain,
                  {{300, 264}, {300, 12, 8, 3}},
                  5e-6});
}

}  // namespace

std::vector<OpCase> large_cases() {
  std::vector<OpCase> rows;
  add_experts(rows);
  add_attention(rows);
  add_elementwise(rows);
  add_shapes(rows);
  add_rows(rows);
  std::erase_if(rows, [](const OpCase& row) { return !is_wanted(row.op); });
  return rows;
}

}  // namespace trainctl
