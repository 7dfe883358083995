// Cases of matmul: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "engine/graph/e4m3.h"
#include "engine/graph/e5m2.h"
#include "engine/ops/quantise/quantised.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// Element a[.., r, c] of a matrix, or a[.., c, r] if the matrix is transposed.
double matrix_at(const Tensor64& t, const Index& leading, int64_t r, int64_t c, bool transposed) {
  Index index(leading.begin(), leading.begin() + static_cast<int64_t>(t.shape.size()) - 2);
  index.push_back(transposed ? c : r);
  index.push_back(transposed ? r : c);
  return at(t, index);
}

/// The product of each pair of matrices, with the transposes of the attrs.
Outputs matmul(const Inputs& in, const Attrs& attrs) {
  const bool ta = attrs.flag("transpose_a"), tb = attrs.flag("transpose_b");
  const Shape &a = in[0].shape, &b = in[1].shape;
  Shape shape(a.begin(), a.end() - 2);
  shape.push_back(ta ? a[a.size() - 1] : a[a.size() - 2]);
  shape.push_back(tb ? b[b.size() - 2] : b[b.size() - 1]);
  const int64_t k = ta ? a[a.size() - 2] : a[a.size() - 1];
  const Tensor64 sums = make(shape, [&](const Index& i) {
    const int64_t m = i[i.size() - 2], n = i.back();
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += matrix_at(in[0], i, m, j, ta) * matrix_at(in[1], i, j, n, tb);
    return sum;
  });
  return with_epilogue(sums, in, attrs);
}

/// (x [m, k], dy [m, n]) -> dw, and with bias_grad also db. With descend the results are gradient steps.
Outputs matmul_weight_grad(const NaiveCall& call) {
  const Tensor64 &x = call.in[0], &dy = call.in[1];
  const Epilogue epilogue = epilogue_of(call.attrs);
  const int64_t matmul_rows = x.shape[0], k = x.shape[1], n = dy.shape[1];
  const double factor = epilogue.descend ? -double{call.scalars.learning_rate} : 1.0;
  const bool kn = call.attrs.flag("kn");
  Outputs out = {make(kn ? Shape{k, n} : Shape{n, k}, [&](const Index& i) {
    double sum = 0;
    for (int64_t r = 0; r < matmul_rows; ++r) sum += at(x, {r, i[kn ? 0 : 1]}) * at(dy, {r, i[kn ? 1 : 0]});
    return factor * sum;
  })};
  if (!epilogue.bias_grad) return out;
  out.push_back(make({n}, [&](const Index& i) {
    double sum = 0;
    for (int64_t r = 0; r < matmul_rows; ++r) sum += at(dy, {r, i[0]});
    return factor * sum;
  }));
  return out;
}

/// (dy [.., n], w [n, r], x [.., r]) -> factor dy w, dy^T x
Outputs skinny_grads(const NaiveCall& call) {
  const Tensor64 &dy = call.in[0], &w = call.in[1], &x = call.in[2];
  const size_t n = static_cast<size_t>(w.shape[0]), r = static_cast<size_t>(w.shape[1]), rows = x.values.size() / r;
  const double factor = call.attrs.number("factor", 1.0);
  Outputs out = {Tensor64{x.shape, std::vector<double>(rows * r)}, Tensor64{w.shape, std::vector<double>(n * r)}};
  for (size_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < n; ++i) {
      const double slope = dy.values[row * n + i];
      for (size_t j = 0; j < r; ++j) {
        out[0].values[row * r + j] += factor * slope * w.values[i * r + j];
        out[1].values[i * r + j] += slope * x.values[row * r + j];
      }
    }
  }
  return out;
}

/// (x [.., n], a [r, n], ..) -> factor x a^T, ..
Outputs skinny_products(const NaiveCall& call) {
  Outputs out = call.before;
  const size_t n = static_cast<size_t>(call.in[0].shape.back());
  for (size_t k = 0; k < out.size(); ++k) {
    const size_t r = static_cast<size_t>(out[k].shape.back());
    for (size_t i = 0; i < out[k].values.size(); ++i) {
      double sum = 0;
      for (size_t j = 0; j < n; ++j) sum += call.in[0].values[i / r * n + j] * call.in[k + 1].values[i % r * n + j];
      out[k].values[i] = call.attrs.number("factor", 1.0) * sum;
    }
  }
  return out;
}

/// (x [.., n], dp [.., r], ..) -> dp^T x, ..
Outputs skinny_weight_grads(const NaiveCall& call) {
  Outputs out = call.before;
  const size_t n = static_cast<size_t>(call.in[0].shape.back()), rows = call.in[0].values.size() / n;
  for (size_t k = 0; k < out.size(); ++k) {
    const size_t r = static_cast<size_t>(out[k].shape[0]);
    for (size_t i = 0; i < out[k].values.size(); ++i) {
      double sum = 0;
      for (size_t row = 0; row < rows; ++row)
        sum += call.in[k + 1].values[row * r + i / n] * call.in[0].values[row * n + i % n];
      out[k].values[i] = sum;
    }
  }
  return out;
}

/// The numbers of factor `name` (a or b) of 8 bits, times their scales: [lines, k].
Tensor64 scaled(const NaiveCall& call, const std::string& name) {
  const size_t first = name == "a" ? 0 : 2;
  const Tensor64 &words = call.in[first], &scales = call.in[first + 1];
  const bool e5m2 = call.attrs.flag(name + "_e5m2"), tensor = call.attrs.flag("tensor");
  const bool squares = call.attrs.flag(name + "_squares");
  return make({words.shape[0], 4 * words.shape[1]}, [&](const Index& i) {
    const int64_t line = i[0], part = i[1] / kScaledTogether;
    const auto bits = static_cast<uint8_t>(static_cast<uint64_t>(at(words, {line, i[1] / 4})) >> 8 * (i[1] % 4));
    const double number = double{e5m2 ? from_e5m2(bits) : from_e4m3(bits)};
    if (tensor) return number * scales.values[0];
    return number * (squares ? at(scales, {line / kScaledTogether, part}) : at(scales, {part, line}));
  });
}

Outputs product_of_8_bits(const NaiveCall& call) {
  const Inputs& in = call.in;
  const Epilogue epilogue = epilogue_of(call.attrs);
  const Tensor64 a = scaled(call, "a"), b = scaled(call, "b");
  const int64_t k = a.shape[1];
  return {make({a.shape[0], b.shape[0]}, [&](const Index& at_c) {
    double sum = epilogue.bias ? at(in[4], {at_c[1]}) : 0;
    if (epilogue.residual) sum += at(in.back(), at_c);
    for (int64_t i = 0; i < k; ++i)
      sum += a.values[static_cast<size_t>(at_c[0] * k + i)] * b.values[static_cast<size_t>(at_c[1] * k + i)];
    return sum;
  })};
}

Attrs transposes(bool a, bool b) { return {{"transpose_a", a}, {"transpose_b", b}}; }

OpCase product(Shape a, Shape b, Attrs attrs, Shape out) {
  return {"matmul", {{std::move(a)}, {std::move(b)}}, std::move(attrs), {std::move(out)}};
}

std::vector<OpCase> matmul_rows() {
  std::vector<OpCase> matmul_rows = {
      product({1, 1}, {1, 1}, {}, {1, 1}),
      product({4, 6}, {6, 12}, {}, {4, 12}),
      product({7, 5}, {3, 5}, transposes(false, true), {7, 3}),
      product({12, 18}, {6, 18}, transposes(false, true), {12, 6}),
      product({5, 7}, {5, 11}, transposes(true, false), {7, 11}),
      product({12, 4}, {6, 12}, transposes(true, true), {4, 6}),
      product({4, 3, 5}, {5, 6}, {}, {4, 3, 6}),
      product({2, 3, 4}, {6, 4}, transposes(false, true), {2, 3, 6}),
      product({6, 2, 5}, {6, 5, 4}, {}, {6, 2, 4}),
      product({2, 3, 4, 5}, {2, 3, 6, 5}, transposes(false, true), {2, 3, 4, 6}),
      product({4, 5, 3}, {4, 5, 2}, transposes(true, false), {4, 3, 2}),
      product({2, 5, 3}, {2, 7, 5}, transposes(true, true), {2, 3, 7}),
      product({4, 64}, {1, 64}, transposes(false, true), {4, 1}),
      product({1, 37}, {13, 37}, transposes(false, true), {1, 13}),
      product({17, 1}, {1, 19}, {}, {17, 19}),
      product({1, 264}, {19, 264}, transposes(false, true), {1, 19}),
      product({3, 1, 72}, {33, 72}, transposes(false, true), {3, 1, 33}),
  };
  const auto fused = [&](std::vector<CaseInput> inputs, bool transpose_b, const Epilogue& epilogue,
                         std::vector<Shape> out) {
    matmul_rows.push_back(
        fused_case("matmul", std::move(inputs), {{"transpose_b", transpose_b}}, epilogue, std::move(out)));
  };
  fused({{{5, 7}}, {{11, 7}}, {{11}}}, true, {.bias = true}, {{5, 11}});
  fused({{{2, 6, 7}}, {{7, 4}}, {{4}}}, false, {.bias = true, .activation = Activation::relu}, {{2, 6, 4}});
  for (const Activation gelu : {Activation::gelu, Activation::gelu_tanh}) {
    fused({{{5, 7}}, {{11, 7}}, {{11}}}, true, {.bias = true, .activation = gelu}, {{5, 11}});
    const Epilogue kept{.bias = true, .activation = gelu, .keep_input = true};
    fused({{{6, 17}}, {{24, 17}}, {{24}}}, true, kept, {{6, 24}, {6, 24}});
    fused({{{2, 3, 5}}, {{3, 5}}, {{3}}}, true, kept, {{2, 3, 3}, {2, 3, 3}});
    fused({{{5, 7}}, {{11, 7}}, {{5, 11}}}, true, {.slope = gelu}, {{5, 11}});
    fused({{{6, 16}}, {{24, 16}}, {{6, 24}}}, true, {.slope = gelu}, {{6, 24}});
  }
  fused({{{5, 7}}, {{11, 7}}, {{5, 11}}}, true, {.residual = true}, {{5, 11}});
  fused({{{2, 6, 7}}, {{7, 4}}, {{4}}, {{2, 6, 4}}}, false, {.bias = true, .residual = true}, {{2, 6, 4}});
  fused({{{6, 2, 5}}, {{6, 5, 4}}, {{6, 2, 4}}}, false, {.residual = true}, {{6, 2, 4}});
  fused({{{34, 131}}, {{68, 131}}, {{68}}, {{34, 68}}}, true,
        {.bias = true, .residual = true, .activation = Activation::relu}, {{34, 68}});
  fused({{{6, 17}}, {{24, 17}}, {{24}}, {{6, 24}}}, true,
        {.bias = true, .residual = true, .activation = Activation::gelu_tanh, .keep_input = true}, {{6, 24}, {6, 24}});
  fused({{{5, 7}}, {{7, 11}}, {{5, 11}}}, false, {.slope = Activation::relu}, {{5, 11}});
  fused({{{6, 1}}, {{1, 12}}, {{6, 12}}}, false, {.slope = Activation::relu}, {{6, 12}});
  fused({{{34, 132}}, {{132, 68}}, {{34, 68}}}, false, {.slope = Activation::relu}, {{34, 68}});
  // Sums long enough that several blocks of a GPU share them.
  fused({{{67, 131}}, {{37, 131}}, {{37}}}, true, {.bias = true, .activation = Activation::relu}, {{67, 37}});
  return matmul_rows;
}

/// A product [m, k] x [n, k] of 8-bit factors with random words and scales.
KernelCase case_of_8_bits(int64_t m, int64_t n, int64_t k, DType result, const Epilogue& epilogue, bool accumulate,
                          Attrs attrs) {
  KernelCase row{.kernel = "matmul_fp8", .attrs = std::move(attrs), .tolerance = result == DType::bf16 ? 1e-2 : 3e-3};
  const auto add = [&](int64_t lines, const std::string& name) {
    const bool squares = row.attrs.flag(name + "_squares"), e5m2 = row.attrs.flag(name + "_e5m2");
    const QuantisedShapes shapes = quantised_shapes(lines, k, squares, row.attrs.flag("tensor"));
    const CaseOperand::Fill fill = e5m2 ? CaseOperand::Fill::e5m2 : CaseOperand::Fill::e4m3;
    row.in.push_back({.shape = shapes.words, .fill = fill, .dtype = DType::i32});
    row.in.push_back({.shape = shapes.scales, .fill = CaseOperand::Fill::positive});
  };
  add(m, "a");
  add(n, "b");
  if (epilogue.bias) row.in.push_back({.shape = {n}, .dtype = result});
  if (epilogue.residual) row.in.push_back({.shape = {m, n}, .dtype = result});
  row.out = {{.shape = {m, n}, .dtype = result, .accumulate = accumulate}};
  if (!accumulate) row.out[0].fill = CaseOperand::Fill::unwritten;
  set_epilogue(row.attrs, epilogue);
  row.f32_on_cpu = result == DType::bf16;
  return row;
}

/// Adds cases of skinny_grads: sizes around the 16 rows and 512 (or 256) columns that a block of the GPU kernel takes,
/// and sizes for which the GPU uses separate products.
void add_skinny_grads(std::vector<KernelCase>& calls) {
  struct Skinny {
    Shape rows;
    int64_t n, r;
  };
  for (const Skinny& s : {Skinny{{16}, 64, 16}, Skinny{{3, 25}, 520, 16}, Skinny{{40}, 1032, 8}, Skinny{{70}, 96, 32},
                          Skinny{{33}, 264, 64}, Skinny{{5}, 37, 4}}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      Shape dy = s.rows, x = s.rows;
      dy.push_back(s.n);
      x.push_back(s.r);
      for (const bool accumulate : {false, true}) {
        const double tolerance = type == DType::bf16 ? 3e-2 : 3e-5;
        calls.push_back(
            {"skinny_grads",
             {{.shape = dy, .dtype = type}, {.shape = {s.n, s.r}, .dtype = type}, {.shape = x, .dtype = type}},
             {unwritten(x, type), {.shape = {s.n, s.r}, .accumulate = accumulate}},
             accumulate ? Attrs{{"factor", 2.0}} : Attrs{},
             tolerance});
        calls.back().f32_on_cpu = type == DType::bf16;
        const CaseOperand large{.shape = dy, .dtype = type}, a{.shape = {s.r, s.n}, .dtype = type};
        const CaseOperand small{.shape = x, .dtype = type}, product = unwritten(x, type);
        const CaseOperand grad{.shape = {s.r, s.n}, .accumulate = accumulate};
        const bool several = s.r <= 16;
        const auto add = [&](const char* kernel, std::vector<CaseOperand> in, std::vector<CaseOperand> out) {
          calls.push_back({kernel, std::move(in), std::move(out), calls.back().attrs, tolerance});
          calls.back().f32_on_cpu = type == DType::bf16;
        };
        add("skinny_products", several ? std::vector{large, a, a, a} : std::vector{large, a},
            std::vector(several ? 3 : 1, product));
        add("skinny_weight_grads", several ? std::vector{large, small, small} : std::vector{large, small},
            std::vector(several ? 2 : 1, grad));
      }
    }
  }
}

/// Weight gradients with the operations that the compiler fuses into them, and products of 8-bit factors.
std::vector<KernelCase> matmul_kernels() {
  std::vector<KernelCase> calls;
  add_skinny_grads(calls);
  for (const bool kn : {false, true}) {
    for (const Epilogue& epilogue :
         {Epilogue{.bias_grad = true}, Epilogue{.descend = true}, Epilogue{.bias_grad = true, .descend = true}}) {
      KernelCase call{
          "matmul_weight_grad",    {{{24, 36}}, {{24, 20}}}, {{kn ? Shape{36, 20} : Shape{20, 36}}}, {{"kn", kn}}, 1e-5,
          {.learning_rate = 0.25f}};
      if (epilogue.bias_grad) call.out.push_back({{20}});
      for (CaseOperand& out : call.out) out.accumulate = epilogue.descend;
      set_epilogue(call.attrs, epilogue);
      calls.push_back(std::move(call));
    }
  }
  for (const DType result : {DType::f32, DType::bf16}) {
    for (const bool bias : {false, true}) {
      for (const bool accumulate : {false, true}) {
        const Epilogue epilogue{.bias = bias};
        calls.push_back(case_of_8_bits(16, 32, 128, result, epilogue, accumulate, {}));
        calls.push_back(case_of_8_bits(144, 160, 384, result, epilogue, accumulate, {}));
        calls.push_back(case_of_8_bits(144, 160, 384, result, epilogue, accumulate, {{"a_squares", true}}));
        calls.push_back(case_of_8_bits(160, 144, 256, result, epilogue, accumulate, {{"b_squares", true}}));
        const Attrs tensor{{"tensor", true}}, a_e5m2{{"tensor", true}, {"a_e5m2", true}};
        const Attrs b_e5m2{{"tensor", true}, {"b_e5m2", true}};
        calls.push_back(case_of_8_bits(144, 160, 384, result, epilogue, accumulate, tensor));
        calls.push_back(case_of_8_bits(144, 160, 384, result, epilogue, accumulate, a_e5m2));
        calls.push_back(case_of_8_bits(16, 32, 128, result, epilogue, accumulate, b_e5m2));
      }
      calls.push_back(case_of_8_bits(144, 32, 256, result, {.bias = bias, .residual = true}, false, {}));
    }
  }
  KernelCase other_bias = case_of_8_bits(160, 144, 256, DType::f32, {.bias = true}, true, {});
  other_bias.in.back().dtype = DType::bf16;
  other_bias.f32_on_cpu = true;
  calls.push_back(std::move(other_bias));
  return calls;
}

const Attrs kTransposeA{{"transpose_a", true}}, kTransposeB{{"transpose_b", true}};
const Attrs kTransposeBoth{{"transpose_a", true}, {"transpose_b", true}};

}  // namespace

extern const OpCases matmul_cases = {
    .rows = matmul_rows(),
    .references = {{"matmul", matmul}},
    .rules = {{{"matmul", {{{2, 3}}, {{3, 4}}}}, "mk,kn->mn", "", {{2, 4}}},
              {{"matmul", {{{2, 3}}, {{4, 3}}}, kTransposeB}, "mk,nk->mn", "", {{2, 4}}},
              {{"matmul", {{{3, 2}}, {{3, 4}}}, kTransposeA}, "km,kn->mn", "", {{2, 4}}},
              {{"matmul", {{{5, 2, 3}}, {{4, 3}}}, kTransposeB}, "amk,nk->amn", "", {{5, 2, 4}}},
              {{"matmul", {{{5, 6, 2, 3}}, {{5, 6, 3, 4}}}}, "abmk,abkn->abmn", "", {{5, 6, 2, 4}}},
              {{"matmul", {{{2, 3}}, {{3, 4}}, {{4}}}, {{"bias", true}}}, "mk,kn,n->mn", "", {{2, 4}}}},
    .gradients = {{{"matmul", {{{2, 3}}, {{3, 4}}}},
                   {"matmul mn,kn->mk sums n", "matmul_weight_grad mk,mn->kn sums m"},
                   "dA sums over n, dB over m; a cut of k cuts both results"},
                  {{"matmul", {{{2, 3}}, {{4, 3}}}, kTransposeB},
                   {"matmul mn,nk->mk sums n", "matmul_weight_grad mk,mn->nk sums m"},
                   "the same"},
                  {{"matmul", {{{3, 2}}, {{3, 4}}}, kTransposeA},
                   {"matmul kn,mn->km sums n", "matmul km,mn->kn sums m"},
                   "the same"},
                  {{"matmul", {{{3, 2}}, {{4, 3}}}, kTransposeBoth},
                   {"matmul nk,mn->km sums n", "matmul mn,km->nk sums m"},
                   "the same"},
                  {{"matmul", {{{5, 2, 3}}, {{4, 3}}}, kTransposeB},
                   {"matmul amn,nk->amk sums n", "matmul_weight_grad amk,amn->nk sums am"},
                   "the weight is used for every a and m, so its gradient sums over both"},
                  {{"matmul", {{{5, 2, 3}}, {{5, 3, 4}}}},
                   {"matmul amn,akn->amk sums n", "matmul amk,amn->akn sums m"},
                   "a is in every operand: each a is a product of its own"},
                  {{"matmul", {{{5, 2, 3}}, {{5, 4, 3}}}, kTransposeB},
                   {"matmul amn,ank->amk sums n", "matmul amn,amk->ank sums m"},
                   "the same"}},
    .shape_errors =
        {{{"matmul", {{{2, 3}}, {{4, 5}}}},
          "matmul: [2, 3] times [4, 5]: the contracted dims are 3 and 4, but must be equal"},
         {{"matmul", {{{2, 3}}, {{4, 5}}}, {{"transpose_b", true}}},
          "matmul: [2, 3] times [4, 5] transposed: the contracted dims are 3 and 5, but must be equal"},
         {{"matmul", {{{7, 2, 3}}, {{8, 3, 5}}}},
          "matmul: [7, 2, 3] times [8, 3, 5]: the leading dims [7] and [8] differ"},
         {{"matmul", {{{3}}, {{3, 5}}}}, "matmul needs an input of at least 2 dims, but got [3]"},
         {{"matmul", {{{2, 3}, DType::i32}, {{3, 5}}}}, "matmul expects f32, but got [2, 3] i32"},
         {{"matmul", {{{7, 2, 3}}, {{2, 5}}}, {{"transpose_a", true}}},
          "matmul: [7, 2, 3] transposed times [2, 5]: transpose_a of more than 2 dims needs a right side with the same "
          "leading dims"}},
    .kernels = matmul_kernels(),
    .kernel_references = {{"matmul_weight_grad", matmul_weight_grad},
                          {"matmul_fp8", product_of_8_bits},
                          {"skinny_grads", skinny_grads},
                          {"skinny_products", skinny_products},
                          {"skinny_weight_grads", skinny_weight_grads}},
    .layers = {{"matmul", ", units: 5", {8, 5}},
               {"matmul", ", units: 5, transpose_b: true", {8, 5}},
               {"matmul", ", inputs: [first, second], transpose_a: true", {12, 12}},
               {"matmul", ", inputs: [first, second], transpose_b: true", {8, 8}}},
};

}  // namespace trainctl
