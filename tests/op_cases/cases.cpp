// The table of op cases. Shapes: prime sizes that vector loops do not divide, ones, and sizes that 2, 3, 4
// and 6 ranks divide.
#include <fmt/format.h>

#include <cmath>

#include "engine/base/text.h"
#include "engine/ops/random.h"
#include "tests/op_cases/op_case.h"

namespace trainctl {
namespace {

CaseInput fixed(Shape shape) { return {std::move(shape), false}; }
CaseInput ids(Shape shape, int64_t below) { return {std::move(shape), false, DType::i32, below}; }

Attrs transposes(bool a, bool b) { return {{"transpose_a", a}, {"transpose_b", b}}; }
Attrs gelu_fusion(const char* which, const char* approximate) {
  Attrs attrs{{"transpose_b", true}, {which, std::string("gelu")}, {"approximate", std::string(approximate)}};
  if (which == std::string("activation")) attrs.set("bias", true);
  return attrs;
}
Attrs fusion(bool transpose_b, bool bias, bool relu) {
  Attrs attrs{{"transpose_b", transpose_b}, {"bias", bias}};
  if (relu) attrs.set("activation", std::string("relu"));
  return attrs;
}
Attrs reduction(Ints dims, bool keep, double scale) {
  return {{"dims", std::move(dims)}, {"keep_dims", keep}, {"scale", scale}};
}
Attrs scale(double s) { return {{"scale", s}}; }

/// (x[, gamma, beta]) -> mean, var, y: as model/ lowers a batch_norm layer.
void build_batch_norm(LayerBuilder& layer, const std::vector<TensorId>& in, const Attrs& attrs) {
  const TensorId mean = layer.emit("batch_norm_mean", {in[0]}, attrs, "mean")[0];
  const TensorId var = layer.emit("batch_norm_var", {in[0], mean}, attrs, "var")[0];
  const int64_t features = layer.shape(mean)[0];
  const TensorId running_mean = layer.state("running_mean", {features}, 0.0);
  const TensorId running_var = layer.state("running_var", {features}, 1.0);
  layer.emit("batch_norm_running", {mean, var, running_mean, running_var}, attrs, "running");
  std::vector<TensorId> inputs = {in[0], mean, var};
  inputs.insert(inputs.end(), in.begin() + 1, in.end());
  layer.emit("batch_norm", inputs, attrs);
}

void matmul_cases(std::vector<OpCase>& cases) {
  const auto add = [&](CaseInput a, CaseInput b, Attrs attrs, Shape out) {
    cases.push_back({"matmul", {std::move(a), std::move(b)}, std::move(attrs), {std::move(out)}});
  };
  add({{1, 1}}, {{1, 1}}, {}, {1, 1});
  add({{4, 6}}, {{6, 12}}, {}, {4, 12});
  add({{7, 5}}, {{3, 5}}, transposes(false, true), {7, 3});
  add({{12, 18}}, {{6, 18}}, transposes(false, true), {12, 6});
  add({{5, 7}}, {{5, 11}}, transposes(true, false), {7, 11});
  add({{12, 4}}, {{6, 12}}, transposes(true, true), {4, 6});
  add({{4, 3, 5}}, {{5, 6}}, {}, {4, 3, 6});
  add({{2, 3, 4}}, {{6, 4}}, transposes(false, true), {2, 3, 6});
  add({{6, 2, 5}}, {{6, 5, 4}}, {}, {6, 2, 4});
  add({{2, 3, 4, 5}}, {{2, 3, 6, 5}}, transposes(false, true), {2, 3, 4, 6});
  add({{4, 5, 3}}, {{4, 5, 2}}, transposes(true, false), {4, 3, 2});
  add({{2, 5, 3}}, {{2, 7, 5}}, transposes(true, true), {2, 3, 7});
  add({{4, 64}}, {{1, 64}}, transposes(false, true), {4, 1});
  add({{1, 37}}, {{13, 37}}, transposes(false, true), {1, 13});
  add({{17, 1}}, {{1, 19}}, {}, {17, 19});
  cases.push_back({"matmul", {{{5, 7}}, {{11, 7}}, {{11}}}, fusion(true, true, false), {{5, 11}}, 2e-6, nullptr, true});
  cases.push_back(
      {"matmul", {{{2, 6, 7}}, {{7, 4}}, {{4}}}, fusion(false, true, true), {{2, 6, 4}}, 2e-6, nullptr, true});
  const auto fused = [&](std::vector<CaseInput> inputs, Attrs attrs, std::vector<Shape> out) {
    cases.push_back({"matmul", std::move(inputs), std::move(attrs), std::move(out), 2e-6, nullptr, true});
  };
  for (const char* approximate : {"none", "tanh"}) {
    Attrs attrs = gelu_fusion("activation", approximate);
    fused({{{5, 7}}, {{11, 7}}, {{11}}}, attrs, {{5, 11}});
    attrs.set("keep_input", true);
    fused({{{6, 17}}, {{24, 17}}, {{24}}}, attrs, {{6, 24}, {6, 24}});
    fused({{{2, 3, 5}}, {{3, 5}}, {{3}}}, attrs, {{2, 3, 3}, {2, 3, 3}});
    fused({{{5, 7}}, {{11, 7}}, {{5, 11}}}, gelu_fusion("activation_grad", approximate), {{5, 11}});
    fused({{{6, 16}}, {{24, 16}}, {{6, 24}}}, gelu_fusion("activation_grad", approximate), {{6, 24}});
  }
  fused({{{5, 7}}, {{7, 11}}, {{5, 11}}}, {{"activation_grad", std::string("relu")}}, {{5, 11}});
  fused({{{6, 1}}, {{1, 12}}, {{6, 12}}}, {{"activation_grad", std::string("relu")}}, {{6, 12}});
  fused({{{34, 132}}, {{132, 68}}, {{34, 68}}}, {{"activation_grad", std::string("relu")}}, {{34, 68}});
  // Sums so long that blocks of a GPU share them.
  fused({{{67, 131}}, {{37, 131}}, {{37}}}, fusion(true, true, true), {{67, 37}});
}

void elementwise_cases(std::vector<OpCase>& cases) {
  for (const char* op : {"relu", "sigmoid", "tanh", "gelu"}) {
    cases.push_back({op, {{{1}}}, {}, {{1}}});
    cases.push_back({op, {{{6, 7}}}, {}, {{6, 7}}});
    cases.push_back({op, {{{4, 3, 31}}}, {}, {{4, 3, 31}}});
  }
  cases.push_back({"gelu", {{{6, 17}}}, {{"approximate", std::string("tanh")}}, {{6, 17}}});
  for (const char* op : {"add", "mul"}) {
    cases.push_back({op, {{{6, 13}}, {{6, 13}}}, {}, {{6, 13}}});
    cases.push_back({op, {{{4, 6, 5}}, {{5}}}, {}, {{4, 6, 5}}});
    cases.push_back({op, {{{4, 1, 6}}, {{2, 1}}}, {}, {{4, 2, 6}}});
    cases.push_back({op, {{{1}}, {{3, 4, 7}}}, {}, {{3, 4, 7}}});
    cases.push_back({op, {{{6, 1, 4, 1}}, {{1, 3, 1, 2}}}, {}, {{6, 3, 4, 2}}});
  }
  cases.push_back({"add_bias", {{{6, 11}}, {{11}}}, {}, {{6, 11}}});
  cases.push_back({"add_bias", {{{4, 3, 12}}, {{12}}}, {}, {{4, 3, 12}}});
  cases.push_back({"add_bias", {{{1, 1}}, {{1}}}, {}, {{1, 1}}});
  cases.push_back({"dropout", {{{12, 7}}}, {{"p", 0.3}, {"key", int64_t{-5}}}, {{12, 7}}});
  cases.push_back({"dropout", {{{4, 6, 37}}}, {{"p", 0.5}, {"key", int64_t{99}}}, {{4, 6, 37}}});
  cases.push_back({"dropout", {{{5}}}, {{"p", 0.0}, {"key", int64_t{1}}}, {{5}}});
}

void shape_cases(std::vector<OpCase>& cases) {
  cases.push_back({"reshape", {{{4, 3, 5}}}, {{"shape", Shape{4, 15}}}, {{4, 15}}});
  cases.push_back({"reshape", {{{6, 12}}}, {{"shape", Shape{6, 3, 4}}}, {{6, 3, 4}}});
  cases.push_back({"reshape", {{{7, 1}}}, {{"shape", Shape{1, 7}}}, {{1, 7}}});
  cases.push_back({"reshape", {{{6, 4}}}, {{"shape", Shape{8, 3}}}, {{8, 3}}});
  cases.push_back({"transpose", {{{6, 4}}}, {{"perm", Ints{1, 0}}}, {{4, 6}}});
  cases.push_back({"transpose", {{{19, 37}}}, {{"perm", Ints{1, 0}}}, {{37, 19}}});
  cases.push_back({"transpose", {{{2, 3, 4, 5}}}, {{"perm", Ints{0, 2, 1, 3}}}, {{2, 4, 3, 5}}});
  cases.push_back({"transpose", {{{4, 3, 6}}}, {{"perm", Ints{2, 0, 1}}}, {{6, 4, 3}}});
  cases.push_back({"transpose", {{{2, 3, 4, 5}}}, {{"perm", Ints{3, 1, 0, 2}}}, {{5, 3, 2, 4}}});
  cases.push_back({"transpose", {{{1, 6, 1}}}, {{"perm", Ints{2, 1, 0}}}, {{1, 6, 1}}});
  cases.push_back({"reduce_sum", {{{6, 4}}}, reduction({1}, false, 1.0), {{6}}});
  cases.push_back({"reduce_sum", {{{6, 4}}}, reduction({0}, true, 1.0 / 6), {{1, 4}}});
  cases.push_back({"reduce_sum", {{{4, 6, 5}}}, reduction({0, 2}, false, 0.05), {{6}}});
  cases.push_back({"reduce_sum", {{{4, 6, 5}}}, reduction({1}, true, 1.0), {{4, 1, 5}}});
  cases.push_back({"reduce_sum", {{{4, 3, 37}}}, reduction({0, 1, 2}, false, 1.0), {{1}}});
  cases.push_back({"reduce_sum", {{{13}}}, reduction({0}, false, 1.0), {{1}}});
  cases.push_back({"reduce_sum", {{{2, 3, 2, 3, 2}}}, reduction({1, 3}, false, 1.0), {{2, 2, 2}}});
  cases.push_back({"reduce_sum", {{{3, 600}}}, reduction({0}, false, 1.0), {{600}}});
}

void normalisation_cases(std::vector<OpCase>& cases) {
  cases.push_back({"softmax", {{{6, 7}}}, {{"dim", int64_t{1}}}, {{6, 7}}});
  cases.push_back({"softmax", {{{4, 5, 6}}}, {{"dim", int64_t{1}}}, {{4, 5, 6}}});
  cases.push_back({"softmax", {{{3, 71}}}, {{"dim", int64_t{0}}}, {{3, 71}}});
  cases.push_back({"softmax", {{{4, 37}}}, {{"dim", int64_t{1}}}, {{4, 37}}});
  cases.push_back({"softmax", {{{4, 1}}}, {{"dim", int64_t{1}}}, {{4, 1}}});
  cases.push_back(batch_norm_case({12, 4}, true));
  cases.push_back(batch_norm_case({6, 5}, false));
  cases.push_back(batch_norm_case({4, 6, 3, 2}, true));
  cases.push_back(batch_norm_case({6, 2, 17}, true));
  cases.push_back(batch_norm_case({4, 1, 5}, false));
  cases.push_back({"layer_norm", {{{6, 7}}, {{7}}, {{7}}}, {{"eps", 1e-5}}, {{6, 7}, {6}, {6}}, 5e-6});
  cases.push_back({"layer_norm", {{{4, 3, 37}}, {{37}}, {{37}}}, {{"eps", 1e-5}}, {{4, 3, 37}, {4, 3}, {4, 3}}, 5e-6});
  cases.push_back({"layer_norm", {{{12, 8}}}, {{"eps", 1e-3}}, {{12, 8}, {12}, {12}}, 5e-6});
}

void data_cases(std::vector<OpCase>& cases) {
  cases.push_back({"embedding", {ids({6, 4}, 12), {{12, 6}}}, {}, {{6, 4, 6}}});
  cases.push_back({"embedding", {ids({7}, 5), {{5, 3}}}, {}, {{7, 3}}});
  cases.push_back({"embedding", {ids({2, 2, 3}, 4), {{4, 1}}}, {}, {{2, 2, 3, 1}}});
  for (const char* op : {"mae", "mse"}) {
    cases.push_back({op, {{{6, 1}}, fixed({6, 1})}, scale(1.0 / 6), {{1}}});
    cases.push_back({op, {{{4, 3, 7}}, fixed({4, 3, 7})}, scale(0.01), {{1}}});
    cases.push_back({op, {{{1, 1}}, fixed({1, 1})}, scale(1.0), {{1}}});
  }
  cases.push_back({"softmax_cross_entropy", {{{6, 10}}, ids({6}, 10)}, scale(1.0 / 6), {{1}}});
  cases.push_back({"softmax_cross_entropy", {{{4, 3, 37}}, ids({4, 3}, 37)}, scale(1.0 / 12), {{1}}});
  cases.push_back({"softmax_cross_entropy", {{{2, 1}}, ids({2}, 1)}, scale(1.0), {{1}}});
}

}  // namespace

OpCase batch_norm_case(Shape x, bool affine) {
  const int64_t features = x[1];
  Attrs attrs{{"eps", 1e-5}, {"momentum", 0.1}, {"count", num_elements(x) / features}};
  OpCase c{"batch_norm", {{x}}, attrs, {x}, 5e-6, build_batch_norm};
  if (affine) c.inputs.insert(c.inputs.end(), {{{features}}, {{features}}});
  return c;
}

std::string OpCase::name() const {
  std::vector<std::string> shapes;
  for (const CaseInput& input : inputs) shapes.push_back(to_string(input.shape));
  return fmt::format("{} {} {}", op, join(shapes, " "), to_string(attrs));
}

std::vector<OpCase> op_cases() {
  std::vector<OpCase> cases;
  shape_cases(cases);
  matmul_cases(cases);
  elementwise_cases(cases);
  normalisation_cases(cases);
  data_cases(cases);
  return cases;
}

std::vector<double> case_values(const OpCase& op_case, size_t input) {
  const CaseInput& in = op_case.inputs[input];
  const uint64_t key = stream_key(stable_hash(op_case.name()), input);
  std::vector<double> values(static_cast<size_t>(num_elements(in.shape)));
  for (size_t i = 0; i < values.size(); ++i) {
    const double u = philox_uniform(key, 2 * i, 0), angle = philox_uniform(key, 2 * i + 1, 0);
    if (in.dtype == DType::i32) {
      values[i] = std::floor(u * static_cast<double>(in.below));
    } else {
      values[i] = static_cast<float>(std::sqrt(-2.0 * std::log(1.0 - u)) * std::cos(2.0 * M_PI * angle));
    }
  }
  return values;
}

}  // namespace trainctl
