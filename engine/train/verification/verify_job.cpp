// Verifies a job: proves its programs, and runs a reduced form of it on threads of this process, under its own plan and
// on one rank.
#include "engine/train/verification/verify_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/compile/verify/verify_programs.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/plan_graph.h"
#include "engine/runtime/initial_weights.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/spec/parse.h"
#include "engine/spec/replicas.h"
#include "engine/train/checkpoint/restore.h"
#include "engine/train/checkpoint/resume_checks.h"
#include "engine/train/checkpoint/resume_position.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/verification/compare_values.h"
#include "engine/train/verification/loss_slope.h"
#include "engine/train/verification/reduced_job.h"
#include "engine/train/verification/saved_state.h"
#include "engine/train/verification/update_rule.h"

namespace trainctl {
namespace {

// Relative differences that may arise in f32 because another plan adds the terms of sums in another order.
constexpr double kLossTolerance = 1e-5, kGradientTolerance = 1e-4, kMoveTolerance = 1e-2;
constexpr double kGradientFloor = 1e-2, kMoveFloor = 1e-3;
/// Gradients whose norm is smaller than this, relative to the norm of all gradients, consist of the rounding errors of
/// sums that cancel.
constexpr double kRounding = 1e-6;
constexpr double kSlopeTolerance = 3e-4, kUpdateTolerance = 3e-4;
constexpr size_t kMostListed = 8;

using Clock = std::chrono::steady_clock;

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &utc);
  return text;
}

/// A temporary folder that is deleted together with this object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "trainctl_verify_XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr)
      throw EnvError("cannot create " + path + ": " + std::strerror(errno) +
                     "; set TMPDIR to a folder that can be written");
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// The job with the same network and update, but on one rank.
JobSpec one_rank(JobSpec spec) {
  const int micro_batches = spec.parallel.micro_batches;
  spec.parallel = {};
  spec.parallel.micro_batches = micro_batches;
  const LaunchSpec launch = std::exchange(spec.launch, {});
  spec.launch.device = launch.device;
  spec.launch.timeout_seconds = launch.timeout_seconds;
  return spec;
}

class JobVerifier {
 public:
  JobVerifier(const JobSpec& spec, const VerifyOptions& options) : options_(options), given_(spec) {
    certificate_.name = spec.name;
    certificate_.trainctl = options.trainctl;
    certificate_.written = time_text();
    certificate_.ranks = spec.processes();
    certificate_.steps = options.steps;
  }

  Certificate run() {
    const Clock::time_point start = Clock::now();
    const PlannedJob whole = plan_job(given_);
    certificate_.digest = job_digest(whole.spec);
    prove_whole(whole);
    if (const std::string reason = why_not_run(whole.spec); !reason.empty())
      skip_all(reason);
    else
      compare_runs(without_local_steps(whole.spec));  // the plan of a replica computes the numbers of one rank
    certificate_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return std::move(certificate_);
  }

 private:
  void begins(const std::string& what) const {
    if (options_.on_progress) options_.on_progress(what);
  }

  VerifiedCheck& add(const char* name, const char* rule) {
    return certificate_.checks.emplace_back(VerifiedCheck{.name = name, .rule = rule});
  }

  static void fail(VerifiedCheck& check, std::vector<std::string> findings) {
    if (findings.empty()) return;
    check.status = CheckStatus::failed;
    const size_t all = findings.size();
    if (all > kMostListed) {
      findings.resize(kMostListed);
      findings.push_back(fmt::format("{} more", all - kMostListed));
    }
    for (std::string& finding : findings) check.findings.push_back(std::move(finding));
  }

  void prove_whole(const PlannedJob& job) {
    begins("the proof");
    VerifiedCheck& check =
        add("proof",
            "every rank reads only what was written, sends match receives, collectives match, no rank "
            "waits forever, and each gradient is reduced and each weight updated once");
    const RankClasses classes = job.compiled ? job.compiled->classes : compile_unverified(job);
    std::vector<std::string> faults;
    for (const ProgramFault& fault : verify_classes(classes)) faults.push_back(to_string(fault));
    fail(check, std::move(faults));
    size_t instructions = 0;
    for (const Program& program : classes.programs) instructions += program.instructions.size();
    check.summary = fmt::format("{} of {}, {} instructions", plural(static_cast<int64_t>(classes.num_ranks()), "rank"),
                                plural(static_cast<int64_t>(classes.programs.size()), "class", "classes"),
                                with_commas(static_cast<int64_t>(instructions)));
  }

  static std::string plural(int64_t count, const char* one, const char* many = nullptr) {
    const std::string word = count == 1 ? one : many == nullptr ? std::string(one) + "s" : many;
    return with_commas(count) + " " + word;
  }

  static std::string why_not_run(const JobSpec& spec) {
    if (spec.parallel.mode == ParallelMode::hybrid_parallel)
      return "in hybrid_parallel the network itself contains the plan, so one rank cannot run it";
    if (spec.servers() > 0) return "parameter servers need processes";
    if (spec.launch.ranks > kMostThreadRanks)
      return fmt::format("{} ranks are more than the {} that run as threads", with_commas(spec.launch.ranks),
                         kMostThreadRanks);
    return "";
  }

  void skip_all(const std::string& reason) {
    for (const auto& [name, rule] :
         std::initializer_list<std::pair<const char*, const char*>>{{"losses", kLossRule},
                                                                    {"gradients", kGradientRule},
                                                                    {"weights", kWeightRule},
                                                                    {"slope", kSlopeRule},
                                                                    {"update", kUpdateRule},
                                                                    {"communication", kCommunicationRule},
                                                                    {"memory", kMemoryRule},
                                                                    {"repeat", kRepeatRule},
                                                                    {"resume", kResumeRule}}) {
      VerifiedCheck& check = add(name, rule);
      check.status = CheckStatus::skipped;
      check.summary = reason;
    }
  }

  /// Runs a smaller version of the job on one rank, under its plan twice, and resumed, and compares the results.
  void compare_runs(const JobSpec& planned) {
    begins("a smaller job");
    ReducedJob reduced = reduce_job(verified_spec(planned, options_.steps), options_.most_work);
    certificate_.changes = reduced.changes;
    PlannedJob job = std::move(reduced.job);
    job.spec.train.histograms = options_.steps + 1;  // gradients are kept
    job = plan_job(std::move(job.spec));
    if (options_.fault.in_rules) {
      options_.fault.in_rules(job.graph);
      PlanMemo memo;
      plan_graph(job, memo);
      job.compiled = nullptr;
    }
    const PlannedJob reference = plan_job(one_rank(job.spec));
    std::vector<Program> programs = compile_all(job);
    const std::vector<Program> planned_programs = programs;
    if (options_.fault.in_programs) options_.fault.in_programs(programs);
    if (!prove_reduced(programs)) return;
    std::vector<Program> alone = compile_all(reference);
    if (options_.fault.in_reference) options_.fault.in_reference(alone);
    try {
      begins("one rank");
      UpdateWitness witness;
      ThreadRunOptions witnessed = run_options();
      witnessed.at_step = [&](const Program& program, int64_t step, Executor& executor) {
        witness.look(program, step, executor);
      };
      const ThreadRun expected = run_on_threads(reference, alone, witnessed);
      begins(plural(static_cast<int64_t>(programs.size()), "rank"));
      SavedState saved(options_.steps / 2, programs.size());
      const ThreadRun first = run_plan(job, programs, &saved);
      compare_with_reference(first, expected, labels_of_step(job));
      const TensorValues gradients = gradients_before_clipping(reference, expected);
      check_slope(reference, alone, expected.losses.at(0), gradients);
      check_update(reference, witness, expected.first_gradients, gradients);
      check_communication(first, planned_programs);
      check_memory(first, planned_programs);
      begins("the same run again");
      check_repeat(first, run_plan(job, programs, nullptr));
      begins("a resumed run");
      check_resume(job, programs, reference, alone, first, saved);
    } catch (const EnvError& error) {
      fail(add("run", "the ranks finish without an error"), {error.what()});
    } catch (const std::runtime_error& error) {
      fail(add("run", "the ranks finish without an error"), {error.what()});
    } catch (const InternalError& error) {
      fail(add("run", "the ranks finish without an error"), {error.what()});
    }
  }

  /// False if there are faults: the programs might then wait forever.
  bool prove_reduced(const std::vector<Program>& programs) {
    std::vector<std::string> faults;
    for (const ProgramFault& fault : verify_programs(programs)) faults.push_back(to_string(fault));
    const bool is_proved = faults.empty();
    fail(certificate_.checks.front(), std::move(faults));
    return is_proved;
  }

  ThreadRunOptions run_options() const {
    ThreadRunOptions run;
    run.timeout_seconds = options_.timeout_seconds;
    return run;
  }

  ThreadRun run_plan(const PlannedJob& job, const std::vector<Program>& programs, SavedState* saved) {
    ThreadRunOptions run = run_options();
    const int number = runs_++;
    run.at_step = [&, number](const Program& program, int64_t step, Executor& executor) {
      if (options_.fault.in_state) options_.fault.in_state(number, program, step, executor);
      if (saved != nullptr) saved->look(program, step, executor);
    };
    return run_on_threads(job, programs, run);
  }

  void add_difference(const char* name, const char* rule, const ValueDifference& difference, double tolerance,
                      const std::string& of) {
    VerifiedCheck& check = add(name, rule);
    check.largest = difference.largest;
    check.tolerance = tolerance;
    check.summary = difference.at.empty() ? "no difference in " + of
                                          : fmt::format("largest relative difference {:.1e} in {}, at {}",
                                                        difference.largest, of, difference.at);
    fail(check, difference.findings);
  }

  /// Labels that the metrics of a step count.
  static int64_t labels_of_step(const PlannedJob& job) {
    for (const Tensor& tensor : job.graph.tensors)
      if (tensor.name == "label") return num_elements(tensor.shape) * job.spec.parallel.micro_batches;
    return job.spec.dataset.batch;
  }

  void compare_with_reference(const ThreadRun& run, const ThreadRun& expected, int64_t labels) {
    ValueDifference losses = compare_losses(run.losses, expected.losses, kLossTolerance);
    for (std::string& finding : metric_differences(run, expected, kLossTolerance, labels))
      losses.findings.push_back(std::move(finding));
    add_difference("losses", kLossRule, losses, kLossTolerance,
                   plural(static_cast<int64_t>(expected.losses.size()), "step"));
    add_difference("gradients", kGradientRule,
                   compare_tensors(run.first_gradients, expected.first_gradients, kGradientTolerance, kGradientFloor),
                   kGradientTolerance, plural(static_cast<int64_t>(expected.first_gradients.size()), "gradient"));
    ValueDifference moves = compare_moves(run.end, expected.end, expected.start, kMoveTolerance, kMoveFloor,
                                          rounding_alone(expected.first_gradients, kRounding));
    for (const std::string& fault : run.faults) moves.findings.push_back(fault);
    add_difference("weights", kWeightRule, moves, kMoveTolerance,
                   plural(static_cast<int64_t>(expected.end.size()), "tensor"));
  }

  /// The gradients of the first step. With clip_parameter_norm, a step leaves clipped ones behind, so the step is run
  /// again without the limit.
  TensorValues gradients_before_clipping(const PlannedJob& reference, const ThreadRun& expected) {
    if (reference.spec.optimizer.clip_parameter_norm <= 0) return expected.first_gradients;
    begins("the gradients before clipping");
    JobSpec spec = reference.spec;
    spec.optimizer.clip_parameter_norm = 0;
    spec.train.steps = 1;
    const PlannedJob unclipped = plan_job(std::move(spec));
    std::vector<Program> programs = compile_all(unclipped);
    if (options_.fault.in_reference) options_.fault.in_reference(programs);
    return run_on_threads(unclipped, programs, run_options()).first_gradients;
  }

  /// Moves the weights along their gradients and compares the change of the loss with the one that the gradients
  /// predict.
  void check_slope(const PlannedJob& reference, const std::vector<Program>& programs, float first_loss,
                   const TensorValues& gradients) {
    begins("the slope of the loss");
    VerifiedCheck& check = add("slope", kSlopeRule);
    PlannedJob step = reference;
    step.spec.train.steps = 1;
    const LossAt loss_at = [&](const MoveWeights& move) {
      ThreadRunOptions run = run_options();
      run.restore = [&](const Program& program, Executor& executor) {
        for (const StoredRange& range : stored_ranges(program)) {
          if (!has_initial_values(range) || range.dtype != DType::f32 || range.is_copy) continue;
          std::vector<float> values(static_cast<size_t>(range.count));
          executor.read(range.offset, values.data(), range.bytes());
          move(range.variable->name, values);
          executor.write(range.offset, values.data(), range.bytes());
        }
      };
      return run_on_threads(step, programs, run).losses.at(0);
    };
    const std::vector<LossSlope> slopes =
        loss_slopes(gradients, first_loss, loss_at, kSlopeTolerance, options_.slope_seconds);
    check.tolerance = kSlopeTolerance;
    std::vector<std::string> findings;
    size_t known = 0;
    double largest = 0;
    for (const LossSlope& slope : slopes) {
      if (slope.difference() > kSlopeTolerance && slope.is_uncertain()) continue;
      ++known;
      largest = std::max(largest, slope.difference());
      if (slope.difference() > kSlopeTolerance)
        findings.push_back(fmt::format("{}: the loss changes by {:.6g}, but the gradient predicts {:.6g}", slope.of,
                                       slope.measured, slope.expected));
    }
    check.summary =
        fmt::format("largest relative difference {:.1e} in {}", largest, plural(static_cast<int64_t>(known), "tensor"));
    if (known > 0) check.largest = largest;
    if (known < slopes.size())
      check.summary += fmt::format("; {} left out, because the loss is not smooth along them", slopes.size() - known);
    if (known == 0) {
      check.status = CheckStatus::skipped;
      check.summary = slopes.empty() ? "no weight is trained" : "the loss is not smooth along the gradients";
    }
    fail(check, std::move(findings));
  }

  /// `clipped`: the gradients that the first step leaves behind; `gradients`: the same before clip_parameter_norm.
  void check_update(const PlannedJob& reference, const UpdateWitness& witness, const TensorValues& clipped,
                    const TensorValues& gradients) {
    const OptimizerSpec& optimizer = reference.spec.optimizer;
    std::string reason = why_not_recomputed(optimizer);
    if (reason.empty() && !witness.is_complete()) reason = "no gradient is kept until the end of a step";
    if (reason.empty()) {
      ValueDifference difference = witness.compare(reference.graph, optimizer, kUpdateTolerance);
      if (optimizer.clip_parameter_norm > 0) {
        const ValueDifference limited = compare_tensors(
            clipped, limited_norms(gradients, optimizer.clip_parameter_norm), kUpdateTolerance, kGradientFloor);
        for (const std::string& finding : limited.findings)
          difference.findings.push_back("clip_parameter_norm: " + finding);
      }
      return add_difference("update", kUpdateRule, difference, kUpdateTolerance,
                            plural(kRecomputedUpdates, "update") + " of " + optimizer.type);
    }
    VerifiedCheck& check = add("update", kUpdateRule);
    check.status = CheckStatus::skipped;
    check.summary = reason;
  }

  void check_communication(const ThreadRun& run, const std::vector<Program>& planned) {
    VerifiedCheck& check = add("communication", kCommunicationRule);
    std::vector<std::string> findings;
    int64_t bytes = 0;
    size_t calls = 0;
    for (size_t r = 0; r < planned.size(); ++r) {
      const std::vector<RecordedCall> expected = planned_calls(planned[r]);
      const std::vector<RecordedCall>& made = run.calls[r];
      calls += made.size();
      for (const RecordedCall& call : made) bytes += call.bytes;
      const auto [a, b] = std::mismatch(made.begin(), made.end(), expected.begin(), expected.end());
      if (a != made.end() || b != expected.end())
        findings.push_back(fmt::format("rank {}, call {}: {}, planned {}", r, a - made.begin() + 1,
                                       a == made.end() ? "nothing" : to_string(*a),
                                       b == expected.end() ? "nothing" : to_string(*b)));
      if (!run.calls_repeat[r]) findings.push_back(fmt::format("rank {} makes different calls in a later step", r));
    }
    check.summary =
        fmt::format("{} of {} bytes in each step", plural(static_cast<int64_t>(calls), "call"), with_commas(bytes));
    fail(check, std::move(findings));
  }

  void check_memory(const ThreadRun& run, const std::vector<Program>& planned) {
    VerifiedCheck& check = add("memory", kMemoryRule);
    std::vector<std::string> findings;
    int64_t most = 0;
    for (size_t r = 0; r < planned.size(); ++r) {
      most = std::max(most, run.arena_bytes[r]);
      if (run.arena_bytes[r] != planned[r].memory.arena())
        findings.push_back(fmt::format("rank {} has {} bytes, planned {}", r, with_commas(run.arena_bytes[r]),
                                       with_commas(planned[r].memory.arena())));
    }
    for (const std::string& fault : run.faults)
      if (fault.find("arena") != std::string::npos) findings.push_back(fault);
    check.summary = fmt::format("at most {} bytes for a rank", with_commas(most));
    fail(check, std::move(findings));
  }

  void check_repeat(const ThreadRun& first, const ThreadRun& second) {
    VerifiedCheck& check = add("repeat", kRepeatRule);
    std::vector<std::string> findings;
    for (const std::string& name : differing_bits(first, second)) findings.push_back(name + " has other bits");
    check.summary = fmt::format("{} losses and {} are compared", first.losses.size(),
                                plural(static_cast<int64_t>(first.end.size()), "tensor"));
    fail(check, std::move(findings));
  }

  ThreadRun resume(const PlannedJob& job, const std::vector<Program>& programs, const std::string& checkpoint) {
    const Manifest manifest = read_manifest(checkpoint);
    require_same_state(job, manifest, checkpoint, false);
    ThreadRunOptions run = run_options();
    run.from = position_after(job, manifest, checkpoint);
    run.restore = [&](const Program& program, Executor& executor) {
      PieceReader reader(manifest, checkpoint);
      restore(program, reader, executor);
    };
    return run_on_threads(job, programs, run);
  }

  /// Resumes from a checkpoint under the same plan, which must give the same bits, and under another one.
  void check_resume(const PlannedJob& job, const std::vector<Program>& programs, const PlannedJob& reference,
                    const std::vector<Program>& alone, const ThreadRun& first, SavedState& saved) {
    VerifiedCheck& check = add("resume", kResumeRule);
    const TemporaryFolder folder;
    const std::string checkpoint = saved.write(job, folder.path() + "/checkpoints", options_.trainctl);
    std::vector<std::string> findings;
    const ThreadRun same = resume(job, programs, checkpoint);
    const std::vector<float> rest(first.losses.end() - static_cast<ptrdiff_t>(same.losses.size()), first.losses.end());
    if (same.losses != rest) findings.emplace_back("under the same plan, the losses have different bits");
    for (const std::string& name : differing_bits(same, first))
      if (name != "losses") findings.push_back("under the same plan " + name + " has other bits");
    std::optional<PlannedJob> other = job.spec.launch.ranks > 1 ? reference : two_ranks(job.spec);
    if (other) {
      const std::vector<Program> others = job.spec.launch.ranks > 1 ? alone : compile_all(*other);
      const ThreadRun moved = resume(*other, others, checkpoint);
      const ValueDifference losses = compare_losses(moved.losses, rest, kLossTolerance);
      const ValueDifference moves = compare_moves(moved.end, first.end, first.start, kMoveTolerance, kMoveFloor,
                                                  rounding_alone(first.first_gradients, kRounding));
      const std::string plan = plural(other->spec.launch.ranks, "rank");
      for (const ValueDifference* each : {&losses, &moves})
        for (const std::string& finding : each->findings) findings.push_back(fmt::format("on {}: {}", plan, finding));
      check.largest = std::max(losses.largest, moves.largest);
      check.tolerance = kMoveTolerance;
      check.summary = fmt::format("after step {}, with the same bits on the same plan, and on {} within {:.1e}",
                                  options_.steps / 2, plan, *check.largest);
    } else {
      check.summary = fmt::format("after step {}, on the same plan", options_.steps / 2);
    }
    fail(check, std::move(findings));
  }

  /// A one-rank job on two ranks that share the batch; nothing if its batch cannot be shared.
  static std::optional<PlannedJob> two_ranks(JobSpec spec) {
    spec.launch.ranks = 2;
    spec.parallel.mode = ParallelMode::data_parallel;
    spec.parallel.strategies.clear();
    try {
      return plan_job(std::move(spec));
    } catch (const SpecError&) {
      return std::nullopt;
    }
  }

  static constexpr const char* kLossRule = "the losses and metrics are those of one rank";
  static constexpr const char* kGradientRule = "the gradients of the first step are those of one rank";
  static constexpr const char* kWeightRule =
      "weights, optimizer states and statistics change as on one rank, and all replicas have the same bits";
  static constexpr const char* kSlopeRule = "the gradients describe how the loss changes with the weights";
  static constexpr const char* kUpdateRule = "the first updates follow the optimizer's formula in double precision";
  static constexpr const char* kCommunicationRule = "the ranks send the messages of the plan, in its order";
  static constexpr const char* kMemoryRule = "the ranks use the memory of the plan, and write nowhere else";
  static constexpr const char* kRepeatRule = "a second run has the same bits";
  static constexpr const char* kResumeRule = "a run resumes from a checkpoint, on this plan and on another";

  const VerifyOptions& options_;
  const JobSpec& given_;
  Certificate certificate_;
  int runs_ = 0;  ///< number of runs of the plan so far
};

}  // namespace

Certificate verify_job(const JobSpec& spec, const VerifyOptions& options) {
  if (spec.has_command())
    throw SpecError(spec.position("command"), "command",
                    "trainctl verify compares runs of a network, and this job starts a program",
                    "verify a job with a network");
  check(options.steps >= 2, "verification needs two steps");
  return JobVerifier(spec, options).run();
}

}  // namespace trainctl
