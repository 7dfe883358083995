// Converts a rank's exceptions for the launcher.
#include "cli/run/worker/rank_failure.h"

#include <optional>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/printable.h"
#include "engine/runtime/communicator.h"
#include "engine/train/checkpoint/finite_state.h"
#include "engine/train/trainer/step_audit.h"
#include "engine/train/trainer/trainer.h"

namespace trainctl {
namespace {

const Instruction* instruction_at(const RankStatus& status, const Program& program) {
  const int index = status.instruction.load();
  const bool in_step =
      status.validation_batches == 0 && index >= 0 && index < static_cast<int>(program.instructions.size());
  return in_step ? &program.instructions[static_cast<size_t>(index)] : nullptr;
}

void describe_current_exception(RankError& error) {
  try {
    throw;
  } catch (const CommError& caught) {
    error.kind = ErrorKind::comm;
    error.what = caught.what();
    error.missing = caught.missing;
  } catch (const SpecError& caught) {
    error.kind = ErrorKind::spec;
    error.what = caught.what();
  } catch (const AuditFailed& caught) {
    error.kind = ErrorKind::audit;
    error.what = caught.what();
  } catch (const EnvError& caught) {
    error.kind = ErrorKind::env;
    error.what = caught.what();
  } catch (const LossNotFinite& caught) {
    error.kind = ErrorKind::loss;
    error.what = caught.what();
    error.step = caught.run_step();
  } catch (const StateNotFinite& caught) {
    error.kind = ErrorKind::loss;
    error.what = caught.what();
    error.step = caught.run_step();
  } catch (const std::exception& caught) {
    const std::optional<std::string> refusal = machine_refusal();
    error.kind = refusal ? ErrorKind::env : ErrorKind::bug;
    error.what = refusal.value_or(caught.what());
  } catch (...) {
    error.what = "exception of unknown type";
  }
}

}  // namespace

RankError current_rank_error(const RankStatus* status, const Program* program) {
  RankError error;
  error.time = wall_seconds();
  describe_current_exception(error);
  error.what = printable_lines(error.what);
  if (status == nullptr || program == nullptr || error.kind == ErrorKind::loss) return error;
  error.step = status->step.load();
  if (const Instruction* instruction = instruction_at(*status, *program)) {
    error.instruction = instruction->name;
    error.instruction_index = status->instruction.load();
  }
  return error;
}

std::string describe_position(const RankStatus& status, const Program& program) {
  switch (status.state.load()) {
    case RankState::starting:
      return "startup";
    case RankState::loading:
      return "loading";
    case RankState::connecting:
      return "connection setup";
    case RankState::saving:
      return "saving";
    case RankState::done:
      return "shutdown";
    case RankState::training:
    case RankState::failed:
      break;
  }
  const uint32_t step = status.step.load();
  if (status.validation_batches > 0) return "the validation after step " + std::to_string(step);
  const Instruction* instruction = instruction_at(status, program);
  if (step == 0 && instruction == nullptr) return "loading";
  std::string text = "step " + std::to_string(step);
  if (instruction != nullptr) {
    text += ", " + instruction->name + " (instruction " + std::to_string(status.instruction.load()) + ")";
  }
  return text;
}

RankProgress progress_of(const RankStatus& status, const Program& program) {
  const RankState state = status.state.load();
  const uint64_t step = status.step.load();
  const auto instruction = static_cast<uint32_t>(status.instruction.load() + 1);
  RankProgress progress;
  progress.position = (static_cast<uint64_t>(state) << 60) | (step << 28) | instruction;
  progress.waiting = state == RankState::connecting;
  // The last state of a rank that is done may not have reached the launcher yet.
  progress.saving = state == RankState::saving || state == RankState::done;
  // The number of looks shows progress while neither a step nor an instruction does.
  if (progress.saving || step == 0 || program.server >= 0) progress.position ^= status.looks.load();
  if (const Instruction* at = instruction_at(status, program)) {
    progress.waiting = progress.waiting || at->opcode == Opcode::collective || at->opcode == Opcode::recv;
  }
  return progress;
}

}  // namespace trainctl
