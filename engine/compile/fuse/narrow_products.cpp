// Products that lower_node marks with the attr fp8 take factors of 8 bits (ops/quantise/quantised.h):
//
//   before   y = matmul x w      ..   dx = matmul dy w    dw = matmul_weight_grad x dy
//   after    X = quantise x           D = quantise dy     dw = matmul_fp8 D.columns X.columns
//            W = quantise w      ..   dx = matmul_fp8 D.rows W.columns
//            y = matmul_fp8 X.rows W.rows
//
// A value is rounded once, right before the first product that reads it, into the forms that all its readers need: that
// of its rows, of its columns, or both. So a weight is rounded once per step, and of x only the 8 bits are kept for the
// backward pass. A value ends where its bytes are written again.
//
// A product stays in bf16 if this rank's parts of its factors have sizes that are not multiples of 16.
#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "engine/compile/order/accesses.h"
#include "engine/compile/passes.h"
#include "engine/ops/matmul/fp8_factors.h"
#include "engine/ops/quantise/quantise.h"

namespace trainctl {
namespace {

constexpr int64_t kUnit = 16;
constexpr size_t kForms = 2;  ///< a value scaled by its rows, and by its columns

/// A value that products read in 8 bits.
struct Value {
  BufferId buffer = -1;
  Operand operand;
  size_t first_reader = 0;
  bool is_weight = false;  ///< has one scale per square: the same numbers by rows and by columns
  bool needed[kForms] = {};
  View words[kForms], scales[kForms];
};

/// Instruction `product` reads these values.
struct NarrowProduct {
  size_t product = 0;
  size_t a = 0, b = 0;  ///< indices of values
  Fp8Factors factors;
};

class Narrowing {
 public:
  explicit Narrowing(Compiler& c) : c_(c) {
    for (const Tensor& tensor : c.graph.tensors)
      if (tensor.kind == TensorKind::parameter) weights_.insert(tensor.name);
  }

  void run() {
    for (size_t i = 0; i < c_.code.size(); ++i) {
      find_product(i);
      end_overwritten(c_.code[i]);
    }
    if (products_.empty()) return;
    std::vector<VirtualInstruction> before = std::move(c_.code);
    c_.code.clear();
    size_t next_product = 0, next_value = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      for (; next_value < values_.size() && values_[next_value].first_reader == i; ++next_value)
        quantise(values_[next_value], before[i].code);
      if (next_product < products_.size() && products_[next_product].product == i)
        narrow(products_[next_product++], before[i]);
      c_.code.push_back(std::move(before[i]));
    }
  }

 private:
  void find_product(size_t i) {
    const VirtualInstruction& v = c_.code[i];
    const KernelDef* kernel = kernel_of(v.code);
    if (kernel == nullptr || !v.code.attrs.flag("fp8")) return;
    const std::optional<Fp8Factors> factors = fp8_factors(*kernel, v.code.attrs);
    if (!factors || !fits(v.code.inputs[factors->a.input]) || !fits(v.code.inputs[factors->b.input])) {
      c_.code[i].code.attrs.erase("fp8");  // it stays in bf16, also for what estimates its time
      return;
    }
    products_.push_back({i, value_of(i, factors->a), value_of(i, factors->b), *factors});
  }

  static int64_t row_length(const Operand& o) { return o.shape.back(); }
  static int64_t rows(const Operand& o) { return num_elements(o.shape) / std::max<int64_t>(row_length(o), 1); }
  static bool fits(const Operand& o) {
    return num_elements(o.shape) > 0 && row_length(o) % kUnit == 0 && rows(o) % kUnit == 0;
  }

  /// The live value that a product reads, marked as needed in the factor's form.
  size_t value_of(size_t product, const Fp8Factor& factor) {
    const BufferId buffer = c_.code[product].inputs[factor.input];
    const Operand& operand = c_.code[product].code.inputs[factor.input];
    const auto is_same = [&](size_t v) {
      const Value& value = values_[v];
      return value.buffer == buffer && value.operand.offset == operand.offset &&
             value.operand.bytes() == operand.bytes() && row_length(value.operand) == row_length(operand);
    };
    auto at = std::find_if(live_.begin(), live_.end(), is_same);
    if (at == live_.end()) {
      live_.push_back(values_.size());
      at = live_.end() - 1;
      values_.push_back({buffer, operand, product, weights_.contains(operand.tensor), {}, {}, {}});
    }
    values_[*at].needed[factor.columns ? 1 : 0] = true;
    return *at;
  }

  void end_overwritten(const VirtualInstruction& v) {
    const std::vector<MemoryAccess> all = accesses(v.code);
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i].writes) continue;
      const BufferId buffer = i < v.inputs.size() ? v.inputs[i] : v.outputs[i - v.inputs.size()];
      std::erase_if(live_, [&](size_t live) {
        const Operand &value = values_[live].operand, &written = *all[i].operand;
        return values_[live].buffer == buffer && written.reach_begin() < value.reach_end() &&
               value.reach_begin() < written.reach_end();
      });
    }
  }

  View new_operand(const Value& value, const TensorInfo& info, const char* what) {
    Operand o;
    o.shape = o.global_shape = info.shape;
    o.global_offset.assign(info.shape.size(), 0);
    o.dtype = info.dtype;
    o.tensor = value.operand.tensor + what;
    return {c_.new_buffer(value.is_weight ? BufferKind::scratch : BufferKind::activation, o.bytes()), std::move(o)};
  }

  /// Emits its rounding, as a part of the task of its first reader.
  void quantise(Value& value, const Instruction& reader) {
    static constexpr const char* kWords[kForms] = {".rows", ".columns"};
    static constexpr const char* kScales[kForms] = {".rows.scales", ".columns.scales"};
    Instruction i;
    i.name = "quantise " + value.operand.tensor;
    i.op = quantise_kernel.name;
    if (value.needed[0]) i.attrs.set("rows", true);
    if (value.needed[1]) i.attrs.set("columns", true);
    if (value.is_weight) i.attrs.set("squares", true);
    i.phase = reader.phase;
    i.micro_batch = is_persistent(c_.buffers[value.buffer].kind) ? -1 : reader.micro_batch;
    i.chunk = reader.chunk;
    i.weight_gradients = reader.weight_gradients;
    i.recompute = reader.recompute;
    const TensorInfo x{value.operand.shape, value.operand.dtype};
    const std::vector<TensorInfo> infos = quantised(std::span(&x, 1), i.attrs);
    std::vector<View> outputs;
    for (size_t form = 0; form < kForms; ++form) {
      if (!value.needed[form]) continue;
      value.words[form] = new_operand(value, infos[outputs.size()], kWords[form]);
      outputs.push_back(value.words[form]);
      value.scales[form] = new_operand(value, infos[outputs.size()], kScales[form]);
      outputs.push_back(value.scales[form]);
    }
    c_.emit(std::move(i), {{value.buffer, value.operand}}, outputs);
  }

  void narrow(const NarrowProduct& p, VirtualInstruction& v) {
    v.inputs.clear();
    v.code.inputs.clear();
    const auto add = [&](const Value& value, const Fp8Factor& factor) {
      const size_t form = factor.columns ? 1 : 0;
      for (const View* view : {&value.words[form], &value.scales[form]}) {
        v.inputs.push_back(view->buffer);
        v.code.inputs.push_back(view->operand);
      }
      return value.is_weight;
    };
    Attrs attrs{{"fp8", true}};
    if (add(values_[p.a], p.factors.a)) attrs.set("a_squares", true);
    if (add(values_[p.b], p.factors.b)) attrs.set("b_squares", true);
    v.code.attrs = std::move(attrs);
    v.code.op = matmul_fp8_kernel.name;
  }

  Compiler& c_;
  std::set<std::string> weights_;
  std::vector<Value> values_;  ///< in the order of their first readers
  std::vector<size_t> live_;   ///< values whose bytes are as they were read
  std::vector<NarrowProduct> products_;
};

}  // namespace

void narrow_products(Compiler& c) {
  if (c.plan.numerics.fp8) Narrowing(c).run();
}

}  // namespace trainctl
