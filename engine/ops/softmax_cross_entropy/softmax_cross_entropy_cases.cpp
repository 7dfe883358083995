// Cases of softmax_cross_entropy: its kernels in double precision, and the shapes, sharding rules, gradients and errors
// to expect.
#include <cmath>
#include <limits>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// The loss, and its gradient. `label_weight`: StepScalars'.
Outputs with_logit_grad(const Inputs& in, const Attrs& attrs, double label_weight = 1) {
  const int64_t c = in[0].shape.back();
  const bool ignores = attrs.has("ignore_index");
  const double softmax_cross_entropy_scale = attrs.number("scale", 1.0) * (ignores ? label_weight : 1),
               e = attrs.number("label_smoothing", 0);
  double sum = 0;
  Tensor64 grad = in[0];
  for (size_t r = 0; r < in[1].values.size(); ++r) {
    const double* x = in[0].values.data() + static_cast<int64_t>(r) * c;
    const auto label = static_cast<int64_t>(in[1].values[r]);
    if (ignores && label == attrs.integer("ignore_index")) {
      for (int64_t i = 0; i < c; ++i) grad.values[static_cast<int64_t>(r) * c + i] = 0;
      continue;
    }
    double exps = 0;
    for (int64_t i = 0; i < c; ++i) exps += std::exp(x[i] - x[label]);
    const double top = x[label] + std::log(exps);  // log of the sum of e^x
    for (int64_t i = 0; i < c; ++i) {
      const double target = e / static_cast<double>(c) + (i == label ? 1 - e : 0);
      sum += target * (top - x[i]);
      grad.values[static_cast<int64_t>(r) * c + i] = softmax_cross_entropy_scale * (std::exp(x[i] - top) - target);
    }
  }
  return {{{1}, {softmax_cross_entropy_scale * sum}}, grad};
}

Attrs softmax_cross_entropy_scale(double s) { return {{"scale", s}}; }

/// The attrs for targets other than the class of the label alone: label smoothing and ignored labels.
std::vector<Attrs> other_targets(double softmax_cross_entropy_scale) {
  return {{{"scale", softmax_cross_entropy_scale}, {"label_smoothing", 0.1}},
          {{"scale", softmax_cross_entropy_scale}, {"label_smoothing", 1.0}},
          {{"scale", softmax_cross_entropy_scale}, {"ignore_index", int64_t{0}}},
          {{"scale", softmax_cross_entropy_scale}, {"ignore_index", int64_t{-100}}},
          {{"scale", softmax_cross_entropy_scale}, {"label_smoothing", 0.3}, {"ignore_index", int64_t{2}}}};
}

bool counts(const Attrs& attrs, double label) {
  return !attrs.has("ignore_index") || static_cast<int64_t>(label) != attrs.integer("ignore_index");
}

Shape stats_shape(Shape logits, const Attrs& attrs) {
  logits.back() = attrs.number("label_smoothing", 0) > 0 ? 4 : 3;
  return logits;
}

/// The statistics of a shard that has all classes.
Outputs softmax_cross_entropy_stats(const NaiveCall& call) {
  const Tensor64& logits = call.in[0];
  const int64_t n = logits.shape.back();
  Tensor64 out = zeros(stats_shape(logits.shape, call.attrs));
  const int64_t numbers = out.shape.back();
  for (size_t r = 0; r < call.in[1].values.size(); ++r) {
    const double* x = logits.values.data() + static_cast<int64_t>(r) * n;
    double* to = out.values.data() + static_cast<int64_t>(r) * numbers;
    const double label = counts(call.attrs, call.in[1].values[r]) ? call.in[1].values[r] : -1;
    to[0] = std::numeric_limits<float>::lowest();  // the largest logit of the other classes: none
    to[2] = label < 0 ? -INFINITY : x[static_cast<int64_t>(label)];
    for (int64_t i = 0; i < n; ++i)
      if (static_cast<double>(i) != label) to[0] = std::max(to[0], x[i]);
    for (int64_t i = 0; i < n; ++i)
      if (static_cast<double>(i) != label) to[1] += std::exp(x[i] - to[0]);
    for (int64_t i = 0; i < n && numbers > 3; ++i) to[3] += x[i];
  }
  return {out};
}

struct RowOfParts {
  double log_sum, correct = -INFINITY, mean = 0;
};
/// The sums of row r over all classes, from the statistics of all shards.
RowOfParts of_parts(const NaiveCall& call, int64_t r) {
  const Tensor64& softmax_cross_entropy_stats = call.in[2];
  const int64_t parts = softmax_cross_entropy_stats.shape[0], numbers = softmax_cross_entropy_stats.shape.back(),
                softmax_cross_entropy_rows = num_elements(softmax_cross_entropy_stats.shape) / parts / numbers;
  RowOfParts all{};
  double sum = 0;
  for (int64_t p = 0; p < parts; ++p) {
    const double* part = softmax_cross_entropy_stats.values.data() + (p * softmax_cross_entropy_rows + r) * numbers;
    sum += part[1] * std::exp(part[0]);
    all.correct = part[2];  // in a run of a program only one part has it; here all do, and the last counts
    if (numbers > 3) all.mean += part[3] / static_cast<double>(parts * call.in[0].shape.back());
  }
  all.log_sum = std::log(sum + std::exp(all.correct));
  return all;
}

double scale_of(const NaiveCall& call) {
  const double weight = call.attrs.has("ignore_index") ? double{call.scalars.label_weight} : 1.0;
  return call.attrs.number("scale") * weight;
}

Outputs softmax_cross_entropy_apply(const NaiveCall& call) {
  const double e = call.attrs.number("label_smoothing", 0);
  double sum = 0;
  for (int64_t r = 0; r < num_elements(call.in[1].shape); ++r) {
    const RowOfParts row = of_parts(call, r);
    const double target = (1 - e) * row.correct + e * row.mean;  // mean logit under the row's targets
    if (counts(call.attrs, call.in[1].values[r])) sum += row.log_sum - target;
  }
  return {{{1}, {scale_of(call) * sum}}};
}

/// The gradient of the logits of a shard, from the statistics of all shards.
Outputs softmax_cross_entropy_grad_apply(const NaiveCall& call) {
  const int64_t n = call.in[0].shape.back();
  const double e = call.attrs.number("label_smoothing", 0);
  Tensor64 grad = call.in[0];
  for (int64_t i = 0; i < num_elements(grad.shape); ++i) {
    const RowOfParts row = of_parts(call, i / n);
    const double label = call.in[1].values[i / n];
    const bool is_label = static_cast<double>(i % n) == label;
    const double x = is_label ? row.correct : grad.values[i];
    const double target = (is_label ? 1 - e : 0) + e / static_cast<double>(n * call.in[2].shape[0]);
    grad.values[i] = counts(call.attrs, label) ? scale_of(call) * (std::exp(x - row.log_sum) - target) : 0;
  }
  return {grad};
}

std::vector<OpCase> softmax_cross_entropy_rows() {
  std::vector<OpCase> softmax_cross_entropy_rows = {
      {"softmax_cross_entropy", {{{6, 10}}, ids({6}, 10)}, softmax_cross_entropy_scale(1.0 / 6), {{1}}},
      {"softmax_cross_entropy", {{{4, 3, 37}}, ids({4, 3}, 37)}, softmax_cross_entropy_scale(1.0 / 12), {{1}}},
      {"softmax_cross_entropy", {{{5, 36}}, ids({5}, 36)}, softmax_cross_entropy_scale(0.2), {{1}}},
      {"softmax_cross_entropy", {{{2, 1}}, ids({2}, 1)}, softmax_cross_entropy_scale(1.0), {{1}}}};
  for (const Attrs& attrs : other_targets(1.0 / 12)) {
    softmax_cross_entropy_rows.push_back({"softmax_cross_entropy", {{{4, 3, 37}}, ids({4, 3}, 5)}, attrs, {{1}}});
    softmax_cross_entropy_rows.push_back({"softmax_cross_entropy", {{{12, 10}}, ids({12}, 4)}, attrs, {{1}}});
    softmax_cross_entropy_rows.push_back({"softmax_cross_entropy", {{{4, 12}}, ids({4}, 12)}, attrs, {{1}}});
    softmax_cross_entropy_rows.push_back({"softmax_cross_entropy", {{{2, 1}}, ids({2}, 1)}, attrs, {{1}}});
  }
  return softmax_cross_entropy_rows;
}

std::vector<KernelCase> softmax_cross_entropy_kernels() {
  std::vector<KernelCase> calls;
  for (const int64_t classes : {1, 7, 37, 1000}) {
    const CaseOperand x{{12, classes}}, bf16{.shape = {12, classes}, .dtype = DType::bf16};
    const CaseOperand label{
        .shape = {12}, .fill = CaseOperand::Fill::ids, .dtype = DType::i32, .number = static_cast<double>(classes)};
    const CaseOperand sum{.shape = {1}, .fill = CaseOperand::Fill::number, .accumulate = true, .number = 0.5};
    calls.push_back({"softmax_cross_entropy_with_grad",
                     {x, label},
                     {unwritten({1}), unwritten({12, classes})},
                     softmax_cross_entropy_scale(0.01),
                     2e-6});
    calls.push_back({"softmax_cross_entropy_with_grad",
                     {x, label},
                     {sum, unwritten({12, classes})},
                     softmax_cross_entropy_scale(0.01),
                     2e-6});
    calls.push_back({"softmax_cross_entropy_with_grad",
                     {bf16, label},
                     {unwritten({1}), unwritten({12, classes}, DType::bf16)},
                     softmax_cross_entropy_scale(0.01),
                     1e-2});
    calls.back().f32_on_cpu = true;
    for (const Attrs& attrs : other_targets(0.01)) {
      calls.push_back({"softmax_cross_entropy_with_grad",
                       {x, label},
                       {unwritten({1}), unwritten({12, classes})},
                       attrs,
                       2e-6,
                       {.label_weight = 1.5}});
    }
  }
  for (const Shape& shape :
       {Shape{5, 7}, Shape{4, 1}, Shape{2, 3, 37}, Shape{3, 1024}, Shape{3, 5001}, Shape{300, 8}}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const bool bf16 = type == DType::bf16;
      const CaseOperand x{.shape = shape, .dtype = type},
          label{.shape = Shape(shape.begin(), shape.end() - 1),
                .fill = CaseOperand::Fill::ids,
                .dtype = DType::i32,
                .number = static_cast<double>(shape.back())},
          sum{.shape = {1}, .fill = CaseOperand::Fill::number, .accumulate = true, .number = 0.5};
      std::vector<Attrs> targets = {softmax_cross_entropy_scale(0.01)};
      if (shape.back() == 37)
        for (const Attrs& other : other_targets(0.01)) targets.push_back(other);
      for (const Attrs& attrs : targets) {
        CaseOperand softmax_cross_entropy_stats{stats_shape(shape, attrs), CaseOperand::Fill::positive};
        softmax_cross_entropy_stats.shape.insert(softmax_cross_entropy_stats.shape.begin(), 2);
        const auto add = [&](const char* kernel, std::vector<CaseOperand> in, CaseOperand out) {
          calls.push_back({kernel, std::move(in), {std::move(out)}, attrs, bf16 ? 1e-2 : 5e-6, {.label_weight = 1.5}});
          calls.back().f32_on_cpu = bf16;
        };
        if (!attrs.has("ignore_index"))  // else -inf is in the result, and -inf - -inf is NaN
          add("softmax_cross_entropy_stats", {x, label}, unwritten(stats_shape(shape, attrs)));
        add("softmax_cross_entropy_apply", {x, label, softmax_cross_entropy_stats}, unwritten({1}));
        add("softmax_cross_entropy_apply", {x, label, softmax_cross_entropy_stats}, sum);
        add("softmax_cross_entropy_grad_apply", {x, label, softmax_cross_entropy_stats}, unwritten(shape, type));
      }
    }
  }
  return calls;
}

}  // namespace

extern const OpCases softmax_cross_entropy_cases = {
    .rows = softmax_cross_entropy_rows(),
    .references = {{"softmax_cross_entropy",
                    [](const Inputs& in, const Attrs& attrs) { return Outputs{with_logit_grad(in, attrs)[0]}; }}},
    .rules = {{{"softmax_cross_entropy", {{{2, 3, 5}}, {{2, 3}, DType::i32}}}, "abc,ab->()", "", {{1}}, "c"}},
    .gradients = {{{"softmax_cross_entropy", {{{2, 5}}, {{2}, DType::i32}}},
                   {"softmax_cross_entropy_grad ac,a->ac"},
                   "each row is independent of the others; ranks exchange its sum over c"}},
    .shape_errors = {{{"softmax_cross_entropy", {{{2, 3}}, {{3}, DType::i32}}},
                      "softmax_cross_entropy: the label is [3] i32, expected [2]"},
                     {{"softmax_cross_entropy", {{{2, 3}}, {{2}}}},
                      "softmax_cross_entropy: the label is f32, expected i32"}},
    .kernels = softmax_cross_entropy_kernels(),
    .kernel_references = {{"softmax_cross_entropy_with_grad",
                           [](const NaiveCall& call) {
                             return with_logit_grad(call.in, call.attrs, double{call.scalars.label_weight});
                           }},
                          {"softmax_cross_entropy_stats", softmax_cross_entropy_stats},
                          {"softmax_cross_entropy_apply", softmax_cross_entropy_apply},
                          {"softmax_cross_entropy_grad_apply", softmax_cross_entropy_grad_apply}},
};

}  // namespace trainctl
