// Hides the exchange of a backward pass's statistics (batch_norm's sums) behind a product that is ready before them:
//
//   as lowered   g2 x2 s1 S1 b1       x gradient of a layer's input, g of its weight, s sums of the layer before it,
//   overlapped   x2 s1 S1 g2 b1       S their exchange, b what reads them
#include <algorithm>
#include <optional>

#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

/// Products this many instructions before the exchange are considered: those of the layers around it.
constexpr size_t kReach = 12;

bool exchanges_statistics(const VirtualInstruction& v) {
  return v.code.opcode == Opcode::collective && v.code.purpose == Purpose::statistics &&
         v.code.phase == Phase::backward && v.code.micro_batch >= 0;
}

/// The last product before the exchange that may run behind it.
std::optional<size_t> product_to_move(const Compiler& c, size_t exchange) {
  for (size_t i = exchange; i-- > 0 && exchange - i <= kReach;) {
    const VirtualInstruction& v = c.code[i];
    if (v.code.micro_batch != c.code[exchange].code.micro_batch || v.code.phase != Phase::backward) break;
    const KernelDef* kernel = kernel_of(v.code);
    if (kernel != nullptr && kernel->is_product && !v.code.recompute && can_move(c, v, i, exchange + 1)) return i;
  }
  return std::nullopt;
}

}  // namespace

void overlap_statistics(Compiler& c) {
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (!exchanges_statistics(c.code[i])) continue;
    if (const std::optional<size_t> product = product_to_move(c, i)) move_instruction(c, *product, i);
  }
}

}  // namespace trainctl
