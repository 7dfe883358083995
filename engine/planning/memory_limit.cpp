// Checks parallel.max_memory against what the programs need, before anything starts.
#include "engine/planning/memory_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "engine/base/text.h"
#include "engine/estimate/estimate_report.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/plan_job.h"
#include "engine/search/choices/open_choices.h"
#include "engine/search/choices/some_blocks.h"
#include "engine/search/no_plan_fits.h"
#include "engine/spec/fields.h"
#include "engine/spec/validate.h"

namespace trainctl {
namespace {

/// The memory and time of a variant of a job.
struct Variant {
  int64_t bytes = 0;   ///< the most that a rank needs
  double seconds = 0;  ///< the predicted time of a step
};

/// Ranks of a stage need about the same: one of each is enough for advice.
Variant measure(const PlannedJob& job) {
  RankClasses classes = compile_one_per_stage(job);
  for (Program& program : classes.programs)
    if (job.validation)
      program.memory.validation = room_for(compile_validation(job, program.rank).memory, program.memory);
  return {most_memory(classes), simulate(classes, job.cost.machine(), false).step.value};
}

using Change = std::function<void(JobSpec&)>;

/// Nothing if the changed job cannot be planned.
std::optional<Variant> measure_with(const PlannedJob& of, const Change& change) {
  JobSpec spec = of.spec;
  change(spec);
  try {
    return measure(plan_job(std::move(spec), inputs_of(of)));
  } catch (const SpecError&) {
    return std::nullopt;
  }
}

/// "13 ms", "1.25 s": format_duration has no unit below seconds.
std::string step_text(double seconds) {
  return seconds < 0.9995 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.2f} s", seconds);
}

std::string patterns_text(const Recompute& rules) {
  std::vector<std::string> patterns;
  for (const RecomputeRule& rule : rules) patterns.push_back("'" + rule.pattern + "'");
  return "[" + join(patterns) + "]";
}

/// Changes of single fields that would let a job fit.
class MemoryAdvice {
 public:
  MemoryAdvice(const PlannedJob& job, int64_t limit) : job_(job), limit_(limit), now_(measure(job)) {}

  /// The changes that fit, those that cost least time first; auto_parallel and more ranks come last.
  std::string text() {
    offer_shards();
    offer_recompute();
    offer_sizes();
    offer_others();
    offer_search();
    offer_ranks();
    if (fitting_.empty() && !searched_ && !more_ranks_)
      return "changing only optimizer_shard, recompute, micro_batches, offload, context or ranks is not enough; " +
             smallest_ + "cut large layers with parallel.strategies, or use more parallel.stages";
    std::stable_sort(fitting_.begin(), fitting_.end(),
                     [](const Fitting& a, const Fitting& b) { return a.variant.seconds < b.variant.seconds; });
    std::vector<std::string> moves;
    for (const Fitting& fitting : fitting_) moves.push_back(fitting.text + " (" + costs(fitting.variant) + ")");
    if (searched_) moves.push_back(searched_->text + " (" + costs(searched_->variant) + ")");
    if (more_ranks_) moves.push_back(more_ranks_->text + " (" + format_bytes(more_ranks_->variant.bytes) + ")");
    return "set " + join(moves, ", or ");
  }

 private:
  struct Fitting {
    std::string text;
    Variant variant;
  };

  bool offer(const std::string& text, const Change& change) { return offer(text, measure_with(job_, change)); }
  bool offer(const std::string& text, const std::optional<Variant>& variant) {
    if (!variant || variant->bytes > limit_) return false;
    fitting_.push_back({text, *variant});
    return true;
  }

  /// "62.0 GiB, 13 ms slower"
  std::string costs(const Variant& variant) const {
    const double slower = variant.seconds - now_.seconds;
    if (std::abs(slower) < kSameTime * now_.seconds) return format_bytes(variant.bytes);
    return format_bytes(variant.bytes) + ", " + step_text(std::abs(slower)) + (slower > 0 ? " slower" : " faster");
  }

  void offer_shards() {
    for (int level = job_.spec.parallel.optimizer_shard.level + 1; level <= 3; ++level)
      if (offer("parallel.optimizer_shard.level: " + std::to_string(level),
                [&](JobSpec& s) { s.parallel.optimizer_shard.level = level; }))
        return;
  }

  std::optional<Variant> measure_recompute(const Recompute& rules) const {
    return measure_with(job_, [&](JobSpec& s) { s.parallel.recompute = rules; });
  }
  bool offer_recompute(const Recompute& rules, const std::optional<Variant>& variant) {
    return offer("parallel.recompute: " + patterns_text(rules), variant);
  }

  /// Tries ways that take less and less memory, and returns the first one that fits; if possible, in only some of the
  /// blocks.
  void offer_recompute() {
    if (!job_.graph.trains()) return;
    JobSpec plain = job_.spec;  // blocks that recompute different layers would not count as equal
    plain.parallel.recompute.clear();
    Networks networks(plain, job_.data.shapes, job_.cost);
    const std::vector<Recompute> ways = recompute_ways(plain, networks);
    std::optional<Variant> before;
    for (size_t w = 0; w < ways.size(); ++w) {
      const std::optional<Variant> variant = measure_recompute(ways[w]);
      if (w > 0 && variant && variant->bytes <= limit_) {
        const bool in_some = before && before->bytes > variant->bytes &&
                             offer_some_blocks(networks.repeats(), ways[w - 1], *before, ways[w], *variant);
        if (!in_some) offer_recompute(ways[w], variant);
        return;
      }
      before = variant;
    }
  }

  /// Memory falls linearly with the number of blocks that recompute `more`. Returns false if the number that should fit
  /// does not.
  bool offer_some_blocks(const Repeats& repeats, const Recompute& less, const Variant& of_less, const Recompute& more,
                         const Variant& of_more) {
    const int blocks = num_blocks(repeats);
    const double share =
        static_cast<double>(of_less.bytes - limit_) / static_cast<double>(of_less.bytes - of_more.bytes);
    const int count = static_cast<int>(std::ceil(share * blocks));
    if (count < 1 || count >= blocks) return false;
    const Recompute some =
        recompute_of_some(job_.spec.network, repeats, less, more, count, job_.spec.parallel.stages > 1);
    return offer_recompute(some, measure_recompute(some));
  }

  void offer_others() {
    const JobSpec& spec = job_.spec;
    if (job_.cost.machine().kind == DeviceKind::cuda && job_.graph.trains() && spec.servers() == 0) offer_offload();
    if (spec.parallel.rank_micro_batches.empty() && spec.parallel.micro_batches <= kMaxMicroBatches / 2)
      offer("parallel.micro_batches: " + std::to_string(2 * spec.parallel.micro_batches),
            [](JobSpec& s) { s.parallel.micro_batches *= 2; });
    if (spec.parallel.head_pieces == 0)
      offer("parallel.head_pieces: 16", [](JobSpec& s) { s.parallel.head_pieces = 16; });
    if (!is_half(compute_type(spec.precision)) && spec.launch.device == Device::cuda)  // CPUs compute in fp32
      offer("precision: bf16", [](JobSpec& s) { s.precision = Precision::bf16; });
    if (spec.precision == Precision::bf16 && spec.gradient_precision != Precision::bf16)
      offer("gradient_precision: bf16", [](JobSpec& s) { s.gradient_precision = Precision::bf16; });
  }

  void offer_offload() {
    const OffloadSpec& offload = job_.spec.parallel.offload;
    if (offload.optimizer == StatePlace::device)
      offer("parallel.offload.optimizer: host", [](JobSpec& s) { s.parallel.offload.optimizer = StatePlace::host; });
    if (offload.activations.empty())
      offer("parallel.offload.activations: ['*']", [](JobSpec& s) {
        s.parallel.offload.activations = {{"*", "parallel.offload.activations"}};
      });
  }

  /// Ranks that share heads or rows have fewer activations each.
  void offer_sizes() {
    const ParallelSpec& parallel = job_.spec.parallel;
    const bool has_attention = std::any_of(job_.spec.network.begin(), job_.spec.network.end(),
                                           [](const auto& l) { return l.type == "attention"; });
    if (parallel.mode != ParallelMode::semi_auto_parallel || parallel.data > 0 || !has_attention) return;
    offer_size("context", &ParallelSpec::context);
    offer_size("tensor", &ParallelSpec::tensor);
  }
  void offer_size(const char* name, int ParallelSpec::*size) {
    const ParallelSpec& parallel = job_.spec.parallel;
    const int ranks = job_.spec.launch.ranks / parallel.stages / (parallel.tensor * parallel.context);
    for (int more = 2; more <= ranks; more *= 2)
      if (offer(fmt::format("parallel.{}: {}", name, more * parallel.*size),
                [&](JobSpec& s) { s.parallel.*size *= more; }))
        return;
  }

  /// The best plan of a short search, which keeps all fields that the job gives.
  void offer_search() {
    JobSpec spec = job_.spec;
    if (job_.search || spec.launch.ranks == 1 || spec.servers() > 0 || spec.parallel.local_steps > 0 ||
        !job_.graph.trains() ||
        (spec.parallel.mode != ParallelMode::semi_auto_parallel && spec.parallel.mode != ParallelMode::data_parallel))
      return;
    spec.parallel.mode = ParallelMode::auto_parallel;
    spec.parallel.max_memory = limit_;
    spec.parallel.search = {.effort = Effort::low};
    Problems problems;
    validate(spec, problems);
    if (!problems.empty()) return;  // the mode does not permit all fields of the job
    try {
      const PlannedJob found = plan_job(std::move(spec), inputs_of(job_));
      const Variant variant = measure(found);
      if (variant.bytes <= limit_) searched_ = Fitting{"parallel.mode: auto_parallel", variant};
    } catch (const NoPlanFits& error) {
      smallest_ = "the smallest plan of a search needs " + format_bytes(error.needed()) + "; ";
    } catch (const NoLegalPlan&) {  // the search considers none that the job's fields permit
    }
  }

  void offer_ranks() {
    const JobSpec& spec = job_.spec;
    if (spec.parallel.mode == ParallelMode::stand_alone || spec.launch.ranks > kMaxRanks / 2) return;
    const std::optional<Variant> variant = measure_with(job_, [](JobSpec& s) { s.launch.ranks *= 2; });
    if (variant && variant->bytes <= limit_)
      more_ranks_ = Fitting{"launch.ranks: " + std::to_string(2 * spec.launch.ranks), *variant};
  }

  /// A difference below the accuracy of predictions.
  static constexpr double kSameTime = 1e-3;

  const PlannedJob& job_;
  const int64_t limit_;
  const Variant now_;
  std::vector<Fitting> fitting_;
  std::optional<Fitting> searched_, more_ranks_;
  std::string smallest_;  ///< the message of a search that found no plan
};

}  // namespace

std::optional<MemoryExcess> over_memory_of(const PlannedJob& job, const std::vector<Program>& programs,
                                           const MemoryHolder& holder) {
  const Program& most = largest_program(programs);
  const Memory& m = most.memory;
  if (m.total() <= holder.bytes) return std::nullopt;
  return MemoryExcess{
      fmt::format("rank {} needs {}, {} {}{} ({})", most.rank, format_bytes(m.total()), holder.name,
                  format_bytes(holder.bytes), holder.note.empty() ? "" : " " + holder.note, to_string(m)),
      MemoryAdvice(job, holder.bytes).text()};
}

std::optional<MemoryExcess> over_memory_limit(const PlannedJob& job, const std::vector<Program>& programs) {
  const int64_t limit = job.spec.parallel.max_memory;
  if (limit <= 0) return std::nullopt;
  return over_memory_of(job, programs, {"but parallel.max_memory is", limit, ""});
}

void require_machine_memory(const PlannedJob& job, const std::vector<Program>& programs) {
  const std::optional<DeviceNeed> need = device_need(programs, job.cost.machine());
  if (!need || need->fits()) return;
  const std::string message = fmt::format(
      "rank {} needs {}, and a device of {} has {} less {} for the driver and libraries", need->rank,
      format_bytes(need->bytes), job.cost.machine().name, format_bytes(need->device), format_bytes(need->reserved));
  throw SpecError(job.spec.position("launch.machine"), "launch.machine", message,
                  MemoryAdvice(job, need->usable()).text());
}

void require_memory_limit(const PlannedJob& job, const std::vector<Program>& programs) {
  if (const auto over = over_memory_limit(job, programs))
    throw SpecError(job.spec.position("parallel.max_memory"), "parallel.max_memory", over->message, over->advice);
}

}  // namespace trainctl
