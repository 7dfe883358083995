// On a GPU, most of the time of a small step goes to dependent kernel launches. This pass brings weight gradients,
// which no product depends on, together and marks those that may share a launch (Instruction::launch): they move behind
// the products that follow, next to those of other layers. Small loads move to the start of their micro-batch, so
// that they do not separate these kernels. Executing the instructions one by one gives the same numbers.
//
// Replicas must compute bit for bit the same values, so they must use the same kernels. The grouping therefore does not
// depend on anything that only one of them does, such as printing.
#include <algorithm>
#include <map>

#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

/// Larger products keep a GPU busy on their own, and the buffers kept longer for them would cost noticeable memory.
constexpr int64_t kSmallDepth = 1024;           ///< rows that a weight gradient sums over
constexpr int64_t kSmallProduct = 200'000'000;  ///< multiplications
constexpr int64_t kSmallLoad = 1 << 20;
constexpr size_t kMostInLaunch = 16;

int64_t rows_of(const Operand& o) {
  return o.shape.empty() ? 1 : num_elements(o.shape) / std::max<int64_t>(o.shape.back(), 1);
}

bool all_f32(const std::vector<Operand>& operands) {
  return std::ranges::all_of(operands, [](const Operand& o) { return o.dtype == DType::f32; });
}

bool has_role(const VirtualInstruction& v, LaunchRole role) {
  const KernelDef* kernel = kernel_of(v.code);
  return kernel != nullptr && kernel->launch_role == role;
}

/// A small product of rows and a matrix.
bool is_row_product(const VirtualInstruction& v) {
  if (!has_role(v, LaunchRole::product) || v.outputs.size() != 1 || v.code.outputs[0].accumulate) return false;
  const Operand &x = v.code.inputs[0], &w = v.code.inputs[1];
  return w.shape.size() == 2 && !x.shape.empty() && !v.code.attrs.flag("transpose_a") && all_f32(v.code.inputs) &&
         all_f32(v.code.outputs) && rows_of(x) * num_elements(w.shape) <= kSmallProduct;
}

bool is_small_weight_grad(const VirtualInstruction& v) {
  return has_role(v, LaunchRole::weight_grad) && !v.code.attrs.has("first_row") && all_f32(v.code.inputs) &&
         all_f32(v.code.outputs) && rows_of(v.code.inputs[0]) <= kSmallDepth &&
         rows_of(v.code.inputs[0]) * num_elements(v.code.outputs[0].shape) <= kSmallProduct;
}

void mark(Compiler& c, size_t first, size_t count, int& launches) {
  for (size_t i = first; i < first + count; ++i) c.code[i].code.launch = launches;
  ++launches;
}

/// Moves it after the products that follow it, if more weight gradients come after those.
void delay_weight_grad(Compiler& c, size_t at) {
  size_t behind = at + 1;
  while (behind < c.code.size() && is_row_product(c.code[behind]) &&
         c.code[behind].code.micro_batch == c.code[at].code.micro_batch && !conflict(c.code[at], c.code[behind]))
    ++behind;
  if (behind == at + 1 || behind == c.code.size() || !is_small_weight_grad(c.code[behind])) return;
  move_instruction(c, at, behind - 1);
}

/// Last ones first, so that all end up together.
void delay_weight_grads(Compiler& c) {
  for (size_t i = c.code.size(); i-- > 0;)
    if (is_small_weight_grad(c.code[i])) delay_weight_grad(c, i);
}

void group_weight_grads(Compiler& c, int& launches) {
  for (size_t i = 0, end; i < c.code.size(); i = std::max(end, i + 1)) {
    for (end = i; end < c.code.size() && end - i < kMostInLaunch && is_small_weight_grad(c.code[end]); ++end) {
      bool apart = true;
      for (size_t earlier = i; earlier < end && apart; ++earlier) apart = !conflict(c.code[earlier], c.code[end]);
      if (!apart) break;
    }
    if (end - i >= 2) mark(c, i, end - i, launches);
  }
}

/// Moves loads behind the first load of their micro-batch, regardless of size; the latest first.
void load_early(Compiler& c) {
  std::map<int, size_t> first_of_micro_batch;
  std::map<size_t, std::vector<size_t>> behind;
  for (size_t i = 0; i < c.code.size(); ++i) {
    const Instruction& load = c.code[i].code;
    if (load.opcode != Opcode::load) continue;
    const auto [first, is_first] = first_of_micro_batch.emplace(load.micro_batch, i);
    if (!is_first && load.outputs[0].bytes() <= kSmallLoad) behind[first->second].push_back(i);
  }
  if (behind.empty()) return;
  std::vector<bool> moves(c.code.size(), false);
  for (const auto& [first, loads] : behind)
    for (const size_t load : loads) moves[load] = true;
  std::vector<size_t> order;
  order.reserve(c.code.size());
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (moves[i]) continue;
    order.push_back(i);
    if (const auto loads = behind.find(i); loads != behind.end())
      order.insert(order.end(), loads->second.rbegin(), loads->second.rend());
  }
  std::vector<VirtualInstruction> moved;
  moved.reserve(order.size());
  for (const size_t i : order) moved.push_back(std::move(c.code[i]));
  c.code = std::move(moved);
}

}  // namespace

void group_launches(Compiler& c) {
  int launches = 0;
  load_early(c);
  delay_weight_grads(c);
  group_weight_grads(c, launches);
}

}  // namespace trainctl
