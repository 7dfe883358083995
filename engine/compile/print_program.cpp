// `trainctl show program`: memory, buckets, then an aligned line an instruction.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/text.h"
#include "engine/compile/program.h"

namespace trainctl {
namespace {

using Row = std::array<std::string, 7>;

std::string operand_text(const Operand& o) {
  return fmt::format("{}{} {} @{}+{}", o.accumulate ? "+" : "", o.tensor, to_string(o.shape), o.offset, o.bytes());
}

std::string operands_text(const std::vector<Operand>& operands) {
  std::vector<std::string> words;
  for (const Operand& o : operands) words.push_back(operand_text(o));
  return join(words, ", ");
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> words;
  for (int r : ranks) words.push_back(std::to_string(r));
  return "{" + join(words, ",") + "}";
}

std::string task_text(const Instruction& i) {
  if (i.micro_batch < 0) return "step";
  const std::string task = (i.phase == Phase::forward ? "F" : "B") + std::to_string(i.micro_batch);
  return i.recompute ? task + " again" : task;
}

std::string op_text(const Program& program, const Instruction& i) {
  switch (i.opcode) {
    case Opcode::kernel:
      return i.op;
    case Opcode::collective:
      return fmt::format("{} {}", to_string(i.collective), ranks_text(program.groups[i.group]));
    case Opcode::send:
      return fmt::format("send to {}", i.peer);
    case Opcode::recv:
      return fmt::format("recv from {}", i.peer);
    default:
      return std::string(to_string(i.opcode));
  }
}

Row row_of(const Program& program, int index) {
  const Instruction& i = program.instructions[index];
  const std::string in = operands_text(i.inputs), out = operands_text(i.outputs);
  std::vector<std::string> waits, notes;
  for (int w : i.waits) waits.push_back(std::to_string(w));
  if (!waits.empty()) notes.push_back("waits " + join(waits, ","));
  if (i.launch >= 0) notes.push_back("launch " + std::to_string(i.launch));
  return {std::to_string(index), std::string(to_string(i.stream)),
          task_text(i),          i.name,
          op_text(program, i),   in + (out.empty() ? "" : in.empty() ? "-> " + out : " -> " + out),
          join(notes, ", ")};
}

std::string gradients_text(const Bucket& b) {
  if (b.gradient_type == b.kept_type) return (b.kept_type == DType::f32 ? "" : "bf16 ") + std::string("gradients");
  return fmt::format("gradients (sent in {})", to_string(b.gradient_type));
}

std::string bucket_text(const Program& program, const Bucket& b) {
  std::string text = fmt::format("{}: {} elements, weights @{}", b.name, with_commas(b.elements),
                                 b.has_compute_copy() ? b.compute_offset : b.weights_offset);
  if (b.has_compute_copy() && b.weights_offset >= 0) text += fmt::format(", master @{}", b.weights_offset);
  if (b.sums_offset >= 0) text += fmt::format(", sums @{}", b.sums_offset);
  if (b.gradients_offset >= 0) text += fmt::format(", {} @{}", gradients_text(b), b.gradients_offset);
  for (int64_t offset : b.optimizer_offsets) text += fmt::format(", optimizer @{}", offset);
  if (b.reduce_group >= 0) text += ", summed over " + ranks_text(program.groups[b.reduce_group]);
  if (b.level > 0) text += fmt::format(", level {}, shard {} of {}", b.level, b.shard, b.shards);
  if (b.pieces > 1) text += fmt::format(", in {} pieces", b.pieces);
  return text + "\n";
}

std::string arena_text(const Memory& m) {
  const std::string master = m.master > 0 ? "master " + format_bytes(m.master) + ", " : "";
  return fmt::format("weights {}, {}gradients {}, optimizer {}, activations {}, buffers {}", format_bytes(m.weights),
                     master, format_bytes(m.gradients), format_bytes(m.optimizer), format_bytes(m.activations),
                     format_bytes(m.buffers));
}

}  // namespace

std::string to_string(const Memory& m) {
  const std::string workspace = m.workspace > 0 ? ", workspace " + format_bytes(m.workspace) : "";
  return arena_text(m) + workspace;
}

std::string to_string(const Program& program) {
  std::string text = fmt::format("rank {}: stage {}, rank {} in it; arena {} ({})\n", program.rank, program.stage,
                                 program.rank_in_stage, format_bytes(program.arena_bytes), arena_text(program.memory));
  for (const Bucket& b : program.buckets) text += bucket_text(program, b);
  std::vector<Row> rows = {{"", "stream", "task", "name", "op", "in -> out (shape @offset+bytes)", ""}};
  for (size_t i = 0; i < program.instructions.size(); ++i) rows.push_back(row_of(program, static_cast<int>(i)));
  std::array<size_t, 7> widths{};
  for (const Row& row : rows) {
    for (size_t c = 0; c + 1 < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  for (const Row& row : rows) {
    std::string line = fmt::format("{:>{}}", row[0], widths[0]);
    for (size_t c = 1; c < row.size(); ++c) line += fmt::format("  {:<{}}", row[c], c + 1 < row.size() ? widths[c] : 0);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace trainctl
