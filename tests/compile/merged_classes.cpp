// Finds classes of ranks by comparing their programs instead of reading the plan.
#include "tests/compile/merged_classes.h"

#include <doctest/doctest.h>

#include <map>
#include <sstream>

namespace trainctl {
namespace {

std::string text_of(const Shape& shape) {
  std::string text;
  for (int64_t n : shape) text += std::to_string(n) + ",";
  return text;
}

void write(std::ostream& out, const Operand& o) {
  out << " (" << o.reach_begin() << " " << o.reach_end() << " " << static_cast<int>(o.own) << " "
      << (o.own == OwnPart::counted ? "" : text_of(o.shape)) << " of " << text_of(o.global_shape) << " "
      << static_cast<int>(o.dtype) << " " << o.tensor << " " << o.accumulate << ")";
}

void write(std::ostream& out, const GroupKind& group) {
  for (const std::vector<int>* list : {&group.stages, &group.axes, &group.ranks}) {
    for (int n : *list) out << " " << n;
    out << " |";
  }
}

void write(std::ostream& out, const Instruction& i, const Program& p, const Mesh& mesh) {
  Attrs attrs = i.attrs;
  if (i.op == "copy_slice") attrs.erase("index");
  out << static_cast<int>(i.opcode) << " " << i.name << " " << i.op << " " << to_string(attrs) << " "
      << static_cast<int>(i.phase) << " " << i.micro_batch << " " << i.recompute << " "
      << static_cast<int>(i.collective) << " " << i.group << " " << i.root << " " << static_cast<int>(i.purpose) << " "
      << i.launch << " " << static_cast<int>(i.stream) << " waits";
  for (int w : i.waits) out << " " << w;
  if (i.opcode == Opcode::send || i.opcode == Opcode::recv) {
    const bool with_server = p.server >= 0 || i.purpose == Purpose::weights || i.purpose == Purpose::gradient;
    const bool of_stage = !with_server && i.peer % mesh.size() == p.rank % mesh.size();
    if (i.attrs.has(kRingStep))
      out << " ring";
    else
      out << (of_stage ? " stage " : " rank ") << (of_stage ? i.peer / mesh.size() : i.peer);
  }
  for (const Operand& o : i.inputs) write(out, o);
  out << " ->";
  for (const Operand& o : i.outputs) write(out, o);
  out << "\n";
}

}  // namespace

std::string text_of_class(const Program& p, const Mesh& mesh) {
  std::ostringstream out;
  out << p.server << " " << p.stage << " " << p.arena_bytes << " " << p.scalars_offset << " " << p.loss_offset << " "
      << to_string(p.memory) << " " << p.memory.arena() << "\n";
  for (const std::vector<int>& ranks : p.groups) write(out, group_of_ranks(mesh, ranks, p.rank));
  for (const Variable& v : p.variables)
    out << "\n"
        << v.name << " " << text_of(v.global_shape) << " " << text_of(v.shape) << " " << v.bucket << " "
        << v.bucket_element << " " << v.arena_offset << " " << static_cast<int>(v.dtype);
  for (const Bucket& b : p.buckets) {
    out << "\n"
        << b.name << " " << b.elements << " " << b.reduce_group << " " << b.shard_group << " " << b.shards << " "
        << b.pieces << " " << b.level << " " << b.weights_offset << " " << b.compute_offset << " " << b.gradients_offset
        << " " << static_cast<int>(b.gradient_type) << static_cast<int>(b.kept_type) << " " << b.sums_offset << " "
        << b.updated_by_parts << " " << b.average_offset;
    for (int64_t offset : b.optimizer_offsets) out << " " << offset;
  }
  out << "\n";
  for (const Instruction& i : p.instructions) write(out, i, p, mesh);
  return out.str();
}

Mesh mesh_of(const std::vector<Program>& programs) {
  int ranks = 0;
  for (const Program& p : programs) ranks += p.stage == 0 && p.server < 0 ? 1 : 0;
  return Mesh(ranks);
}

RankClasses merged(const std::vector<Program>& programs, const Mesh& mesh) {
  RankClasses classes;
  classes.mesh = mesh;
  std::map<std::string, int> known;
  for (const Program& program : programs) {
    const auto [entry, is_new] =
        known.try_emplace(text_of_class(program, mesh), static_cast<int>(classes.programs.size()));
    if (is_new) {
      classes.programs.push_back(program);
      classes.ranks.emplace_back();
    }
    classes.ranks[static_cast<size_t>(entry->second)].push_back(program.rank);
    classes.class_of.push_back(entry->second);
  }
  number_groups(classes);
  return classes;
}

std::vector<ProgramFault> faults_by_both_proofs(const std::vector<Program>& programs) {
  std::vector<ProgramFault> faults = verify_programs(programs);
  const std::vector<ProgramFault> by_classes = verify_classes(merged(programs, mesh_of(programs)));
  std::string all;
  for (const ProgramFault& f : faults) all += to_string(f) + "\n";
  all += "by classes:\n";
  for (const ProgramFault& f : by_classes) all += to_string(f) + "\n";
  INFO(all);
  CHECK(faults.empty() == by_classes.empty());
  return faults;
}

}  // namespace trainctl
