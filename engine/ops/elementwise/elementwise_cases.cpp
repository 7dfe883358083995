// Cases of elementwise: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include <fmt/format.h>

#include <cmath>

#include "engine/ops/elementwise/expression.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

double slope_of_result(ElementwiseOp op, double y) {
  if (op == ElementwiseOp::relu_grad) return y > 0 ? 1.0 : 0.0;
  return op == ElementwiseOp::sigmoid_grad ? y * (1 - y) : 1 - y * y;
}

/// Computes an op of one operand.
double of_one(ElementwiseOp op, double x) {
  switch (op) {
    case ElementwiseOp::relu:
      return activated(Activation::relu, x);
    case ElementwiseOp::gelu:
      return activated(Activation::gelu, x);
    case ElementwiseOp::gelu_tanh:
      return activated(Activation::gelu_tanh, x);
    case ElementwiseOp::sigmoid:
      return 1 / (1 + std::exp(-x));
    default:
      return std::tanh(x);
  }
}

/// Computes an op of two operands. `b` was on top of the stack.
double of_two(ElementwiseOp op, double a, double b) {
  switch (op) {
    case ElementwiseOp::add:
      return a + b;
    case ElementwiseOp::sub:
      return a - b;
    case ElementwiseOp::mul:
      return a * b;
    case ElementwiseOp::div:
      return a / b;
    case ElementwiseOp::gelu_grad:
      return a * slope_at(Activation::gelu, b);
    case ElementwiseOp::gelu_tanh_grad:
      return a * slope_at(Activation::gelu_tanh, b);
    default:
      return a * slope_of_result(op, b);
  }
}

bool takes_two(ElementwiseOp op) {
  return (op >= ElementwiseOp::add && op <= ElementwiseOp::div) ||
         (op >= ElementwiseOp::relu_grad && op <= ElementwiseOp::gelu_tanh_grad);
}

/// The attrs of the op of kUnary that a token names; the numbers of the token are in the order of the attrs.
Attrs attrs_of(const ElementwiseToken& token) {
  Attrs attrs;
  const auto& [a, b] = unary_def(token.function).parameters;
  if (a.name != nullptr) attrs.set(a.name, double{token.parameters.a});
  if (b.name != nullptr) attrs.set(b.name, double{token.parameters.b});
  return attrs;
}

/// The gradient of a function of one number. `at`: y for exp, sqrt and softcap, whose gradients read y; x for all
/// others.
double unary_grad(const ElementwiseToken& token, double dy, double at) {
  if (token.function == Unary::exp) return dy * at;
  if (token.function == Unary::sqrt) return dy / (2 * at);
  if (token.function == Unary::softcap) return dy * (1 - std::pow(at / token.parameters.a, 2));
  return dy * naive::unary_slope(unary_def(token.function).name, attrs_of(token), at);
}

/// Computes one element of all outputs.
void run_element(const std::vector<ElementwiseToken>& tokens, const NaiveCall& call, size_t i, Outputs& out) {
  std::vector<double> stack, named(kMostElementwiseNames);
  const auto pop = [&] {
    const double top = stack.back();
    stack.pop_back();
    return top;
  };
  for (const ElementwiseToken& t : tokens) {
    if (t.op == ElementwiseOp::input || t.op == ElementwiseOp::row) {
      const std::vector<double>& values = call.in[t.index].values;
      stack.push_back(values[i % values.size()]);
    } else if (is_product(t.op)) {
      const std::vector<double>&p = call.in[t.index].values, &q = call.in[t.index + 1].values;
      const size_t columns = static_cast<size_t>(out[0].shape.back()), terms = q.size() / columns;
      const bool nr = t.op == ElementwiseOp::product_nr;
      double sum = 0;
      for (size_t k = 0; k < terms; ++k)
        sum += p[i / columns * terms + k] * q[nr ? i % columns * terms + k : k * columns + i % columns];
      stack.push_back(sum);
    } else if (t.op == ElementwiseOp::name) {
      named[t.index] = stack.back();
    } else if (t.op == ElementwiseOp::named) {
      stack.push_back(named[t.index]);
    } else if (t.op == ElementwiseOp::output) {
      out[t.index].values[i] = pop();
    } else if (t.op == ElementwiseOp::dropout) {
      const double x = pop();
      const size_t run = out[0].values.size() / static_cast<size_t>(t.batch.outer);
      const size_t in_batch = i / run * run * static_cast<size_t>(t.batch.micro_batches) + i % run;
      stack.push_back(keeps(t.p, t.key, 0, call.scalars.step, in_batch) ? x / (1 - t.p) : 0.0);
    } else if (t.op == ElementwiseOp::unary) {
      stack.push_back(unary(unary_def(t.function).name, attrs_of(t), pop()));
    } else if (t.op == ElementwiseOp::unary_grad) {
      const double at = pop(), dy = pop();
      stack.push_back(unary_grad(t, dy, at));
    } else if (t.op == ElementwiseOp::where) {
      const double b = pop(), a = pop(), condition = pop();
      stack.push_back(condition != 0 ? a : b);
    } else if (t.op == ElementwiseOp::masked_fill) {
      const double mask = pop(), x = pop();
      stack.push_back((mask != 0) != (t.parameters.b != 0) ? double{t.parameters.a} : x);
    } else if (takes_two(t.op)) {
      const double b = pop(), a = pop();
      stack.push_back(of_two(t.op, a, b));
    } else {
      stack.push_back(of_one(t.op, pop()));
    }
  }
}

Outputs chain(const NaiveCall& call) {
  const std::vector<ElementwiseToken> tokens = parse_expression(call.attrs.text("expression"));
  Outputs out = call.before;
  for (size_t i = 0; i < out[0].values.size(); ++i) run_element(tokens, call, i, out);
  return out;
}

/// Chains with products, as adapters have them: in[1], in[2] and the like are factors.
void add_products(std::vector<KernelCase>& calls) {
  struct Sizes {
    Shape rows;
    int64_t n, r;
  };
  for (const Sizes& s : {Sizes{{3}, 32, 16}, Sizes{{2, 19}, 288, 16}, Sizes{{130}, 64, 32}, Sizes{{21}, 160, 64},
                         Sizes{{5}, 37, 4}, Sizes{{2, 3}, 48, 8}}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const auto with = [&](int64_t columns) {
        Shape shape = s.rows;
        shape.push_back(columns);
        return shape;
      };
      const CaseOperand x{.shape = with(s.n), .dtype = type}, p{.shape = with(s.r), .dtype = type};
      const CaseOperand l{.shape = {s.n, s.r}, .dtype = type}, m{.shape = {s.r, s.n}, .dtype = type};
      const CaseOperand out = unwritten(with(s.n), type);
      const auto add = [&](std::vector<CaseOperand> in, std::vector<CaseOperand> written,
                           const std::string& expression) {
        calls.push_back({"elementwise",
                         std::move(in),
                         std::move(written),
                         {{"expression", expression}},
                         type == DType::bf16 ? 3e-2 : 1e-5});
        calls.back().f32_on_cpu = type == DType::bf16;
      };
      add({p, l}, {out}, "l0 =0");
      add({x, p, m}, {out}, "x0 m1 + =0");
      add({x, p, l, x}, {out}, "x0 l1 + x3 + =0");
      add({x, p, l, x, p, l}, {out}, "x0 l1 + silu x3 l4 + * =0");
      add({x, p, l, x, p, l, x}, {out, out}, "x6 x0 l1 + :0 silu * =0 x6 x3 l4 + * $0 silu_grad =1");
      add({x, p, m, x, p, l, x, p, l}, {out, out}, "x0 m1 + :0 x3 l4 + :1 silu * =0 $0 x6 l7 + * $1 silu_grad =1");
      add({x, p, m, x}, {out}, "x0 m1 + tanh x3 gelu * =0");
    }
  }
}

std::vector<KernelCase> elementwise_kernels() {
  struct Sizes {
    int64_t n, row;
  };
  std::vector<KernelCase> calls;
  add_products(calls);
  for (const Sizes& s :
       {Sizes{1, 1}, Sizes{111, 37}, Sizes{4096, 64}, Sizes{70000, 8}, Sizes{69989, 3043}, Sizes{8192, 8192}}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const bool bf16 = type == DType::bf16;
      const CaseOperand x{.shape = {s.n}, .dtype = type}, row{.shape = {s.row}, .dtype = type};
      const CaseOperand sum{.shape = {s.n}, .dtype = type, .accumulate = true}, out = unwritten({s.n}, type);
      const auto add = [&](std::vector<CaseOperand> in, std::vector<CaseOperand> written, const std::string& expression,
                           double tolerance) {
        calls.push_back(
            {"elementwise", std::move(in), std::move(written), {{"expression", expression}}, tolerance, {.step = 5}});
        calls.back().f32_on_cpu = bf16;
      };
      const double tolerance = bf16 ? 1e-2 : 5e-6;
      add({x, row, x}, {out}, "x0 b1 + relu x2 * =0", tolerance);
      add({x, x}, {out, out}, "x0 x1 + :0 =0 $0 gelu =1", tolerance);
      // These expressions have kernels of their own on a GPU.
      add({x, x, x}, {out}, "x0 x1 + x2 relu_grad =0", tolerance);
      add({x, x, x}, {sum}, "x0 x1 + x2 relu_grad =0", bf16 ? 3e-2 : tolerance);
      add({x, x}, {out}, "x0 silu x1 * =0", tolerance);
      add({x, x}, {out, out}, "x0 silu :0 =0 $0 x1 * =1", tolerance);
      add({x, x, x}, {out}, "x0 x1 * x2 silu_grad =0", tolerance);
      add({x, x, x}, {out}, "x0 x1 gelu_grad x2 sigmoid_grad x1 tanh_grad =0", tolerance);
      add({x, x, x, x}, {out}, "x0 sigmoid :0 x1 tanh x2 gelu_tanh x3 relu_grad * $0 + + =0", tolerance);
      add({x, x}, {out}, "x0 dropout(0.3,7) x1 + dropout(0.5,-9) =0", tolerance);
      add({x, x}, {out}, fmt::format("x0 dropout(0.3,7,3,0,{}) x1 + =0", s.n / s.row), tolerance);
      add({x, x}, {sum}, "x0 x1 gelu_tanh_grad =0", bf16 ? 3e-2 : tolerance);
      add({x, x, row}, {out, out}, "x0 silu :0 x1 - =0 $0 b2 exp / =1", tolerance);
      add({x, x, x}, {out}, "x0 relu x1 clip(-0.5,0.5) x2 leaky_relu(0.2) where x0 relu masked_fill(0.25,1) =0",
          tolerance);
      add({x, x}, {out}, "x0 softplus(2,20) sqrt x1 abs scale(-1.5,0.125) + pow(2) scale(1,0.5) log =0", tolerance);
      add({x, x}, {out}, "x0 quick_gelu x1 quick_gelu_grad x1 softcap(2) softcap_grad(2) softcap(0.5) =0", tolerance);
      add({x, x}, {out}, "x0 elu(0.6) selu x1 mish + hardswish hardsigmoid softsign log_sigmoid sin cos =0", tolerance);
      add({x, x}, {out}, "x0 x1 elu_grad(0.6) x1 selu_grad x1 mish_grad x1 hardswish_grad x1 hardsigmoid_grad =0",
          tolerance);
      add({x, x}, {out}, "x0 x1 softsign_grad x1 log_sigmoid_grad x1 sin_grad x1 cos_grad =0", tolerance);
      add({x, x}, {out}, "x0 x1 silu_grad x1 softplus_grad(1,20) x1 exp exp_grad x1 abs_grad =0", tolerance);
      add({x, x}, {out},
          "x0 x1 clip_grad(-inf,0.3) x1 pow_grad(3) x1 exp log_grad x1 exp sqrt_grad x1 leaky_relu_grad(0.1) =0",
          tolerance);
    }
  }
  return calls;
}

}  // namespace

extern const OpCases elementwise_cases = {.kernels = elementwise_kernels(),
                                          .kernel_references = {{"elementwise", chain}}};

}  // namespace trainctl
