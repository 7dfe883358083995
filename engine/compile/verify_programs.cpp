// The proof as a table of contents.
#include "engine/compile/verify_programs.h"

#include "engine/compile/verify.h"

namespace trainctl {

std::string to_string(const ProgramFault& fault) {
  std::string text = "rank " + std::to_string(fault.rank);
  if (fault.instruction >= 0) text += ", instruction " + std::to_string(fault.instruction);
  return text + ": " + fault.message;
}

std::vector<ProgramFault> verify_programs(const std::vector<Program>& programs) {
  std::vector<ProgramFault> faults;
  for (const Program& program : programs) verify_form(program, static_cast<int>(programs.size()), faults);
  if (!faults.empty()) return faults;  // the rest takes indices and offsets for granted
  for (const Program& program : programs) {
    verify_contents(program, faults);
    verify_order(program, faults);
    verify_updates(program, faults);
  }
  const size_t before = faults.size();
  verify_messages(programs, faults);
  verify_collectives(programs, faults);
  if (faults.size() == before) verify_progress(programs, faults);  // else it only repeats what is missing
  return faults;
}

}  // namespace trainctl
