// einsum "bij,bjk->bik" as products of matrices: two operands at a time, from left to right, each pair transposed and
// reshaped to [shared letters.., m, k] and [shared letters.., k, n], and the product back to its letters. So a plan
// cuts it like a matmul. Letters that only one operand of a pair has, and neither a later operand nor the result, are
// summed first.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "engine/base/text.h"
#include "engine/ops/expect.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

struct Equation {
  std::vector<std::string> operands;
  std::string result;
};

/// Without an arrow the result has the letters that occur once, in the order of the alphabet, as in torch.einsum.
Equation parse_equation(const std::string& text) {
  Equation equation;
  std::string compact;
  for (const char c : text)
    if (c != ' ') compact += c;
  const size_t arrow = compact.find("->");
  const std::string sources = compact.substr(0, arrow);
  if (arrow != std::string::npos) {
    equation.result = compact.substr(arrow + 2);
  } else {
    for (const char c : sources)
      if (c != ',' && std::count(sources.begin(), sources.end(), c) == 1) equation.result += c;
    std::sort(equation.result.begin(), equation.result.end());
  }
  std::string operand;
  for (const char c : sources + ",") {
    if (c != ',') {
      operand += c;
    } else {
      equation.operands.push_back(operand);
      operand.clear();
    }
  }
  return equation;
}

bool are_letters(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
}

bool has_twice(std::string text) {
  std::sort(text.begin(), text.end());
  return std::adjacent_find(text.begin(), text.end()) != text.end();
}

/// The faults of an equation that can be found without shapes.
std::vector<FieldFault> einsum_faults(const Attrs& attrs) {
  const std::string text = attrs.text("equation");
  const Equation equation = parse_equation(text);
  const auto wrong = [](std::string message) {
    return std::vector<FieldFault>{{"equation", std::move(message), "e.g. 'bij,bjk->bik'"}};
  };
  std::string all;
  for (const std::string& operand : equation.operands) {
    if (operand.empty() || !are_letters(operand))
      return wrong("'" + operand + "' is not a list of letters, one for each dim");
    if (has_twice(operand)) return wrong("'" + operand + "' has a letter twice; diagonals are not supported");
    all += operand;
  }
  if (equation.result.empty() || !are_letters(equation.result))
    return wrong("the result '" + equation.result + "' is not a list of letters, one for each dim");
  if (has_twice(equation.result)) return wrong("the result '" + equation.result + "' has a letter twice");
  for (const char letter : equation.result)
    if (all.find(letter) == std::string::npos)
      return wrong(std::string("the result has the letter '") + letter + "', which no operand has");
  return {};
}

bool has_letter(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

/// The letters of `of` for which keep(letter) holds, in order.
template <class F>
std::string letters_for(const std::string& of, F keep) {
  std::string kept;
  std::copy_if(of.begin(), of.end(), std::back_inserter(kept), keep);
  return kept;
}

struct EinsumOperand {
  TensorId tensor = -1;
  std::string letters;
};

class Einsum {
 public:
  Einsum(LayerContext& layer, const Equation& equation) : b_(layer.builder), equation_(equation) {
    for (size_t i = 0; i < layer.inputs.size(); ++i) {
      operands_.push_back({layer.inputs[i], equation.operands[i]});
      const Shape& shape = b_.shape(layer.inputs[i]);
      if (shape.size() != equation.operands[i].size())
        throw ShapeError(fmt::format("the operand '{}' has {} letters, but input {} is {}", equation.operands[i],
                                     equation.operands[i].size(), i, to_string(shape)),
                         "equation");
      for (size_t d = 0; d < shape.size(); ++d) {
        const auto [size, added] = sizes_.emplace(equation.operands[i][d], shape[d]);
        if (size->second != shape[d])
          throw ShapeError(fmt::format("the letter '{}' stands for a dim of {} and for one of {}", size->first,
                                       size->second, shape[d]),
                           "equation");
      }
    }
  }

  TensorId emit() {
    EinsumOperand so_far = operands_[0];
    for (size_t i = 1; i < operands_.size(); ++i) so_far = product(so_far, operands_[i], i);
    const std::string kept = letters_for(so_far.letters, [&](char c) { return has_letter(equation_.result, c); });
    so_far = summed(so_far, kept, "sum");
    return ordered(so_far, equation_.result, "result").tensor;
  }

  int steps() const { return steps_; }  ///< nodes so far

 private:
  /// Emits a node. A raw operand that is read for the first time gets the factors of letters that are known.
  TensorId node(const char* op, const std::vector<EinsumOperand>& inputs, Attrs attrs, const std::string& name) {
    std::vector<TensorId> tensors;
    for (const EinsumOperand& input : inputs) {
      if (!read_.contains(input.tensor))
        for (size_t d = 0; d < input.letters.size(); ++d)
          if (const auto known = known_.find(input.letters[d]); known != known_.end())
            b_.share_factors(input.tensor, d, known->second.first, known->second.second);
      tensors.push_back(input.tensor);
    }
    const TensorId made = b_.emit(op, tensors, std::move(attrs), name)[0];
    ++steps_;
    for (const EinsumOperand& input : inputs)
      if (read_.emplace(input.tensor, true).second)
        for (size_t d = 0; d < input.letters.size(); ++d) known_.emplace(input.letters[d], std::pair(input.tensor, d));
    read_.emplace(made, true);
    return made;
  }

  EinsumOperand summed(const EinsumOperand& x, const std::string& kept, const std::string& name) {
    if (kept.size() == x.letters.size()) return x;
    Ints dims;
    for (size_t d = 0; d < x.letters.size(); ++d)
      if (!has_letter(kept, x.letters[d])) dims.push_back(static_cast<int64_t>(d));
    return {node("reduce_sum", {x}, {{"dims", dims}, {"keep_dims", false}, {"scale", 1.0}}, name), kept};
  }

  EinsumOperand ordered(const EinsumOperand& x, const std::string& wanted, const std::string& name) {
    if (x.letters == wanted) return x;
    Ints perm;
    for (const char letter : wanted) perm.push_back(static_cast<int64_t>(x.letters.find(letter)));
    return {node("transpose", {x}, {{"perm", perm}}, name), wanted};
  }

  Shape shape_of(const std::string& letters) const {
    Shape shape;
    for (const char letter : letters) shape.push_back(sizes_.at(letter));
    return shape;
  }

  /// Transposes and reshapes an operand to [batch.., rows, columns]. Rows and columns each merge any number of letters.
  TensorId matrices(const EinsumOperand& x, size_t batch, size_t rows, const std::string& name) {
    const Shape whole = shape_of(x.letters);
    const auto at = [&](size_t d) { return whole.begin() + static_cast<std::ptrdiff_t>(d); };
    Shape shape(whole.begin(), at(batch));
    shape.push_back(num_elements(Shape(at(batch), at(batch + rows))));
    shape.push_back(num_elements(Shape(at(batch + rows), whole.end())));
    if (shape == whole) return x.tensor;
    return node("reshape", {x}, {{"shape", shape}}, name);
  }

  EinsumOperand product(EinsumOperand a, EinsumOperand b, size_t number) {
    std::string later = equation_.result;
    for (size_t i = number + 1; i < operands_.size(); ++i) later += operands_[i].letters;
    const std::string n = number == 1 && operands_.size() == 2 ? "" : std::to_string(number);
    a = summed(a, letters_for(a.letters, [&](char c) { return has_letter(b.letters, c) || has_letter(later, c); }),
               "left_sum" + n);
    b = summed(b, letters_for(b.letters, [&](char c) { return has_letter(a.letters, c) || has_letter(later, c); }),
               "right_sum" + n);
    const std::string batch =
        letters_for(a.letters, [&](char c) { return has_letter(b.letters, c) && has_letter(later, c); });
    const std::string inner =
        letters_for(a.letters, [&](char c) { return has_letter(b.letters, c) && !has_letter(later, c); });
    const std::string rows = letters_for(a.letters, [&](char c) { return !has_letter(b.letters, c); });
    const std::string columns = letters_for(b.letters, [&](char c) { return !has_letter(a.letters, c); });
    // b is not transposed if the product can read it transposed.
    const bool transposed = b.letters == batch + columns + inner && !columns.empty() && !inner.empty();
    a = ordered(a, batch + rows + inner, "left" + n);
    if (!transposed) b = ordered(b, batch + inner + columns, "right" + n);
    const TensorId left = matrices(a, batch.size(), rows.size(), "left_matrix" + n);
    const TensorId right = matrices(b, batch.size(), transposed ? columns.size() : inner.size(), "right_matrix" + n);
    const EinsumOperand raw_left{left, left == a.tensor ? a.letters : ""},
        raw_right{right, right == b.tensor ? b.letters : ""};
    const TensorId made =
        node("matmul", {raw_left, raw_right}, {{"transpose_a", false}, {"transpose_b", transposed}}, "product" + n);
    EinsumOperand result{made, batch + rows + columns};
    const Shape shape = shape_of(result.letters);
    if (shape != b_.shape(made)) result.tensor = node("reshape", {{made, ""}}, {{"shape", shape}}, "whole" + n);
    return result;
  }

  LayerBuilder& b_;
  const Equation& equation_;
  std::vector<EinsumOperand> operands_;
  std::map<char, int64_t> sizes_;
  std::map<TensorId, bool> read_;                      ///< tensors that nodes of the layer have read or made
  std::map<char, std::pair<TensorId, size_t>> known_;  ///< a dim of a tensor of the layer with that letter
  int steps_ = 0;
};

/// Emits the nodes of the equation, after checking the number of inputs.
TensorId emit_einsum(LayerContext& layer) {
  const Equation equation = parse_equation(layer.attrs.text("equation"));
  if (equation.operands.size() != layer.inputs.size())
    throw ShapeError(fmt::format("the equation has {} operands, but the layer has {} inputs", equation.operands.size(),
                                 layer.inputs.size()),
                     "equation");
  for (size_t i = 0; i < layer.inputs.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (layer.inputs[i] == layer.inputs[j])
        shape_error("an einsum of a tensor with itself is not supported; put a reshape layer before one of the inputs");
  Einsum einsum(layer, equation);
  const TensorId result = einsum.emit();
  if (einsum.steps() == 0) throw ShapeError("the result is the input itself; remove the layer", "equation");
  // The last node has a name of its own, and the layer's output that of the layer.
  return layer.builder.emit("reshape", {result}, {{"shape", layer.builder.shape(result)}})[0];
}

}  // namespace

extern const LayerDef einsum_layer = {
    .name = "einsum",
    .doc =
        "Einstein summation of its inputs, like torch.einsum, computed as matrix products. Letters stand for dims, "
        "including the batch dim.",
    .fields = {text("equation",
                    "Letters of each input and of the result, e.g. 'bij,bjk->bik'. Without an arrow, the result has "
                    "the letters that occur exactly once, in alphabetical order.")
                   .required()},
    .max_inputs = 8,
    .faults = einsum_faults,
    .emit = emit_einsum,
};

extern const OpFamily einsum_family = {.ops = {}, .layers = {&einsum_layer}};

}  // namespace trainctl
