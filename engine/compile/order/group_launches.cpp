// On a GPU, most of the time of a small step goes to dependent kernel launches. This pass brings instructions that may
// share a launch together and marks them (Instruction::launch):
//   - chains of layers that process each row of the batch independently: products, losses, backward products;
//   - with more rows, the end of a network with few outputs: the last product, the loss, the backward product;
//   - weight gradients, which no product depends on: they move behind the products that follow, next to those of
//     other layers.
// Small loads move to the start of their micro-batch, out of the way. Executing the instructions one by one gives the
// same numbers.
//
// Replicas must compute bit for bit the same values, so they must use the same kernels. The grouping therefore does not
// depend on what a single rank does in addition: counting a loss that other ranks compute too, or printing.
#include <algorithm>
#include <map>

#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

/// Larger products keep a GPU busy on their own, and the buffers kept longer for them would cost noticeable memory.
constexpr int64_t kSmallRows = 48;              ///< in a chain
constexpr int64_t kFewOutputs = 16;             ///< in a head: the most that head_cuda.cu supports
constexpr size_t kLinksOfHead = 3;              ///< at most
constexpr int64_t kSmallDepth = 1024;           ///< rows that a weight gradient sums over
constexpr int64_t kSmallProduct = 200'000'000;  ///< multiplications
constexpr int64_t kSmallLoad = 1 << 20;
constexpr size_t kMostInLaunch = 16;

int64_t rows_of(const Operand& o) {
  return o.shape.empty() ? 1 : num_elements(o.shape) / std::max<int64_t>(o.shape.back(), 1);
}

bool all_of_type(const std::vector<Operand>& operands, DType type) {
  return std::all_of(operands.begin(), operands.end(), [&](const Operand& o) { return o.dtype == type; });
}
bool all_f32(const std::vector<Operand>& operands) { return all_of_type(operands, DType::f32); }

bool has_role(const VirtualInstruction& v, LaunchRole role) {
  const KernelDef* kernel = kernel_of(v.code);
  return kernel != nullptr && kernel->launch_role == role;
}

/// A product of rows and a matrix.
bool is_grouped_product(const VirtualInstruction& v) {
  if (!has_role(v, LaunchRole::product) || v.outputs.size() != 1 || v.code.outputs[0].accumulate) return false;
  const Operand &x = v.code.inputs[0], &w = v.code.inputs[1];
  return w.shape.size() == 2 && !x.shape.empty() && !v.code.attrs.flag("transpose_a") &&
         rows_of(x) * num_elements(w.shape) <= kSmallProduct;
}

bool is_row_product(const VirtualInstruction& v) {
  return is_grouped_product(v) && all_f32(v.code.inputs) && all_f32(v.code.outputs);
}

bool is_loss(const VirtualInstruction& v) { return has_role(v, LaunchRole::loss); }

bool is_row_loss(const VirtualInstruction& v) {
  return is_loss(v) && all_f32(v.code.outputs) && v.code.inputs[0].dtype == DType::f32;
}

/// It adds to what the step reports; nothing in the step reads that.
bool is_metric(const Compiler& c, const VirtualInstruction& v) {
  return v.code.opcode == Opcode::kernel && !v.inputs.empty() && v.outputs == std::vector<BufferId>{c.loss} &&
         !is_loss(v);
}

/// True if several ranks compute the same loss, which only one of them counts.
bool loss_has_replicas(const Compiler& c) {
  if (!c.graph.has_loss()) return false;
  const Node& node = c.graph.nodes[c.graph.tensors[c.graph.loss].producer];
  return c.plan.mesh.ways(output_layout(c.graph, c.plan, node, 0).replica_axes(c.plan.mesh)) > 1;
}

/// Part of a chain of few rows.
bool is_link(const VirtualInstruction& v, bool losses_too) {
  if (!is_row_product(v) && !(losses_too && is_row_loss(v))) return false;
  const int64_t rows = rows_of(v.code.inputs[0]);
  return rows > 0 && rows <= kSmallRows;
}

/// A product with few outputs, the backward product by weights of the same layout, or the loss between them.
bool is_link_of_head(const VirtualInstruction& v) {
  const DType type = v.code.inputs.empty() ? DType::i32 : v.code.inputs[0].dtype;
  if (is_loss(v)) {
    const Shape& x = v.code.inputs[0].shape;
    return v.code.outputs[1].dtype == type && !x.empty() && x.back() <= kFewOutputs;
  }
  if (!is_grouped_product(v) || !all_of_type(v.code.inputs, type) || !all_of_type(v.code.outputs, type)) return false;
  const Shape& w = v.code.inputs[1].shape;
  return w[0] <= kFewOutputs || w[1] == 1;
}

bool is_small_weight_grad(const VirtualInstruction& v) {
  return has_role(v, LaunchRole::weight_grad) && !v.code.attrs.has("first_row") && all_f32(v.code.inputs) &&
         all_f32(v.code.outputs) && rows_of(v.code.inputs[0]) <= kSmallDepth &&
         rows_of(v.code.inputs[0]) * num_elements(v.code.outputs[0].shape) <= kSmallProduct;
}

/// The chain may supply only rows: a layer's input and the values the slope is taken at. All other inputs come from
/// outside.
bool takes_rows_alone(const Compiler& c, const std::vector<size_t>& chain, const VirtualInstruction& next) {
  const bool slope = is_row_product(next) && epilogue_of(next.code.attrs).slope != Activation::none;
  for (size_t i = 1; i + (slope ? 1 : 0) < next.inputs.size(); ++i) {
    for (size_t earlier : chain) {
      const std::vector<BufferId>& written = c.code[earlier].outputs;
      if (std::find(written.begin(), written.end(), next.inputs[i]) != written.end()) return false;
    }
  }
  return true;
}

/// True if `next` processes the rows that the chain has produced so far.
bool continues_chain(const Compiler& c, const std::vector<size_t>& chain, const VirtualInstruction& next) {
  const VirtualInstruction& first = c.code[chain[0]];
  return rows_of(next.code.inputs[0]) == rows_of(first.code.inputs[0]) &&
         next.code.micro_batch == first.code.micro_batch && next.inputs[0] == c.code[chain.back()].outputs.back() &&
         takes_rows_alone(c, chain, next);
}

/// True if `next` continues a head: product, then loss, then the backward product by the same weights.
bool continues_as_head(const Compiler& c, const std::vector<size_t>& chain, const VirtualInstruction& next) {
  const VirtualInstruction& first = c.code[chain[0]];
  if (!is_link_of_head(next) || !continues_chain(c, chain, next) || is_loss(next) != (chain.size() == 1)) return false;
  return is_loss(next) ||
         (next.inputs[1] == first.inputs[1] && next.code.inputs[1].offset == first.code.inputs[1].offset);
}

/// Instructions that can share a launch, starting at `first`: the links, and those between them that can wait.
struct FoundGroup {
  std::vector<size_t> chain, behind;
};

/// `follows(chain, next)`: true if `next` is the chain's next link.
template <class Follows>
FoundGroup chain_from(const Compiler& c, size_t first, size_t most, Follows follows) {
  FoundGroup found{{first}, {}};
  std::vector<size_t> passed;
  for (size_t i = first + 1; i < c.code.size() && found.chain.size() < most; ++i) {
    const VirtualInstruction& v = c.code[i];
    if (is_small_weight_grad(v) || is_metric(c, v) || v.code.opcode == Opcode::print) {
      passed.push_back(i);
      continue;
    }
    if (!follows(found.chain, v) ||
        std::any_of(passed.begin(), passed.end(), [&](size_t p) { return conflict(c.code[p], v); }))
      break;
    found.chain.push_back(i);
    found.behind = passed;
  }
  std::stable_partition(found.behind.begin(), found.behind.end(),
                        [&](size_t i) { return c.code[i].code.opcode != Opcode::print; });
  return found;
}

/// Empty if no chain begins there.
FoundGroup find_chain(const Compiler& c, size_t first, bool losses_too) {
  if (is_link(c.code[first], losses_too)) {
    return chain_from(c, first, kMostInLaunch, [&](const std::vector<size_t>& chain, const VirtualInstruction& next) {
      const bool has_loss = std::any_of(chain.begin(), chain.end(), [&](size_t i) { return is_row_loss(c.code[i]); });
      return is_link(next, losses_too) && !(has_loss && is_row_loss(next)) && continues_chain(c, chain, next);
    });
  }
  if (!losses_too || is_loss(c.code[first]) || !is_link_of_head(c.code[first])) return {};
  return chain_from(c, first, kLinksOfHead, [&](const std::vector<size_t>& chain, const VirtualInstruction& next) {
    return continues_as_head(c, chain, next);
  });
}

/// Puts the instructions into `order`, starting at `first`.
void reorder(Compiler& c, size_t first, const std::vector<size_t>& order) {
  std::vector<VirtualInstruction> moved;
  moved.reserve(order.size());
  for (size_t i : order) moved.push_back(std::move(c.code[i]));
  std::move(moved.begin(), moved.end(), c.code.begin() + static_cast<std::ptrdiff_t>(first));
}

void mark(Compiler& c, size_t first, size_t count, int& launches) {
  for (size_t i = first; i < first + count; ++i) c.code[i].code.launch = launches;
  ++launches;
}

void group_chains(Compiler& c, int& launches) {
  const bool losses_too = !loss_has_replicas(c);
  for (size_t i = 0; i < c.code.size(); ++i) {
    const FoundGroup found = find_chain(c, i, losses_too);
    if (found.chain.size() < 2) continue;
    std::vector<size_t> order = found.chain;
    order.insert(order.end(), found.behind.begin(), found.behind.end());
    reorder(c, i, order);
    mark(c, i, found.chain.size(), launches);
    i += found.chain.size() - 1;
  }
}

/// Moves it after the products that follow it, if more weight gradients come after those.
void delay_weight_grad(Compiler& c, size_t at) {
  size_t behind = at + 1;
  while (behind < c.code.size() && c.code[behind].code.launch < 0 && is_row_product(c.code[behind]) &&
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
  reorder(c, 0, order);
}

}  // namespace

void group_launches(Compiler& c) {
  int launches = 0;
  load_early(c);
  group_chains(c, launches);
  delay_weight_grads(c);
  group_weight_grads(c, launches);
}

}  // namespace trainctl
