// A chain of element-wise ops, one block at a time: intermediate values stay in the L1 cache.
#include <algorithm>
#include <array>
#include <memory>

#include "engine/base/error.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/elementwise/expression.h"
#include "engine/ops/elementwise/spans_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

/// Elements per block; the values of the stack and of the names then take 12 KiB, less than the L1 cache.
constexpr int64_t kBlock = 512;

/// The loop of an op with one operand; null if the op has another number of operands.
cpu::Span1 span_of_one(ElementwiseOp op) {
  switch (op) {
    case ElementwiseOp::relu:
      return cpu::relu_span;
    case ElementwiseOp::sigmoid:
      return cpu::sigmoid_span;
    case ElementwiseOp::tanh:
      return cpu::tanh_span;
    case ElementwiseOp::gelu:
      return cpu::gelu_span;
    case ElementwiseOp::gelu_tanh:
      return cpu::gelu_tanh_span;
    default:
      return nullptr;
  }
}

/// The loop of an op with two operands; null if the op has another number of operands.
cpu::Span2 span_of_two(ElementwiseOp op) {
  switch (op) {
    case ElementwiseOp::add:
      return cpu::add_span;
    case ElementwiseOp::sub:
      return cpu::sub_span;
    case ElementwiseOp::mul:
      return cpu::mul_span;
    case ElementwiseOp::div:
      return cpu::div_span;
    case ElementwiseOp::relu_grad:
      return cpu::relu_grad_span;
    case ElementwiseOp::sigmoid_grad:
      return cpu::sigmoid_grad_span;
    case ElementwiseOp::tanh_grad:
      return cpu::tanh_grad_span;
    case ElementwiseOp::gelu_grad:
      return cpu::gelu_grad_span;
    case ElementwiseOp::gelu_tanh_grad:
      return cpu::gelu_tanh_grad_span;
    default:
      return nullptr;
  }
}

/// Returns the number of values that a token pops; 0 for tokens that are not functions.
int operands_of(ElementwiseOp op) {
  if (op == ElementwiseOp::where) return 3;
  if (op == ElementwiseOp::unary_grad || op == ElementwiseOp::masked_fill || span_of_two(op) != nullptr) return 2;
  return op == ElementwiseOp::unary || op == ElementwiseOp::dropout || span_of_one(op) != nullptr ? 1 : 0;
}

/// Runs a token that is a function other than dropout. `in`: its operands; the top of the stack is the last one.
void run_function(const ElementwiseToken& token, const float* const* in, float* y, int64_t n) {
  const UnaryParameters p = token.parameters;
  switch (token.op) {
    case ElementwiseOp::unary:
      return cpu::unary_span(token.function, in[0], y, n, p);
    case ElementwiseOp::unary_grad:
      return cpu::unary_grad_span(token.function, in[0], in[1], y, n, p);
    case ElementwiseOp::where:
      return cpu::where_span(in[0], in[1], in[2], y, n);
    case ElementwiseOp::masked_fill:
      return cpu::masked_fill_span(in[0], in[1], y, n, p.a, p.b != 0);
    default:
      if (const cpu::Span1 one = span_of_one(token.op)) return one(in[0], y, n);
      span_of_two(token.op)(in[0], in[1], y, n);
  }
}

class Evaluator {
 public:
  explicit Evaluator(const KernelCall& call)
      : tokens_(parse_expression(call.attrs.text("expression"))), threads_(call.threads) {
    for (const TensorArg& in : call.in) inputs_.push_back({in.as<float>(), in.size()});
    for (const TensorArg& out : call.out) outputs_.push_back({out.as<float>(), out.accumulate});
    elements_ = call.out[0].size();
    columns_ = call.out[0].shape.empty() ? 1 : call.out[0].shape.back();
    for (const ElementwiseToken& token : tokens_) {
      if (token.op == ElementwiseOp::dropout) drops_.emplace_back(call, call.out[0], token.p, token.key, token.batch);
      check(token.op != ElementwiseOp::input || inputs_.at(static_cast<size_t>(token.index)).elements == elements_,
            "an x input is as large as the output");
    }
  }

  void run() const {
    const int64_t blocks = (elements_ + kBlock - 1) / kBlock;
    cpu::over_range(threads_, blocks, cpu::kElementsPerThread / kBlock, [this](int64_t begin, int64_t end) {
      Values values;
      for (int64_t first = begin * kBlock; first < std::min(end * kBlock, elements_); first += kBlock)
        run_block(first, std::min(kBlock, elements_ - first), values);
    });
  }

 private:
  struct Input {
    const float* data;
    int64_t elements;
  };
  struct Output {
    float* data;
    bool accumulate;
  };
  using Block = std::array<float, kBlock>;

  /// The blocks of one thread: intermediate values, by depth of the stack and by name.
  struct Values {
    std::array<Block, kMostElementwiseDepth> blocks;
    std::array<Block, kMostElementwiseNames> names;
  };

  /// The stack holds pointers to values: into an input, or to the block of that depth.
  void run_block(int64_t first, int64_t n, Values& values) const {
    const float* stack[kMostElementwiseDepth];
    int depth = 0;
    size_t drop = 0;
    for (const ElementwiseToken& token : tokens_) {
      const int operands = operands_of(token.op), place = depth - operands;
      float* here = values.blocks[static_cast<size_t>(std::min(place, kMostElementwiseDepth - 1))].data();
      if (token.op == ElementwiseOp::dropout) {
        drops_[drop++].run(first, stack[place], here, n);
        stack[place] = here;
      } else if (operands > 0) {
        run_function(token, stack + place, here, n);
        stack[place] = here;
        depth = place + 1;
      } else if (token.op == ElementwiseOp::input) {
        stack[depth++] = inputs_[static_cast<size_t>(token.index)].data + first;
      } else if (token.op == ElementwiseOp::row) {
        stack[depth++] = row(inputs_[static_cast<size_t>(token.index)], first, n, here);
      } else if (is_product(token.op)) {
        product(token, first, n, here);
        stack[depth++] = here;
      } else if (token.op == ElementwiseOp::name) {
        std::copy_n(stack[depth - 1], n, values.names[static_cast<size_t>(token.index)].data());
      } else if (token.op == ElementwiseOp::named) {
        stack[depth++] = values.names[static_cast<size_t>(token.index)].data();
      } else {
        write(outputs_[static_cast<size_t>(token.index)], first, stack[--depth], n);
      }
    }
  }

  /// Elements from `first` on of an input that repeats: in place if the block does not cross its end.
  static const float* row(const Input& in, int64_t first, int64_t n, float* block) {
    const int64_t at = first % in.elements;
    if (at + n <= in.elements) return in.data + at;
    for (int64_t i = 0, from = at; i < n; ++i, from = from + 1 == in.elements ? 0 : from + 1) block[i] = in.data[from];
    return block;
  }

  /// Elements from `first` on of a product, row by row.
  void product(const ElementwiseToken& token, int64_t first, int64_t n, float* block) const {
    const Input &p = inputs_[static_cast<size_t>(token.index)], &q = inputs_[static_cast<size_t>(token.index) + 1];
    const int64_t terms = q.elements / columns_;
    for (int64_t i = 0; i < n;) {
      const int64_t row = (first + i) / columns_, column = (first + i) % columns_;
      const int64_t count = std::min(n - i, columns_ - column);
      const float* const left = p.data + row * terms;
      if (token.op == ElementwiseOp::product_nr) {
        for (int64_t j = 0; j < count; ++j) block[i + j] = dot(left, q.data + (column + j) * terms, terms);
      } else {
        std::fill_n(block + i, count, 0.0f);
        for (int64_t k = 0; k < terms; ++k)
          for (int64_t j = 0; j < count; ++j) block[i + j] += left[k] * q.data[k * columns_ + column + j];
      }
      i += count;
    }
  }

  static float dot(const float* a, const float* b, int64_t n) {
    float sum = 0;
    for (int64_t k = 0; k < n; ++k) sum += a[k] * b[k];
    return sum;
  }

  static void write(const Output& out, int64_t first, const float* value, int64_t n) {
    float* to = out.data + first;
    if (out.accumulate)
      cpu::add_span(to, value, to, n);
    else
      std::copy_n(value, n, to);
  }

  std::vector<ElementwiseToken> tokens_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::vector<cpu::Dropout> drops_;
  int64_t elements_ = 0, columns_ = 1;
  int threads_ = 1;
};

CpuKernel prepare_elementwise(const KernelCall& call) {
  return [evaluator = std::make_shared<Evaluator>(call)] { evaluator->run(); };
}

}  // namespace

extern const CpuKernels elementwise_cpu = {{"elementwise", prepare_elementwise}};

}  // namespace trainctl
