// trainctl run: plans, verifies, starts one worker a rank, and watches over them to the end.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/render/run_view.h"
#include "cli/render/terminal.h"
#include "cli/worker/host_memory.h"
#include "cli/worker/rank_failure.h"
#include "cli/worker/rendezvous.h"
#include "engine/base/text.h"
#include "engine/compile/report.h"
#include "engine/spec/parse.h"
#include "engine/train/job.h"
#include "engine/train/memory_limit.h"
#include "launcher/failure_report.h"
#include "launcher/protocol.h"
#include "launcher/supervisor.h"

namespace trainctl {
namespace {

struct Options {
  JobArguments job;
  bool record = false;
};

/// One run, from the planned job to the exit code.
class Run {
 public:
  Run(PlannedJob job, bool record)
      : job_(std::move(job)),
        record_(record),
        programs_(compile_all(job_)),
        memory_(SharedMemory::create(arena_bytes())),
        cluster_(one_host(job_.plan.ranks)),
        directory_(RunDirectory::create(job_.spec.launch.log_dir, job_.plan.ranks)),
        lock_(directory_),
        view_(STDOUT_FILENO, job_.spec) {}

  int operator()() {
    write_job();
    if (needs_store(job_.spec)) open_store();
    view_.begin(directory_, cluster_.num_ranks());
    PosixProcessRunner runner;
    const Outcome outcome = supervise(launch(), runner, loop_);
    finish(outcome);
    return outcome.exit_code;
  }

 private:
  std::vector<int64_t> arena_bytes() const {
    std::vector<int64_t> bytes;
    for (const Program& program : programs_) bytes.push_back(program.arena_bytes);
    require_memory_limit(job_, programs_);
    require_memory(bytes);
    return bytes;
  }

  void write_job() const {
    // Workers read it from another folder: no path may be relative.
    JobSpec resolved = job_.spec;
    if (!resolved.dataset.path.empty()) resolved.dataset.path = std::filesystem::absolute(resolved.dataset.path);
    resolved.launch.log_dir = std::filesystem::absolute(resolved.launch.log_dir);
    directory_.write("job.yaml", to_yaml(resolved));
    directory_.write("plan.json", plan_report(job_.spec, job_.graph, job_.plan, programs_).dump(2) + "\n");
  }

  void open_store() {
    token_ = store::random_token();
    store_ = std::make_unique<StoreServer>(loop_, token_);
  }

  Launch launch() {
    Launch launch{.cluster = cluster_, .directory = directory_, .command = [this](const RankPlace& place, int) {
                    return worker_command(place.rank);
                  }};
    const LaunchSpec& spec = job_.spec.launch;
    launch.limits.grace_seconds = spec.grace_seconds;
    launch.limits.timeout_seconds = spec.timeout_seconds;
    launch.limits.max_restarts = spec.max_restarts;
    launch.bindings = bindings(cluster_.places, read_topology(), spec.bind);
    launch.ask_to_stop = [this] { memory_->gate().ask_to_stop(); };
    launch.stopped_at = [this] { return stopped_at(); };
    launch.progress = [this](int rank) -> std::optional<RankProgress> {
      return progress_of(memory_->status(rank), programs_[static_cast<size_t>(rank)]);
    };
    launch.on_restart = [this](int) { start_afresh(); };
    launch.on_line = [this](int rank, std::string_view line) {
      if (rank == 0) view_.line(line);
    };
    launch.on_rank_ended = [this](int rank, bool failed) {
      if (failed) memory_->status(rank).state = RankState::failed;  // peers stop waiting for it
    };
    launch.doing = [this](int rank) {
      return describe_position(memory_->status(rank), programs_[static_cast<size_t>(rank)]);
    };
    launch.on_tick = [this] { view_.tick(memory_->status(0)); };
    launch.on_notice = [this](std::string_view message) { view_.notice(message); };
    return launch;
  }

  /// Nothing where all ranks had started their last step before they were asked.
  std::optional<int64_t> stopped_at() const {
    const auto highest = static_cast<int64_t>(memory_->gate().highest());
    const int64_t all = memory_->status(0).total_steps.load();
    if (!memory_->gate().asked_to_stop() || (highest > 0 && highest == all)) return std::nullopt;
    return highest;
  }

  /// Whatever the ranks of the last attempt left half done is none of the next one's business. There are no
  /// checkpoints yet, so the training begins anew.
  void start_afresh() {
    memory_ = SharedMemory::create(arena_bytes());
    if (store_) open_store();
    view_.notice("the training starts from its beginning");
  }

  ProcessCommand worker_command(int rank) const {
    ProcessCommand command;
    command.argv = {std::filesystem::read_symlink("/proc/self/exe"),
                    "worker",
                    job_.spec.launch.log_dir,
                    std::to_string(directory_.run()),
                    "--rank",
                    std::to_string(rank),
                    "--memory-fd",
                    std::to_string(memory_->fd())};
    if (record_) command.argv.emplace_back("--record");
    if (store_) command.environment = store_environment(store_->port(), token_);
    command.inherited_fds = {memory_->fd()};
    return command;
  }

  void finish(const Outcome& outcome) {
    view_.end(outcome, directory_);
    directory_.write("outcome.json", outcome_json(outcome));
    if (outcome.cause.kind == Cause::Kind::none) return;
    directory_.write("error.json", failure_json(outcome, cluster_));
    if (outcome.exit_code == kExitRankFailed) {
      std::cerr << failure_report(outcome, cluster_, directory_) << std::flush;
    }
  }

  PlannedJob job_;
  const bool record_;
  const std::vector<Program> programs_;
  std::shared_ptr<SharedMemory> memory_;
  const Cluster cluster_;
  const RunDirectory directory_;
  const RunLock lock_;
  RunView view_;
  boost::asio::io_context loop_;
  std::string token_;
  std::unique_ptr<StoreServer> store_;
};

void require_device(const JobSpec& spec) {
  if (spec.launch.device != Device::cuda) return;
  throw EnvError("launch.device is cuda, but this trainctl was built without CUDA; set launch.device=cpu");
}

}  // namespace

void add_run_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("run", "Train: start one process a rank and watch over them");
  options->job.add_to(*command);
  command->add_flag("--record", options->record,
                    "Each rank writes the collectives of its first step to rank.N/collectives.jsonl");
  command->footer(
      R"(Plans and verifies the job, then starts its ranks. Their output goes to log_output/<run>/rank.<N>/stdout
and stderr; the first rank's is shown. Ctrl-C asks the ranks to stop, a second one kills them.

Examples:
  trainctl run job.yaml
  trainctl run job.yaml launch.ranks=4 parallel.stages=2 train.steps=100)");
  command->callback([&chosen, options] {
    chosen = [options] {
      PlannedJob job = plan_job(options->job.load());
      require_device(job.spec);
      return Run(std::move(job), options->record)();
    };
  });
}

}  // namespace trainctl
