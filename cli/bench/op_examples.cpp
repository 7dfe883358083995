// The table. 4 Mi elements where nothing says otherwise: 16 MiB of f32.
#include "cli/bench/op_examples.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/ops/elementwise/expression.h"

namespace trainctl {
namespace {

using Infos = std::span<const TensorInfo>;
using Outputs = std::vector<TensorInfo>;

constexpr int64_t kRows = 4096, kCols = 1024;
const Shape kMatrix = {kRows, kCols}, kRow = {kCols}, kColumn = {kRows}, kFlat = {kRows * kCols};
/// A batch of 32 images of 128 channels, 32 x 32.
const Shape kImages = {32, 128, 32, 32}, kChannels = {128};
const int64_t kImageCount = 32 * 32 * 32;

ExampleInput f32(Shape shape) { return {std::move(shape), Fill::statistics}; }
ExampleInput ids(Shape shape) { return {std::move(shape), Fill::indices}; }

int64_t columns_of_first(Infos in, const Attrs&) { return in[0].shape.back(); }
int64_t rows_of_second(Infos in, const Attrs&) { return in[1].shape[0]; }
int64_t vocabulary(Infos, const Attrs& attrs) { return attrs.integer("vocab"); }

void expect(bool holds, const std::string& message) {
  if (!holds) throw ShapeError(message);
}

Shape leading(const TensorInfo& info) { return Shape(info.shape.begin(), info.shape.end() - 1); }

void expect_shape(const TensorInfo& info, const Shape& expected, const char* what) {
  expect(info.shape == expected,
         fmt::format("{} is {}, {} was expected", what, to_string(info.shape), to_string(expected)));
}

void expect_weight_grad(Infos in) {
  expect(in.size() == 2, "it takes x [.., k] and dy [.., n]");
  expect_shape({leading(in[1])}, leading(in[0]), "what leads dy");
}

/// (dy, x, mean, var, ...): x of `images` dims, and vectors of its channels.
void expect_batch_norm_grad(Infos in) {
  expect(in.size() >= 4 && in.size() <= 7 && in.size() != 5 && in[0].shape.size() >= 2,
         "it takes dy, x [n, c, ..], mean, var");
  expect_shape(in[1], in[0].shape, "x");
  for (size_t i = 2; i < in.size(); ++i) expect_shape(in[i], {in[0].shape[1]}, "a vector of the channels");
}

void expect_layer_norm_grad(Infos in) {
  expect(in.size() >= 4 && in.size() <= 5, "it takes dy, x, mean, rstd");
  expect_shape(in[1], in[0].shape, "x");
  for (size_t i = 2; i < 4; ++i) expect_shape(in[i], leading(in[0]), "a number of each row");
  if (in.size() == 5) expect_shape(in[4], {in[0].shape.back()}, "gamma");
}

void expect_embedding_grad(Infos in) {
  expect(in.size() == 2, "it takes dy [.., d] and ids");
  expect_shape(in[1], leading(in[0]), "ids");
}

Outputs like_first(Infos in, const Attrs&, DType) { return {in[0]}; }
Outputs one_number(Infos, const Attrs&, DType) { return {{{1}}}; }

/// [outer, parts, inner] in one dim.
Outputs rearranged(Infos in, const Attrs& attrs, DType) {
  const int64_t outer = attrs.integer("outer"), parts = attrs.integer("parts"), inner = attrs.integer("inner");
  expect(outer > 0 && parts > 0 && inner > 0 && num_elements(in[0].shape) == outer * parts * inner,
         fmt::format("outer {} x parts {} x inner {} are not the elements of {}", outer, parts, inner,
                     to_string(in[0].shape)));
  return {in[0]};
}

Outputs one_part(Infos in, const Attrs& attrs, DType dtype) {
  rearranged(in, attrs, dtype);
  const int64_t index = attrs.integer("index");
  expect(index >= 0 && index < attrs.integer("parts"), fmt::format("there is no part {}", index));
  return {{{attrs.integer("outer") * attrs.integer("inner")}, in[0].dtype}};
}

Outputs updated(Infos in, int states, DType dtype) {
  for (size_t i = 1; i < in.size(); ++i) {
    expect(num_elements(in[i].shape) == 1, "the second input is the squared norm of all gradients, [1]");
  }
  Outputs out(static_cast<size_t>(1 + states), in[0]);
  if (dtype == DType::bf16) out.push_back({in[0].shape, DType::bf16});
  return out;
}

Outputs with_grad(Infos in, const Attrs&, DType) {
  expect(in.size() == 2, "it takes a prediction and a label");
  return {{{1}}, in[0]};
}

/// Like the first input, as many as the expression writes.
Outputs chained(Infos in, const Attrs& attrs, DType) {
  const std::string text = attrs.text("expression");
  expect(is_expression(text), "'" + text + "' is no expression");
  int inputs = 0, outputs = 0;
  for (const ElementwiseToken& token : parse_expression(text)) {
    const bool reads = token.op == ElementwiseOp::input || token.op == ElementwiseOp::row;
    const size_t size = static_cast<size_t>(token.index);
    if (reads) inputs = std::max(inputs, token.index + 1);
    if (token.op == ElementwiseOp::output) outputs = std::max(outputs, token.index + 1);
    if (!reads || size >= in.size()) continue;
    const bool row = token.op == ElementwiseOp::row;
    expect_shape(in[size], row ? Shape{in[0].shape.back()} : in[0].shape, row ? "a row" : "an input");
  }
  expect(static_cast<size_t>(inputs) == in.size(), fmt::format("'{}' reads {} inputs", text, inputs));
  return Outputs(static_cast<size_t>(outputs), in[0]);
}

const Attrs kParts = {{"outer", int64_t{64}}, {"parts", int64_t{4}}, {"inner", int64_t{16384}}};
const Attrs kPart = {{"outer", int64_t{64}}, {"parts", int64_t{4}}, {"inner", int64_t{16384}}, {"index", int64_t{1}}};
const Attrs kScale = {{"scale", 1e-6}};
const Attrs kBatchNorm = {{"eps", 1e-5}, {"momentum", 0.1}, {"count", kImageCount}};
const Attrs kDescend = {{"descend", true}};

const std::vector<OpExample>& examples() {
  static const std::vector<OpExample> table = {
      {"reshape", "y = x in another shape", {{kMatrix}}, {{"shape", kFlat}}},
      {"transpose", "y = x with its dims in the order of perm", {{kMatrix}}, {{"perm", Ints{1, 0}}}},
      {"matmul",
       "C[m,n] = A[m,k] B[k,n] (+ bias[n])",
       {{{1024, 1024}}, {{1024, 1024}}},
       {},
       {{"transpose_a", true},
        {"transpose_b", true},
        {"bias", true},
        {"activation", std::string("relu")},
        {"keep_input", true},
        {"activation_grad", std::string("relu")},
        {"out_dtype", std::string("f32")}}},
      {"matmul_weight_grad",
       "dW[n,k] = dY[m,n]^T X[m,k]; inputs X, dY",
       {{{1024, 1024}}, {{1024, 1024}}},
       {},
       {{"kn", true}, {"descend", true}, {"bias_grad", true}, {"out_dtype", std::string("bf16")}},
       nullptr,
       nullptr,
       expect_weight_grad},
      {"add_bias", "y = x + b of the last dim", {{kMatrix}, {kRow}}},
      {"bias_grad", "db = dy summed over all but the last dim", {{kMatrix}}, {}, kDescend},
      {"add", "c = a + b, broadcast", {{kMatrix}, {kMatrix}}},
      {"mul", "c = a * b, broadcast", {{kMatrix}, {kMatrix}}},
      {"sum_to", "y = x summed to shape", {{kMatrix}}, {{"shape", kRow}}},
      {"reduce_sum",
       "y = scale * x summed over dims",
       {{kMatrix}},
       {{"dims", Ints{1}}, {"keep_dims", false}, {"scale", 1.0}}},
      {"broadcast_to",
       "y = scale * x repeated along dims",
       {{kColumn}},
       {{"shape", kMatrix}, {"dims", Ints{1}}, {"scale", 1.0}}},
      {"relu", "y = max(x, 0)", {{kMatrix}}},
      {"relu_grad", "dx = dy where y > 0; inputs dy, y", {{kMatrix}, {kMatrix}}},
      {"gelu", "y = x Phi(x)", {{kMatrix}}, {}, {{"approximate", std::string("tanh")}}},
      {"gelu_grad", "inputs dy, x", {{kMatrix}, {kMatrix}}, {}, {{"approximate", std::string("tanh")}}},
      {"sigmoid", "y = 1 / (1 + exp(-x))", {{kMatrix}}},
      {"sigmoid_grad", "inputs dy, y", {{kMatrix}, {kMatrix}}},
      {"tanh", "y = tanh(x)", {{kMatrix}}},
      {"tanh_grad", "inputs dy, y", {{kMatrix}, {kMatrix}}},
      {"softmax", "y = exp(x) / sum exp(x) along dim", {{kMatrix}}, {{"dim", int64_t{1}}}},
      {"softmax_grad", "inputs dy, y", {{kMatrix}, {kMatrix}}, {{"dim", int64_t{1}}}},
      {"dropout", "y = keep ? x / (1 - p) : 0", {{kMatrix}}, {{"p", 0.1}, {"key", int64_t{1}}}},
      {"batch_norm_mean", "mean of each channel (dim 1)", {{kImages}}, kBatchNorm},
      {"batch_norm_var", "variance of each channel; inputs x, mean", {{kImages}, f32(kChannels)}, kBatchNorm},
      {"batch_norm_running",
       "running statistics; inputs mean, var, running mean, running var",
       {f32(kChannels), f32(kChannels), f32(kChannels), f32(kChannels)},
       kBatchNorm},
      {"batch_norm",
       "inputs x, mean, var(, gamma, beta)",
       {{kImages}, f32(kChannels), f32(kChannels), {kChannels}, {kChannels}},
       kBatchNorm},
      {"batch_norm_grad_stats",
       "dbeta, dgamma; inputs dy, x, mean, var",
       {{kImages}, {kImages}, f32(kChannels), f32(kChannels)},
       kBatchNorm,
       {},
       nullptr,
       nullptr,
       expect_batch_norm_grad},
      {"batch_norm_grad",
       "dx; inputs dy, x, mean, var, dbeta, dgamma(, gamma)",
       {{kImages}, {kImages}, f32(kChannels), f32(kChannels), f32(kChannels), f32(kChannels), {kChannels}},
       kBatchNorm,
       {},
       nullptr,
       nullptr,
       expect_batch_norm_grad},
      {"layer_norm", "inputs x(, gamma, beta)", {{kMatrix}, {kRow}, {kRow}}, {{"eps", 1e-5}}},
      {"layer_norm_grad",
       "dx; inputs dy, x, mean, rstd(, gamma)",
       {{kMatrix}, {kMatrix}, f32(kColumn), f32(kColumn), {kRow}},
       {},
       {},
       nullptr,
       nullptr,
       expect_layer_norm_grad},
      {"layer_norm_param_grad",
       "dgamma, dbeta; inputs dy, x, mean, rstd",
       {{kMatrix}, {kMatrix}, f32(kColumn), f32(kColumn)},
       {},
       {},
       nullptr,
       nullptr,
       expect_layer_norm_grad},
      {"embedding",
       "y = rows of a table; inputs ids, table",
       {ids({kRows}), {{32768, kCols}}},
       {},
       {},
       nullptr,
       rows_of_second},
      {"embedding_grad",
       "dtable; inputs dy, ids",
       {{kMatrix}, ids({kRows})},
       {{"vocab", int64_t{32768}}},
       {},
       nullptr,
       vocabulary,
       expect_embedding_grad},
      {"mae", "scale * sum |p - label|", {{kMatrix}, f32(kMatrix)}, kScale},
      {"mae_grad", "scale * sign(p - label)", {{kMatrix}, f32(kMatrix)}, kScale},
      {"mse", "scale * sum (p - label)^2", {{kMatrix}, f32(kMatrix)}, kScale},
      {"mse_grad", "2 * scale * (p - label)", {{kMatrix}, f32(kMatrix)}, kScale},
      {"softmax_cross_entropy",
       "inputs logits, labels",
       {{kMatrix}, ids(kColumn)},
       kScale,
       {},
       nullptr,
       columns_of_first},
      {"softmax_cross_entropy_grad",
       "inputs logits, labels",
       {{kMatrix}, ids(kColumn)},
       kScale,
       {},
       nullptr,
       columns_of_first},
      // Kernels of compiled programs.
      {"copy_slice", "one of parts of each of outer rows", {{kFlat}}, kPart, {}, one_part},
      {"pack", "[outer, parts, inner] to [parts, outer, inner]", {{kFlat}}, kParts, {}, rearranged},
      {"unpack", "[parts, outer, inner] to [outer, parts, inner]", {{kFlat}}, kParts, {}, rearranged},
      {"accumulate", "out += in", {f32(kFlat)}, {}, {}, like_first},
      {"zero", "out = 0", {f32(kFlat)}, {}, {}, like_first},
      {"sum_squares", "sum of in^2", {f32(kFlat)}, {}, {}, one_number},
      {"sgd_update",
       "weights (, momentum) from gradients (, squared norm)",
       {f32(kFlat)},
       {{"momentum", 0.0}, {"nesterov", false}, {"weight_decay", 0.0}, {"clip_norm", 0.0}},
       {},
       [](Infos in, const Attrs& attrs, DType dtype) {
         return updated(in, attrs.number("momentum") != 0 ? 1 : 0, dtype);
       }},
      {"adam_update",
       "weights, m, v from gradients (, squared norm)",
       {f32(kFlat)},
       {{"beta1", 0.9},
        {"beta2", 0.999},
        {"eps", 1e-8},
        {"weight_decay", 0.0},
        {"decoupled", false},
        {"clip_norm", 0.0}},
       {},
       [](Infos in, const Attrs&, DType dtype) { return updated(in, 2, dtype); }},
      {"softmax_cross_entropy_with_grad",
       "loss and gradient in one pass; inputs logits, labels",
       {{kMatrix}, ids(kColumn)},
       kScale,
       {},
       with_grad,
       columns_of_first},
      {"mae_with_grad", "loss and gradient in one pass", {{kMatrix}, f32(kMatrix)}, kScale, {}, with_grad},
      {"elementwise",
       "a chain of ops in one pass: ops/elementwise/expression.h",
       {{kMatrix}, {kRow}},
       {{"expression", std::string("x0 b1 + gelu =0")}},
       {},
       chained},
      {"mse_with_grad", "loss and gradient in one pass", {{kMatrix}, f32(kMatrix)}, kScale, {}, with_grad},
  };
  return table;
}

}  // namespace

std::span<const OpExample> op_examples() { return examples(); }

const OpExample* find_op_example(std::string_view name) {
  for (const OpExample& example : op_examples()) {
    if (name == example.name) return &example;
  }
  return nullptr;
}

}  // namespace trainctl
