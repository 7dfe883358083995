// `trainctl show program`: memory, buckets, then one aligned line per instruction. Also prints programs whose
// buffers are not placed yet.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/text.h"
#include "engine/compile/program.h"
#include "engine/compile/report/program_so_far.h"

namespace trainctl {
namespace {

using Row = std::array<std::string, 7>;

/// `buffer` is printed before the offset; "" if the offset is in the arena.
std::string operand_text(const Operand& o, const std::string& buffer, int64_t offset) {
  return fmt::format("{}{} {}{} {}@{}+{}", o.accumulate ? "+" : "", o.tensor, to_string(o.shape),
                     o.format == Format::channels_last ? " channels_last" : "", buffer, offset, o.bytes());
}

std::string operands_text(const std::vector<Operand>& operands) {
  std::vector<std::string> words;
  for (const Operand& o : operands) words.push_back(operand_text(o, "", o.offset));
  return join(words, ", ");
}

std::string buffer_name(BufferId buffer) { return "b" + std::to_string(buffer); }

std::string operands_text(const Compiler& c, const std::vector<Operand>& operands, const std::vector<BufferId>& ids) {
  std::vector<std::string> words;
  for (size_t i = 0; i < operands.size(); ++i) {
    const int64_t start = c.buffers[ids[i]].offset, offset = operands[i].offset;
    words.push_back(start < 0 ? operand_text(operands[i], buffer_name(ids[i]), offset)
                              : operand_text(operands[i], "", start + offset));
  }
  return join(words, ", ");
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> words;
  for (int r : ranks) words.push_back(std::to_string(r));
  return "{" + join(words, ",") + "}";
}

std::string task_text(const Program& program, const Instruction& i) {
  if (i.micro_batch < 0) return "step";
  const TaskKind kind = i.phase == Phase::forward ? TaskKind::forward
                        : i.weight_gradients      ? TaskKind::weight_gradients
                                                  : TaskKind::backward;
  const std::string task = to_string(Task{kind, i.micro_batch, i.chunk}, program.chunks);
  return i.recompute ? task + " again" : task;
}

/// The rank whose data a broadcast sends.
std::string root_text(const Program& program, const Instruction& i) {
  if (i.collective != Collective::broadcast) return "";
  return fmt::format(" from {}", program.groups[i.group][i.root]);
}

std::string op_text(const Program& program, const Instruction& i) {
  switch (i.opcode) {
    case Opcode::kernel:
      return i.op;
    case Opcode::collective:
      return fmt::format("{} {}{}", to_string(i.collective), ranks_text(program.groups[i.group]),
                         root_text(program, i));
    case Opcode::send:
      return fmt::format("send to {}", i.peer);
    case Opcode::recv:
      return fmt::format("recv from {}", i.peer);
    default:
      return std::string(to_string(i.opcode));
  }
}

Row row_of(const Program& program, const Instruction& i, size_t index, const std::string& in, const std::string& out) {
  std::vector<std::string> waits, notes;
  for (int w : i.waits) waits.push_back(std::to_string(w));
  if (!waits.empty()) notes.push_back("waits " + join(waits, ","));
  if (i.idle) notes.emplace_back("idle");
  if (i.launch >= 0) notes.push_back("launch " + std::to_string(i.launch));
  if (i.attrs != Attrs()) notes.push_back(to_string(i.attrs));
  return {std::to_string(index), std::string(to_string(i.stream)),
          task_text(program, i), i.name,
          op_text(program, i),   in + (out.empty() ? "" : in.empty() ? "-> " + out : " -> " + out),
          join(notes, ", ")};
}

std::string gradients_text(const Bucket& b) {
  if (b.gradient_type == b.kept_type) return (b.kept_type == DType::f32 ? "" : "bf16 ") + std::string("gradients");
  return fmt::format("gradients (sent in {})", to_string(b.gradient_type));
}

/// The offsets of a bucket's ranges; "" for ranges that it does not have.
struct BucketPlaces {
  std::string weights, compute, gradients, sums;
  std::vector<std::string> optimizer;
  std::string average = {};
};

BucketPlaces places_of(const Bucket& b) {
  const auto at = [](int64_t offset) { return offset < 0 ? "" : fmt::format("@{}", offset); };
  BucketPlaces places{at(b.weights_offset), at(b.compute_offset), at(b.gradients_offset), at(b.sums_offset), {}};
  for (int64_t offset : b.optimizer_offsets) places.optimizer.push_back(at(offset));
  if (!b.computes_average()) places.average = at(b.average_offset);
  return places;
}

BucketPlaces places_of(const RankBucket& b) {
  const auto at = [](BufferId buffer) { return buffer < 0 ? "" : buffer_name(buffer); };
  BucketPlaces places{at(b.weights), at(b.compute), at(b.gradients), at(b.sums), {}};
  for (BufferId buffer : b.optimizer) places.optimizer.push_back(at(buffer));
  if (!b.computes_average()) places.average = at(b.average);
  return places;
}

std::string bucket_text(const Program& program, const Bucket& b, const BucketPlaces& at) {
  std::string text = fmt::format("{}: {} elements, weights {}", b.name, with_commas(b.elements),
                                 at.compute.empty() ? at.weights : at.compute);
  if (!at.compute.empty() && !at.weights.empty()) text += ", master " + at.weights;
  if (!at.sums.empty()) text += ", sums " + at.sums;
  if (!at.gradients.empty()) text += fmt::format(", {} {}", gradients_text(b), at.gradients);
  for (const std::string& place : at.optimizer) text += ", optimizer " + place;
  if (!at.average.empty()) text += ", average " + at.average;
  if (b.served && program.server < 0) text += ", on servers";
  if (b.table) text += ", rows of a table on servers";
  if (b.is_summed_twice()) text += ", summed over " + ranks_text(program.groups[b.shard_group]) + " first";
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

bool has_places(const Compiler& c) {
  return std::any_of(c.buffers.begin(), c.buffers.end(), [](const VirtualBuffer& b) { return b.offset >= 0; });
}

std::string rank_text(const Program& program) {
  if (program.server >= 0) return fmt::format("rank {}: server {}; ", program.rank, program.server);
  return fmt::format("rank {}: stage {}, rank {} in it; ", program.rank, program.stage, program.rank_in_stage);
}

std::string aligned_lines(std::vector<Row> rows, const char* operands) {
  rows.insert(rows.begin(), Row{"", "stream", "task", "name", "op", operands, ""});
  std::array<size_t, 7> widths{};
  for (const Row& row : rows) {
    for (size_t c = 0; c + 1 < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = fmt::format("{:>{}}", row[0], widths[0]);
    for (size_t c = 1; c < row.size(); ++c) line += fmt::format("  {:<{}}", row[c], c + 1 < row.size() ? widths[c] : 0);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace

std::string to_string(const Memory& m) {
  const std::string workspace = m.workspace > 0 ? ", workspace " + format_bytes(m.workspace) : "";
  return arena_text(m) + workspace + (m.validation > 0 ? ", validation " + format_bytes(m.validation) : "");
}

std::string to_string(const Program& program) {
  std::string text = rank_text(program) +
                     fmt::format("arena {} ({})\n", format_bytes(program.arena_bytes), arena_text(program.memory));
  for (const Bucket& b : program.buckets) text += bucket_text(program, b, places_of(b));
  std::vector<Row> rows;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& code = program.instructions[i];
    rows.push_back(row_of(program, code, i, operands_text(code.inputs), operands_text(code.outputs)));
  }
  return text + aligned_lines(std::move(rows), "in -> out (shape @offset+bytes)");
}

ProgramSize size_so_far(const Compiler& c) {
  if (has_places(c)) return {c.code.size(), c.program.arena_bytes};
  std::vector<bool> used(c.buffers.size());
  for (size_t b = 0; b < c.buffers.size(); ++b) used[b] = is_persistent(c.buffers[b].kind);
  for (const VirtualInstruction& v : c.code) {
    for (BufferId buffer : v.inputs) used[buffer] = true;
    for (BufferId buffer : v.outputs) used[buffer] = true;
  }
  ProgramSize size{c.code.size(), 0};
  for (size_t b = 0; b < used.size(); ++b) size.bytes += used[b] ? c.buffers[b].bytes : 0;
  return size;
}

std::string to_string(const Compiler& c) {
  const Program& program = c.program;
  if (!program.instructions.empty()) return to_string(program);
  const bool placed = has_places(c);
  std::string text = rank_text(program);
  text += placed ? fmt::format("arena {} ({})\n", format_bytes(program.arena_bytes), arena_text(program.memory))
                 : fmt::format("unplaced buffers, {} in total\n", format_bytes(size_so_far(c).bytes));
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    const Bucket& bucket = program.buckets[b];
    text += bucket_text(program, bucket, placed ? places_of(bucket) : places_of(c.buckets[b]));
  }
  std::vector<Row> rows;
  for (size_t i = 0; i < c.code.size(); ++i) {
    const VirtualInstruction& v = c.code[i];
    rows.push_back(row_of(program, v.code, i, operands_text(c, v.code.inputs, v.inputs),
                          operands_text(c, v.code.outputs, v.outputs)));
    rows.back()[1] = "-";  // set by order_streams
  }
  return text + aligned_lines(std::move(rows),
                              placed ? "in -> out (shape @offset+bytes)" : "in -> out (shape buffer@offset+bytes)");
}

}  // namespace trainctl
