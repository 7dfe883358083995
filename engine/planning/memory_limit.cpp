#include "engine/planning/memory_limit.h"

#include <algorithm>
#include <functional>

#include "engine/base/text.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/plan_job.h"
#include "engine/spec/fields.h"

namespace trainctl {
namespace {

const Program& largest(const std::vector<Program>& programs) {
  return *std::max_element(programs.begin(), programs.end(),
                           [](const Program& a, const Program& b) { return a.memory.total() < b.memory.total(); });
}

/// The largest need of a rank after `change`; nothing if the changed job cannot be planned.
std::optional<int64_t> bytes_when(const PlannedJob& of, const std::function<void(JobSpec&)>& change) {
  JobSpec spec = of.spec;
  change(spec);
  try {
    const PlannedJob job = plan_job(std::move(spec), inputs_of(of));
    int64_t most = 0;  // ranks of a stage need about the same: one of each is enough for advice
    for (int stage = 0; stage < job.plan.num_stages; ++stage) {
      const int rank = stage * job.plan.mesh.size();
      Memory memory = compile(job, rank).memory;
      if (job.validation) memory.validation = room_for(compile_validation(job, rank).memory, memory);
      most = std::max(most, memory.total());
    }
    return most;
  } catch (const SpecError&) {
    return std::nullopt;
  }
}

std::string advice(const PlannedJob& job, int64_t limit) {
  const JobSpec& spec = job.spec;
  std::vector<std::string> moves;
  const auto offer = [&](const std::string& text, const std::function<void(JobSpec&)>& change) {
    const std::optional<int64_t> bytes = bytes_when(job, change);
    if (bytes && *bytes <= limit) moves.push_back(text + " (" + format_bytes(*bytes) + ")");
    return !moves.empty();
  };
  for (int level = spec.parallel.optimizer_shard.level + 1; level <= 3; ++level)
    if (offer("parallel.optimizer_shard.level: " + std::to_string(level),
              [&](JobSpec& s) { s.parallel.optimizer_shard.level = level; }))
      break;
  if (spec.parallel.micro_batches <= kMaxMicroBatches / 2)
    offer("parallel.micro_batches: " + std::to_string(2 * spec.parallel.micro_batches),
          [](JobSpec& s) { s.parallel.micro_batches *= 2; });
  if (spec.parallel.head_pieces == 0)
    offer("parallel.head_pieces: 16", [](JobSpec& s) { s.parallel.head_pieces = 16; });
  if (spec.parallel.mode != ParallelMode::stand_alone && spec.launch.ranks <= kMaxRanks / 2)
    offer("launch.ranks: " + std::to_string(2 * spec.launch.ranks), [](JobSpec& s) { s.launch.ranks *= 2; });
  if (spec.precision != Precision::bf16 && spec.launch.device == Device::cuda)  // CPUs compute in fp32
    offer("precision: bf16", [](JobSpec& s) { s.precision = Precision::bf16; });
  if (spec.precision == Precision::bf16 && spec.gradient_precision != Precision::bf16)
    offer("gradient_precision: bf16", [](JobSpec& s) { s.gradient_precision = Precision::bf16; });
  if (moves.empty())
    return "no change of optimizer_shard, micro_batches or ranks alone is enough; cut large layers by "
           "parallel.strategies, or use more parallel.stages";
  return "set " + join(moves, ", or ");
}

}  // namespace

std::optional<std::string> over_memory_of(const PlannedJob& job, const std::vector<Program>& programs,
                                          const MemoryHolder& holder) {
  const Program& most = largest(programs);
  const Memory& m = most.memory;
  if (m.total() <= holder.bytes) return std::nullopt;
  return "plan: rank " + std::to_string(most.rank) + " needs " + format_bytes(m.total()) + ", " + holder.name + " " +
         format_bytes(holder.bytes) + (holder.note.empty() ? "" : " " + holder.note) + " (" + to_string(m) + ")\n  " +
         advice(job, holder.bytes);
}

std::optional<std::string> over_memory_limit(const PlannedJob& job, const std::vector<Program>& programs) {
  const int64_t limit = job.spec.parallel.max_memory;
  if (limit <= 0) return std::nullopt;
  return over_memory_of(job, programs, {"parallel.max_memory is", limit, ""});
}

void require_memory_limit(const PlannedJob& job, const std::vector<Program>& programs) {
  if (const auto message = over_memory_limit(job, programs)) throw EnvError(*message);
}

}  // namespace trainctl
