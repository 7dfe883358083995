// Cases of unary: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "engine/ops/unary/unary.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

template <Unary kFunction>
naive::Outputs reference(const naive::Inputs& in, const Attrs& attrs) {
  return naive::map(in, [&](double x) { return naive::unary(unary_def(kFunction).name, attrs, x); });
}

std::vector<OpCase> unary_rows() {
  const std::vector<std::pair<const char*, Attrs>> functions = {{"silu", {}},
                                                                {"leaky_relu", {}},
                                                                {"leaky_relu", {{"negative_slope", 0.2}}},
                                                                {"softplus", {}},
                                                                {"softplus", {{"beta", 2.5}, {"threshold", 1.5}}},
                                                                {"clip", {{"min", -0.502}, {"max", 0.752}}},
                                                                {"clip", {{"max", 0.251}}},
                                                                {"abs", {}},
                                                                {"exp", {}},
                                                                {"softcap", {{"cap", 0.8}}},
                                                                {"quick_gelu", {}},
                                                                {"elu", {}},
                                                                {"selu", {}},
                                                                {"mish", {}},
                                                                {"hardswish", {}},
                                                                {"hardsigmoid", {}},
                                                                {"softsign", {}},
                                                                {"log_sigmoid", {}},
                                                                {"sin", {}},
                                                                {"cos", {}},
                                                                {"elu", {{"alpha", 0.6}}},
                                                                {"scale", {{"factor", -2.5}, {"shift", 0.5}}}};
  std::vector<OpCase> unary_rows;
  for (const Shape& shape : {Shape{1}, Shape{6, 7}, Shape{4, 3, 31}}) {
    for (const auto& [op, attrs] : functions) unary_rows.push_back({op, {{shape}}, attrs, {shape}});
    for (const char* op : {"log", "sqrt"}) unary_rows.push_back({op, {positive(shape)}, {}, {shape}});
    for (const double exponent : {2.0, 3.0, 4.0, 0.0, 1.0})
      unary_rows.push_back({"pow", {{shape}}, {{"exponent", exponent}}, {shape}});
    for (const double exponent : {0.5, 1.5, -0.5, -1.0, -2.0, 2.7})
      unary_rows.push_back({"pow", {positive(shape)}, {{"exponent", exponent}}, {shape}});
  }
  return unary_rows;
}

/// The reference of each function, in double precision.
std::vector<Reference> references() {
  return {{"silu", reference<Unary::silu>},
          {"leaky_relu", reference<Unary::leaky_relu>},
          {"softplus", reference<Unary::softplus>},
          {"clip", reference<Unary::clip>},
          {"abs", reference<Unary::abs>},
          {"exp", reference<Unary::exp>},
          {"log", reference<Unary::log>},
          {"sqrt", reference<Unary::sqrt>},
          {"pow", reference<Unary::pow>},
          {"scale", reference<Unary::scale>},
          {"softcap", reference<Unary::softcap>},
          {"quick_gelu", reference<Unary::quick_gelu>},
          {"elu", reference<Unary::elu>},
          {"selu", reference<Unary::selu>},
          {"mish", reference<Unary::mish>},
          {"hardswish", reference<Unary::hardswish>},
          {"hardsigmoid", reference<Unary::hardsigmoid>},
          {"softsign", reference<Unary::softsign>},
          {"log_sigmoid", reference<Unary::log_sigmoid>},
          {"sin", reference<Unary::sin>},
          {"cos", reference<Unary::cos>}};
}

std::vector<RuleCase> unary_rules() {
  std::vector<RuleCase> unary_rules;
  for (const UnaryDef& def : kUnary) unary_rules.push_back({{def.name, {{{2, 3}}}}, "ab->ab", "", {{2, 3}}});
  return unary_rules;
}

std::vector<GradientCase> unary_gradients() {
  std::vector<GradientCase> unary_gradients;
  for (const UnaryDef& def : kUnary) {
    const bool of_dy = def.name == std::string("scale");
    unary_gradients.push_back({{def.name, {{{2, 3}}}},
                               {std::string(def.grad_name) + (of_dy ? " ab->ab" : " ab,ab->ab")},
                               of_dy ? "a multiple of dy" : "element by element"});
  }
  return unary_gradients;
}

}  // namespace

extern const OpCases unary_cases = {
    .rows = unary_rows(),
    .references = references(),
    .rules = unary_rules(),
    .gradients = unary_gradients(),
    .shape_errors = {{{"silu", {{{2}, DType::i32}}}, "silu expects f32, but got [2] i32"},
                     {{"pow", {{{2}}, {{2}}}}, "pow takes 1 input, but got 2"}},
    .layers = {{"silu", "", {8, 12}},
               {"leaky_relu", ", negative_slope: 0.2", {8, 12}},
               {"softplus", ", beta: 2", {8, 12}},
               {"clip", ", min: 0, max: 6", {8, 12}},
               {"abs", "", {8, 12}},
               {"exp", "", {8, 12}},
               {"log", "", {8, 12}},
               {"sqrt", "", {8, 12}},
               {"pow", ", exponent: 2", {8, 12}},
               {"scale", ", factor: 0.125", {8, 12}},
               {"softcap", ", cap: 30", {8, 12}},
               {"quick_gelu", "", {8, 12}},
               {"elu", ", alpha: 0.6", {8, 12}},
               {"selu", "", {8, 12}},
               {"mish", "", {8, 12}},
               {"hardswish", "", {8, 12}},
               {"hardsigmoid", "", {8, 12}},
               {"softsign", "", {8, 12}},
               {"log_sigmoid", "", {8, 12}},
               {"sin", "", {8, 12}},
               {"cos", "", {8, 12}}},
};

}  // namespace trainctl
