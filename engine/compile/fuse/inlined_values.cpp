// Finds values that their readers can compute themselves, and rewrites the readers.
#include "engine/compile/fuse/inlined_values.h"

#include <algorithm>

#include "engine/compile/fuse/skinny_products.h"
#include "engine/ops/elementwise/expression.h"
#include "engine/ops/named_ops.h"

namespace trainctl {
namespace {

/// The instructions that write and that read each buffer, in list order.
struct WritersAndReaders {
  std::vector<std::vector<size_t>> writers, readers;

  explicit WritersAndReaders(const Compiler& c) : writers(c.buffers.size()), readers(c.buffers.size()) {
    for (size_t i = 0; i < c.code.size(); ++i) {
      for (const BufferId b : c.code[i].inputs)
        if (readers[b].empty() || readers[b].back() != i) readers[b].push_back(i);
      for (const BufferId b : c.code[i].outputs) writers[b].push_back(i);
    }
  }
};

bool is_whole(const Operand& a, const Operand& b) {
  return a.offset == 0 && a.shape == b.shape && a.global_shape == b.global_shape &&
         a.global_offset == b.global_offset && a.dtype == b.dtype;
}

/// True if instruction `at` has one output, only element-wise kernels read it, and they read it as a whole. Also
/// requires that no other instruction writes this output.
bool is_read_by_elements(const Compiler& c, const WritersAndReaders& uses, const std::vector<std::string>& tokens,
                         size_t at) {
  const VirtualInstruction& v = c.code[at];
  if (v.outputs.size() != 1 || v.code.idle || v.code.outputs[0].accumulate) return false;
  const BufferId out = v.outputs[0];
  if (is_persistent(c.buffers[out].kind) || uses.writers[out].size() != 1 || uses.readers[out].empty()) return false;
  return std::ranges::all_of(uses.readers[out], [&](size_t reader) {
    const VirtualInstruction& r = c.code[reader];
    if (reader < at || tokens[reader].empty()) return false;
    for (size_t i = 0; i < r.inputs.size(); ++i)
      if (r.inputs[i] == out && !is_whole(r.code.inputs[i], v.code.outputs[0])) return false;
    return is_whole(r.code.outputs[0], v.code.outputs[0]);
  });
}

/// True if the buffer has the same contents from instruction `at` to `until`.
bool stays(const Compiler& c, const WritersAndReaders& uses, BufferId buffer, size_t at, size_t until) {
  if (!is_persistent(c.buffers[buffer].kind)) return uses.writers[buffer].size() == 1;
  return std::ranges::none_of(uses.writers[buffer], [&](size_t writer) { return writer > at && writer <= until; });
}

bool all_in_task(const Compiler& c, const WritersAndReaders& uses, size_t at) {
  return std::ranges::all_of(uses.readers[c.code[at].outputs[0]],
                             [&](size_t reader) { return in_one_task(c.code[reader].code, c.code[at].code); });
}

std::optional<InlinedValue> low_rank_sum(const Compiler& c, const WritersAndReaders& uses, size_t at) {
  const VirtualInstruction& v = c.code[at];
  if (!is_low_rank_product(v) || !epilogue_of(v.code.attrs).residual) return std::nullopt;
  if (!is_whole(v.code.inputs[2], v.code.outputs[0])) return std::nullopt;
  const size_t last = uses.readers[v.outputs[0]].back();
  // A gathered weight is dropped after its task.
  if (!is_persistent(c.buffers[v.inputs[1]].kind) && !all_in_task(c, uses, at)) return std::nullopt;
  for (size_t i = 0; i < 3; ++i)
    if (!stays(c, uses, v.inputs[i], at, last)) return std::nullopt;
  return InlinedValue{at, true, v.code.attrs.flag("transpose_b") ? "l" : "m", v.inputs};
}

bool is_function_of_one(const VirtualInstruction& v, const std::string& token) {
  if (v.inputs.size() != 1 || token.empty()) return false;
  const std::vector<ElementwiseToken> tokens = parse_expression("x0 " + token + " =0");
  return tokens.size() == 3 && tokens[1].op != ElementwiseOp::dropout;
}

/// Finds a function of one value whose result is read by a later task, although that value is still in memory at the
/// last of these reads. The readers can then compute the function again, so its result need not be kept.
std::optional<InlinedValue> function_of_kept(const Compiler& c, const WritersAndReaders& uses,
                                             const std::vector<std::string>& tokens,
                                             const std::vector<std::optional<InlinedValue>>& known, size_t at) {
  const VirtualInstruction& v = c.code[at];
  if (!is_function_of_one(v, tokens[at]) || !is_whole(v.code.inputs[0], v.code.outputs[0])) return std::nullopt;
  const BufferId in = v.inputs[0];
  const size_t last = uses.readers[v.outputs[0]].back();
  const bool kept = !is_persistent(c.buffers[in].kind) && uses.writers[in].size() == 1 && uses.writers[in][0] < at &&
                    uses.readers[in].back() >= last;
  if (!kept || all_in_task(c, uses, at)) return std::nullopt;
  InlinedValue value{at, false, tokens[at], {in}};
  if (const auto& of_input = known[in]) {
    if (!of_input->is_low_rank) return std::nullopt;
    value.sources = of_input->sources;
  }
  return value;
}

}  // namespace

bool is_low_rank_product(const VirtualInstruction& v) {
  if (!is_kernel(v, matmul_op.kernel) || v.code.outputs.size() != 1 || v.code.outputs[0].accumulate) return false;
  Epilogue rest = epilogue_of(v.code.attrs);
  const size_t inputs = rest.residual ? 3 : 2;
  if (v.inputs.size() != inputs || v.code.attrs.flag("transpose_a") || rest.bias ||
      rest.activation != Activation::none || rest.slope != Activation::none || rest.keep_input)
    return false;
  const Operand &p = v.code.inputs[0], &q = v.code.inputs[1], &out = v.code.outputs[0];
  const int64_t rank = p.shape.back();
  return q.shape.size() == 2 && rank <= kMostLowRank && out.shape.back() >= 2 * rank && p.dtype == out.dtype &&
         q.dtype == out.dtype && q.shape != out.shape;
}

std::vector<std::optional<InlinedValue>> inlined_values(const Compiler& c, const std::vector<std::string>& tokens) {
  const WritersAndReaders uses(c);
  std::vector<std::optional<InlinedValue>> values(c.buffers.size());
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (c.code[i].code.opcode != Opcode::kernel || !is_read_by_elements(c, uses, tokens, i)) continue;
    std::optional<InlinedValue>& value = values[c.code[i].outputs[0]];
    value = low_rank_sum(c, uses, i);
    if (!value) value = function_of_kept(c, uses, tokens, values, i);
  }
  return values;
}

}  // namespace trainctl
