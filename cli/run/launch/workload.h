// The workload of a run: a network that trainctl trains itself, or the user's program.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/launch/profile.h"
#include "cli/run/launch/run_end.h"
#include "cli/run/saves/checkpoints.h"
#include "engine/base/start_up.h"
#include "engine/planning/planned_job.h"
#include "engine/spec/job_spec.h"
#include "engine/train/trainer/generation_request.h"
#include "launcher/live_status.h"
#include "launcher/rank_program.h"
#include "launcher/supervisor.h"

namespace trainctl {

class NetworkOnHosts;

/// Reports of a workload about its run. The defaults suit a program that reports nothing.
class WorkloadReports {
 public:
  virtual ~WorkloadReports() = default;

  // While the ranks run.
  /// Returns whether every rank has started for certain.
  virtual bool is_up() const = 0;
  /// Fills in the progress and the state of each rank.
  virtual void describe(LiveStatus& status) = 0;
  /// Returns the times that ranks take for equal work at the same time, if one persistently takes longer: by rank,
  /// relative to the step. Empty: they take about equally long, or it is not known.
  virtual std::vector<double> uneven_work() const { return {}; }
  /// Lines about the run to show now, each only once. Called often.
  virtual std::vector<std::string> news() { return {}; }
  /// The step after which the current attempt resumes; 0: it starts from the beginning.
  virtual int64_t first_step() const { return 0; }
  /// Progress of the run, also once all ranks have ended; empty if the program does not report it.
  virtual RunResult result() const { return {}; }

  // Once all ranks have ended.
  /// Finishes background work, and returns lines for the user. Waits no longer than until `is_hurried`.
  virtual std::vector<std::string> finish(const std::function<bool()>& /*is_hurried*/) { return {}; }
  /// More fields for outcome.json.
  virtual nlohmann::ordered_json record() const;
  /// Lines to show at the end; may be empty. Throws EnvError.
  virtual std::string summary() { return ""; }
};

class Workload {
 public:
  virtual ~Workload() = default;

  virtual const JobSpec& spec() const = 0;
  /// The output of `trainctl plan --json`.
  virtual nlohmann::ordered_json plan() const = 0;
  /// The devices of its ranks as text: "CPUs"; empty if the program chooses them.
  virtual std::string device() const { return ""; }
  /// Creates resources shared by the ranks of an attempt: memory, store, port. Called before the ranks of each attempt
  /// start.
  virtual void prepare(int attempt, const RunDirectory& directory) = 0;
  /// Sets the limits of `launch`, whether it stops after a step, and the bindings of ranks to CPUs near their GPUs.
  virtual void configure(Launch& launch) = 0;

  virtual RankProgram& program() = 0;
  virtual WorkloadReports& reports() = 0;
  /// launch.hosts: what the ranks share through the launcher; null: nothing.
  virtual NetworkOnHosts* on_hosts() { return nullptr; }
};

/// `trainctl generate`.
struct GenerateOptions {
  GenerationRequest request;
  int output_fd = -1;  ///< where the first rank writes the texts
};

/// Options of `trainctl evaluate` and `trainctl predict`, which read the job's validation set with the weights of a
/// checkpoint, and of `trainctl generate`, which generates texts with these weights.
struct EvaluateOptions {
  std::string checkpoint;  ///< same as ResumeOptions::from, or the number of a run; empty: the weights of the job
  std::string layer;       ///< whose output is written; empty: loss and metrics are computed, and nothing is written
  std::string output;      ///< absolute; a file .npy or .safetensors
  /// With a layer: loss and metrics are computed too, and nothing is written if may_predict() is false.
  bool has_loss = false;
  std::optional<GenerateOptions> generate{};
};

/// Jobs that are planned before their plans are needed: launch.elastic plans for the loss of each host.
class PlansAhead {
 public:
  /// Plans a network's job, unless that is done. Throws SpecError if there is no plan.
  void plan(JobSpec spec);
  /// Returns the result of plan() for the same job; null: there is none.
  const PlannedJob* find(const JobSpec& spec) const;

 private:
  std::map<std::string, PlannedJob> plans_;  ///< by the job's text
};

struct WorkloadOptions {
  std::shared_ptr<const PlansAhead> plans{};  ///< networks only; may be null
  StartUpClock start_up{};                    ///< starts with the command
  ResumeOptions resume{};                     ///< networks only
  bool record = false;                        ///< networks only: each rank writes the collectives of its first step
  std::optional<EvaluateOptions> evaluate;    ///< networks only: nothing is trained
  std::optional<ProfileOptions> profile;      ///< networks only: when each instruction of a few steps ran

  bool generates() const { return evaluate && evaluate->generate; }
  /// Returns whether the ranks read a checkpoint, not the weights that the job starts from.
  bool loads_checkpoint() const;
};

/// Throws SpecError for an option that a job of this kind cannot follow.
void require_possible(const JobSpec& spec, const WorkloadOptions& options);

/// Plans the job and checks that this machine can run it. Throws SpecError, EnvError. `loop` must outlive the result.
std::unique_ptr<Workload> make_workload(JobSpec spec, const WorkloadOptions& options, boost::asio::io_context& loop);

}  // namespace trainctl
