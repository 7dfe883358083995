// Converts the products that lower_node marks with the attr fp8 to 8-bit operands (ops/quantise/quantised.h):
//
//   before   y = matmul x w      ..   dx = matmul dy w    dw = matmul_weight_grad x dy
//   after    X = quantise x           D = quantise dy     dw = matmul_fp8 D.columns X.columns
//            W = quantise w      ..   dx = matmul_fp8 D.rows W.columns
//            y = matmul_fp8 X.rows W.rows
//
// A value is rounded once, right before the first product that reads it, with one scale per row, per column, or both,
// as its readers need. So a weight is rounded once per step, and only the 8-bit copy of x is kept for the backward
// pass. A value ends where its bytes are overwritten.
//
// A product stays in bf16 if the sizes of this rank's parts of its operands are not multiples of 16.
//
// With the recipes tensor and delayed, a value has one scale, which is the same on all ranks
// (ops/quantise/tensor_scale.h):
//
//   tensor    m = amax x; all_gather m over the ranks of the stage, if they have parts of x; X = quantise x, m
//   delayed   amax x -> state; X = quantise x, state      at the end of the step: all_gather, update_fp8_scale
//
// An evaluation keeps no state and uses the recipe tensor instead of delayed.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "engine/compile/fp8_states.h"
#include "engine/compile/order/accesses.h"
#include "engine/compile/passes.h"
#include "engine/ops/fp8_scale/fp8_scale.h"
#include "engine/ops/matmul/fp8_factors.h"
#include "engine/ops/quantise/quantise.h"
#include "engine/ops/quantise/tensor_scale.h"

namespace trainctl {
namespace {

constexpr int64_t kUnit = 16;
constexpr size_t kForms = 2;  ///< number of 8-bit forms of a value: 0 has one scale per row, 1 one scale per column

/// A value that products read in 8 bits.
struct Value {
  BufferId buffer = -1;
  Operand operand;
  size_t first_reader = 0;
  TensorId tensor = -1;    ///< in the graph, as its first reader names it
  bool is_weight = false;  ///< a weight has one scale per square block, so both forms contain the same numbers
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
    for (size_t n = 0; n < c.graph.nodes.size(); ++n) nodes_.emplace(c.graph.nodes[n].name, n);
    if (c.plan.numerics.fp8->recipe == Fp8Recipe::delayed && c.trains()) note_states();
  }

  /// Finds all products in 8 bits and the values that they read. Then rewrites the list: each value is rounded before
  /// its first reader, and each product becomes matmul_fp8.
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
    for (const auto& [tensor, state] : states_) update_scale(tensor, state);
  }

 private:
  void find_product(size_t i) {
    const VirtualInstruction& v = c_.code[i];
    const KernelDef* kernel = kernel_of(v.code);
    if (kernel == nullptr || !v.code.attrs.flag("fp8")) return;
    const std::optional<Fp8Factors> factors = fp8_factors(*kernel, v.code.attrs);
    if (!factors || !fits(v.code.inputs[factors->a.input]) || !fits(v.code.inputs[factors->b.input])) {
      c_.code[i].code.attrs.erase("fp8");  // the product stays in bf16, also for estimates of its time
      return;
    }
    products_.push_back({i, value_of(i, factors->a), value_of(i, factors->b), *factors});
  }

  static int64_t row_length(const Operand& o) { return o.shape.back(); }
  static int64_t rows(const Operand& o) { return num_elements(o.shape) / std::max<int64_t>(row_length(o), 1); }
  static bool fits(const Operand& o) {
    return num_elements(o.shape) > 0 && row_length(o) % kUnit == 0 && rows(o) % kUnit == 0;
  }

  /// Returns the live value that a product reads, and marks the form of the factor as needed.
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
      const TensorId tensor = c_.graph.nodes[nodes_.at(c_.code[product].code.name)].inputs[factor.input];
      values_.push_back({buffer, operand, product, tensor, weights_.contains(operand.tensor), {}, {}, {}});
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

  bool is_gradient(const Value& value) const {
    return c_.graph.tensors[static_cast<size_t>(value.tensor)].kind == TensorKind::gradient;
  }

  // ---- one scale for a tensor

  bool has_one_scale() const { return c_.plan.numerics.fp8->recipe != Fp8Recipe::block; }
  /// Gradients with one scale per tensor are E5M2.
  bool is_e5m2(const Value& value) const { return has_one_scale() && is_gradient(value); }

  View number(BufferId buffer, int64_t at, std::string name, int64_t count = 1) const {
    View view = c_.flat(buffer, 0, count, std::move(name));
    view.operand.offset = at;
    return view;
  }
  View new_numbers(int64_t count, std::string name) {
    return number(c_.new_buffer(BufferKind::scratch, count * byte_size(DType::f32)), 0, std::move(name), count);
  }

  void note_states() {
    for (size_t s = 0; s < c_.program.other_states.size(); ++s) {
      const OtherState& state = c_.program.other_states[s];
      if (state.slot != kFp8Slot) continue;
      const auto [buffer, at] = c_.other_states[s];
      states_.emplace(*c_.graph.find_tensor(state.variable.name),
                      number(buffer, at, state.slot + "." + state.variable.name, state.variable.shape[0]));
    }
  }
  static View part_of_state(const View& state, int64_t place) {
    View part = state;
    part.operand.shape = part.operand.global_shape = {1};
    part.operand.offset += place * byte_size(DType::f32);
    return part;
  }

  std::vector<int> ranks_of_stage() const {
    std::vector<int> ranks;
    for (int r = 0; r < c_.plan.mesh.size(); ++r) ranks.push_back(c_.global_rank(c_.stage, r));
    return ranks;
  }

  /// Gathers `own`, a number of this rank, over the ranks of the stage. With a single rank, returns `own` itself.
  View gathered(const View& own, const Instruction& like) {
    const std::vector<int> ranks = ranks_of_stage();
    if (ranks.size() == 1) return own;
    Instruction i = like;
    i.opcode = Opcode::collective;
    i.name = "all_gather " + own.operand.tensor;
    i.op.clear();
    i.attrs = {};
    i.collective = Collective::all_gather;
    i.group = c_.group_of(ranks);
    i.purpose = Purpose::statistics;
    const View all = new_numbers(static_cast<int64_t>(ranks.size()), own.operand.tensor + ".ranks");
    c_.emit(std::move(i), {own}, {all});
    return all;
  }

  /// Emits the largest magnitude of the value. Returns the input that determines its scale.
  View scale_source(const Value& value, const Instruction& like) {
    Instruction i = like;
    i.name = "amax " + value.operand.tensor;
    i.op = amax_kernel.name;
    i.attrs = {};
    const View x{value.buffer, value.operand};
    if (const auto state = states_.find(value.tensor); state != states_.end()) {
      View amax = part_of_state(state->second, kAmaxPlace);
      amax.operand.accumulate = true;
      c_.emit(std::move(i), {x}, {amax});
      return part_of_state(state->second, kScalePlace);
    }
    const View amax = new_numbers(1, "amax." + value.operand.tensor);
    c_.emit(std::move(i), {x}, {amax});
    return value.operand.shape == value.operand.global_shape ? amax : gathered(amax, like);
  }

  /// Emits the update of a scale at the end of the step.
  void update_scale(TensorId tensor, const View& state) {
    const Fp8Spec& fp8 = *c_.plan.numerics.fp8;
    Instruction i;
    i.name = "update " + state.operand.tensor;
    i.op = update_fp8_scale_kernel.name;
    i.phase = Phase::backward;
    std::vector<View> inputs = {state};
    if (c_.plan.mesh.size() > 1) inputs.push_back(gathered(part_of_state(state, kAmaxPlace), i));
    i.attrs.set("margin", fp8.margin);
    if (fp8.amax_compute_algo == AmaxAlgo::most_recent) i.attrs.set("most_recent", true);
    if (c_.graph.tensors[static_cast<size_t>(tensor)].kind == TensorKind::gradient) i.attrs.set("e5m2", true);
    c_.emit(std::move(i), inputs, {});
  }

  /// Emits the rounding of a value as a part of the task of its first reader.
  void quantise(Value& value, const Instruction& reader) {
    static constexpr const char* kWords[kForms] = {".rows", ".columns"};
    static constexpr const char* kScales[kForms] = {".rows.scales", ".columns.scales"};
    Instruction i;
    i.name = "quantise " + value.operand.tensor;
    i.op = quantise_kernel.name;
    if (value.needed[0]) i.attrs.set("rows", true);
    if (value.needed[1]) i.attrs.set("columns", true);
    if (value.is_weight && !has_one_scale()) i.attrs.set("squares", true);
    if (has_one_scale()) i.attrs.set("tensor", true);
    if (states_.contains(value.tensor)) i.attrs.set("delayed", true);
    if (is_e5m2(value)) i.attrs.set("e5m2", true);
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
    std::vector<View> inputs = {{value.buffer, value.operand}};
    if (has_one_scale()) inputs.push_back(scale_source(value, i));
    c_.emit(std::move(i), std::move(inputs), outputs);
  }

  /// Replaces the product's instruction by matmul_fp8, whose inputs are the words and scales of both factors.
  void narrow(const NarrowProduct& p, VirtualInstruction& v) {
    v.inputs.clear();
    v.code.inputs.clear();
    const auto add = [&](const Value& value, const Fp8Factor& factor) {
      const size_t form = factor.columns ? 1 : 0;
      for (const View* view : {&value.words[form], &value.scales[form]}) {
        v.inputs.push_back(view->buffer);
        v.code.inputs.push_back(view->operand);
      }
      return value.is_weight && !has_one_scale();
    };
    Attrs attrs{{"fp8", true}};
    if (add(values_[p.a], p.factors.a)) attrs.set("a_squares", true);
    if (add(values_[p.b], p.factors.b)) attrs.set("b_squares", true);
    if (has_one_scale()) attrs.set("tensor", true);
    if (is_e5m2(values_[p.a])) attrs.set("a_e5m2", true);
    if (is_e5m2(values_[p.b])) attrs.set("b_e5m2", true);
    v.code.attrs = std::move(attrs);
    v.code.op = matmul_fp8_kernel.name;
  }

  Compiler& c_;
  std::set<std::string> weights_;
  std::map<std::string, size_t> nodes_;  ///< the graph's nodes, by name
  std::map<TensorId, View> states_;      ///< the states of delayed scales
  std::vector<Value> values_;            ///< in the order of their first readers
  std::vector<size_t> live_;             ///< values whose bytes are as they were read
  std::vector<NarrowProduct> products_;
};

}  // namespace

void narrow_products(Compiler& c) {
  if (c.plan.numerics.fp8) Narrowing(c).run();
}

}  // namespace trainctl
