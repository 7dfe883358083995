// Proves the programs of a job: calls the parts of the proof (verify.h) one after another.
#include "engine/compile/verify/verify_programs.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/parallel_for.h"
#include "engine/compile/verify/verify.h"

namespace trainctl {
namespace {

constexpr size_t kMostFaultsShown = 20;
constexpr size_t kVerifiedOfThread = 2;  ///< classes that are worth starting a thread for

bool has_shards(const std::vector<Operand>& operands) {
  return std::any_of(operands.begin(), operands.end(), [](const Operand& o) { return o.own == OwnPart::shard; });
}

void verify_bytes(const Program& program, Faults& faults) {
  verify_contents(program, faults);
  verify_order(program, faults);
}

/// All that happens to a byte depends only on whether it is in this rank's own shard. So two programs, one in which all
/// bytes are in the shard and one in which none is, cover every byte of every rank. Counted parts are only read,
/// and stay within the range that they are part of: checking a read of the whole range is stricter.
void verify_bytes_of_class(const Program& program, Faults& faults) {
  const size_t before = faults.size();
  verify_bytes(with_own_parts(program, true), faults);
  const bool shards = std::any_of(program.instructions.begin(), program.instructions.end(),
                                  [](const Instruction& i) { return has_shards(i.inputs) || has_shards(i.outputs); });
  if (shards && faults.size() == before) verify_bytes(with_own_parts(program, false), faults);
}

/// Some ranks of the class leave idle instructions out.
Program without_idle(const Program& program) {
  Program changed = program;
  for (Instruction& i : changed.instructions) {
    if (!i.idle) continue;
    i.opcode = Opcode::wait;
    i.inputs.clear();
    i.outputs.clear();
  }
  return changed;
}

bool has_idle(const Program& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [](const Instruction& i) { return i.idle; });
}

/// The faults of all classes, in order.
template <class Verify>
void verify_each(const RankClasses& classes, Faults& faults, const Verify& verify) {
  std::vector<Faults> of_classes(classes.programs.size());
  parallel_for(of_classes.size(), kVerifiedOfThread, [&](size_t c) { verify(c, of_classes[c]); });
  for (const Faults& of_class : of_classes) faults.insert(faults.end(), of_class.begin(), of_class.end());
}

}  // namespace

std::string to_string(const ProgramFault& fault) {
  std::string text = "rank " + std::to_string(fault.rank);
  if (fault.instruction >= 0) text += ", instruction " + std::to_string(fault.instruction);
  return text + ": " + fault.message;
}

Program with_own_parts(const Program& program, bool whole_shards) {
  Program changed = program;
  for (Instruction& i : changed.instructions) {
    for (std::vector<Operand>* operands : {&i.inputs, &i.outputs}) {
      for (Operand& o : *operands) {
        if (o.own == OwnPart::none) continue;
        o.offset = o.reach_begin();
        o.shape = {whole_shards || o.own != OwnPart::shard ? o.global_shape[0] : 0};
        o.global_offset = {0};
      }
    }
  }
  return changed;
}

std::vector<ProgramFault> verify_classes(const RankClasses& classes) {
  std::vector<ProgramFault> faults;
  verify_each(classes, faults,
              [&](size_t c, Faults& of_class) { verify_form(classes.programs[c], classes.num_ranks(), of_class); });
  if (!faults.empty()) return faults;  // the other parts rely on valid indices and offsets
  verify_each(classes, faults, [&](size_t c, Faults& of_class) {
    const Program& program = classes.programs[c];
    classes.ranks[c].size() == 1 ? verify_bytes(program, of_class) : verify_bytes_of_class(program, of_class);
    if (of_class.empty() && has_idle(program)) verify_bytes_of_class(without_idle(program), of_class);
    verify_updates(program, of_class);
  });
  const size_t before = faults.size();
  verify_messages(classes, faults);
  verify_collectives(classes, faults);
  verify_served(classes, faults);
  if (faults.size() == before) verify_progress(classes, faults);  // otherwise it would only repeat what is missing
  return faults;
}

std::vector<ProgramFault> verify_programs(const std::vector<Program>& programs) {
  return verify_classes(each_by_itself(programs));
}

void require_verified(const RankClasses& classes) {
  const std::vector<ProgramFault> faults = verify_classes(classes);
  if (faults.empty()) return;
  std::string text = "the compiled programs are wrong:";
  for (size_t i = 0; i < faults.size() && i < kMostFaultsShown; ++i) text += "\n  " + to_string(faults[i]);
  check(false, text);
}

}  // namespace trainctl
