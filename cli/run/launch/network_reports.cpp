// Reports of a network about its run: progress, states of ranks, and, at the end, its result.
#include "cli/run/launch/network_reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/run/worker/rank_output.h"
#include "cli/text/start_up_report.h"
#include "cli/text/workers_report.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/compile/report/product_flops.h"
#include "engine/compile/report/token_traffic.h"
#include "engine/plan/served.h"
#include "engine/planning/run_length.h"
#include "engine/spec/schedule.h"
#include "engine/train/data/order.h"
#include "engine/train/data/sample_notes.h"
#include "launcher/cluster.h"
#include "launcher/protocol.h"

namespace trainctl {
namespace {

/// Start-ups on CPUs that take less time than this are not reported.
constexpr double kReportAfterSeconds = 1;

// A rank is a straggler if it works for at least kStragglerBusy of the time and kStraggles times as long as another, in
// two windows in a row.
constexpr double kWorkWindowSeconds = 10, kStraggles = 1.5, kStragglerBusy = 0.5;
/// A rank whose work takes a smaller fraction of the time is not compared, because such short work is not measured
/// exactly.
constexpr double kLeastBusy = 0.05;

/// Returns a warning if the learning-rate schedule ends before the run does, as it may in a resumed run that has more
/// epochs.
std::string end_of_rate_warning(const PlannedJob& job) {
  const ScheduleSpec& rate = job.spec.optimizer.learning_rate;
  const int64_t steps = total_steps(job.spec.train, steps_per_epoch(job.spec.dataset, job.data.samples));
  const std::string outlived = outlived_schedule(rate, steps);
  if (outlived.empty()) return "";
  const bool is_useless = learning_rate(rate, steps - 1, steps) == 0;
  if (!rate.segments.empty()) return fmt::format("warning: {}. Lengthen the last segment", outlived);
  return fmt::format("warning: {}. Set total_steps: {}{}", outlived, steps, is_useless ? ", or set min" : "");
}

/// Lines to show once the ranks are started.
std::vector<std::string> lines_at_start(const PlannedJob& job) {
  std::vector<std::string> lines;
  if (std::string warning = end_of_rate_warning(job); !warning.empty()) lines.push_back(std::move(warning));
  for (const std::string& note : notes_on_samples(job)) lines.push_back("note: " + printable(note));
  return lines;
}

/// A line that names the files of printed tensors, if there are any.
std::string printed_tensors_line(const JobSpec& spec, const RunDirectory& directory) {
  const std::string folder = directory.file("tensors");
  std::error_code error;
  if (spec.print.format != PrintFormat::npy || !std::filesystem::is_directory(folder, error)) return "";
  return "printed tensors in " + folder + "/step.N/NAME.npy";
}

}  // namespace

NetworkReports::NetworkReports(const PlannedJob& job, const RankClasses& classes, Checkpoints& checkpoints,
                               const WorkloadOptions& options, const std::vector<CudaDevice>& gpus,
                               const NetworkOnHosts* on_hosts)
    : job_(job),
      classes_(classes),
      checkpoints_(checkpoints),
      options_(options),
      gpus_(gpus),
      on_hosts_(on_hosts),
      flops_(model_flops(job.graph, job.plan)),
      at_start_(options.evaluate ? std::vector<std::string>() : lines_at_start(job)),
      states_(classes) {}

void NetworkReports::begin(std::shared_ptr<const SharedMemory> board, const RunDirectory& directory) {
  board_ = std::move(board);
  directory_.emplace(directory);
  states_ = RankStates(classes_);
  uneven_work_.clear();
  straggler_ = -1;
  start_up_reported_ = false;
}

std::optional<int64_t> NetworkReports::stopped_at() const {
  const auto last = job_.plan.is_asynchronous() ? finished_steps() : static_cast<int64_t>(board_->gate().highest());
  const int64_t total = total_steps();
  if (!board_->gate().asked_to_stop() || (total > 0 && last >= total)) return std::nullopt;
  return last;
}

/// Returns the number of steps that the whole run has finished.
int64_t NetworkReports::finished_steps() const {
  if (!job_.plan.is_asynchronous()) return static_cast<int64_t>(board_->status(0).finished_steps.load());
  return board_->batches().first() + board_->batches().finished();
}

/// An asynchronous worker whose validation has ended the run reports fewer steps; it need not be rank 0.
int64_t NetworkReports::total_steps() const {
  auto least = static_cast<int64_t>(board_->status(0).total_steps.load());
  for (int rank = 1; rank < job_.plan.own_workers; ++rank)
    if (const auto steps = static_cast<int64_t>(board_->status(rank).total_steps.load()); steps > 0)
      least = std::min(least, steps);
  return least;
}

double NetworkReports::samples_per_second() const {
  double sum = 0;
  for (int rank = 0; rank < std::max(1, job_.plan.own_workers); ++rank)
    sum += static_cast<double>(board_->status(rank).samples_per_second.load());
  return sum;
}

bool NetworkReports::is_up() const {
  for (int rank = 0; rank < classes_.num_ranks(); ++rank)
    if (board_->status(rank).state.load() < RankState::training) return false;
  return true;
}

Metrics NetworkReports::metrics() const {
  const RankStatus& first = board_->status(0);
  Metrics all;
  for (size_t i = 0; i < job_.graph.metrics.size(); ++i)
    all.emplace_back(job_.graph.metrics[i].name, static_cast<double>(first.metrics[i].load()));
  return all;
}

void NetworkReports::describe(LiveStatus& status) {
  const RankStatus& first = board_->status(0);
  status.epoch = first.epoch.load();
  status.epochs = first.total_epochs.load();
  status.step = first.step.load();
  status.steps = static_cast<int64_t>(first.total_steps.load());
  if (job_.spec.loss && status.epoch > 0) {  // set by its first report
    status.loss = first.loss.load();
    status.metrics = metrics();
  }
  status.samples_per_second = samples_per_second();
  status.tokens_per_second = status.samples_per_second * static_cast<double>(job_.spec.dataset.length);
  status.share_of_peak = share_of_peak(status.samples_per_second);
  const int64_t steps_left = status.steps - finished_steps();
  if (status.samples_per_second > 0)
    status.seconds_left =
        static_cast<double>(steps_left) * static_cast<double>(job_.spec.dataset.batch) / status.samples_per_second;
  const double now = steady_seconds();
  std::vector<std::string> texts = states_.describe(*board_, now);
  status.slowest = states_.slowest();
  for (const CudaDevice& gpu : gpus_) status.gpus.push_back(gpu.index);
  stopped_.describe(texts, now);
  status.ranks = group_ranks(texts, {job_.spec.launch.ranks});
}

/// Computed only on GPUs: the peak rate of CPU cores that ranks share is not known.
double NetworkReports::share_of_peak(double samples_per_second) const {
  if (gpus_.empty() || job_.plan.is_asynchronous()) return 0;
  const DType type = compute_type(job_.spec.precision);
  const double rate = job_.cost.machine().product_rate(type, job_.spec.precision == Precision::tf32).value;
  const double steps = samples_per_second / static_cast<double>(job_.spec.dataset.batch);
  return rate > 0 ? flops_ * steps / (rate * classes_.num_ranks()) : 0;
}

std::string NetworkReports::watch_work() {
  // Ranks of a pipeline wait for each other by design, and replicas only where they synchronize.
  if (job_.plan.num_stages > 1 || job_.plan.servers > 0 || job_.plan.has_replicas() || classes_.num_ranks() < 2)
    return "";
  states_.sample(*board_, steady_seconds());
  const char* const seconds = std::getenv("TRAINCTL_STRAGGLER_SECONDS");  // for tests
  const std::vector<double> busy = states_.take_window(seconds != nullptr ? std::atof(seconds) : kWorkWindowSeconds);
  if (busy.empty()) return "";
  const auto [least, most] = std::minmax_element(busy.begin(), busy.end());
  const double ratio = *most / std::max(*least, kLeastBusy);
  const int rank = ratio < kStraggles || *most < kStragglerBusy ? -1 : static_cast<int>(most - busy.begin());
  const bool is_persistent = rank >= 0 && rank == std::exchange(straggler_, rank);
  uneven_work_ = is_persistent ? busy : std::vector<double>{};
  if (!is_persistent || rank == named_) return "";
  named_ = rank;
  const std::vector<std::string>& hosts = job_.spec.launch.hosts;
  const std::string host =
      hosts.empty() ? "" : " on host " + several_hosts(job_.spec).places[static_cast<size_t>(rank)].host;
  return fmt::format("rank {}{} takes {:.1f} times as long for its work as rank {}, which waits for it", rank, host,
                     ratio, least - busy.begin());
}

std::vector<std::string> NetworkReports::news() {
  std::vector<std::string> lines = checkpoints_.news();
  if (std::string line = watch_work(); !line.empty()) lines.push_back(std::move(line));
  for (std::string& line : std::exchange(at_start_, {})) lines.push_back(std::move(line));
  watch_gpu();
  if (start_up_reported_) return lines;
  for (int rank = 0; rank < job_.spec.processes(); ++rank) {
    if (board_->status(rank).epoch.load() == 0) return lines;  // its first step is not finished
  }
  start_up_reported_ = true;
  lines.push_back(start_up_line(read_start_ups(*directory_, job_.spec.processes()),
                                gpus_.empty() ? kReportAfterSeconds : 0, directory_->names()));
  return lines;
}

/// Watches the GPU from the first profiled step on.
void NetworkReports::watch_gpu() {
  if (!options_.profile || gpus_.empty()) return;
  if (static_cast<int64_t>(board_->status(0).finished_steps.load()) + 1 < options_.profile->steps.first) return;
  if (!gpu_watch_) gpu_watch_.emplace(gpus_[0].index);
  gpu_watch_->look();
}

/// Returns why the state that the ranks ended with is not on the disk; "" if it is, or the job does not save it.
std::string NetworkReports::unsaved() const {
  if (!checkpoints_.are_saved()) return "";
  const SaveBoard& board = board_->saves();
  // Asynchronous ranks may end at steps that the servers have not applied: the servers' final state, or the one that
  // they began to save, must be saved.
  const int64_t of_servers = std::max<int64_t>({board.last_step(), board.awaits_room(), 1});
  const int64_t step = job_.plan.is_asynchronous() ? of_servers : finished_steps();
  const int64_t first = checkpoints_.first_step(), newest = std::max(board.written_step(), first);
  if (finished_steps() <= first || newest >= step) return "";
  const bool is_state = job_.spec.train.saves_state();
  std::string text =
      (is_state ? "the state after step " : "the final weights after step ") + with_commas(finished_steps()) +
      (is_state ? " was not saved: " : " were not saved: ") +
      (checkpoints_.trouble().empty() ? "the ranks were stopped before they could save them" : checkpoints_.trouble());
  if (is_state)
    text += newest > 0 ? "\n  the newest checkpoint of this run is from step " + with_commas(newest) +
                             "; --resume continues from the newest in its folder"
                       : "\n  no checkpoint of this run was written";
  return text;
}

RunResult NetworkReports::result() const {
  const RankStatus& first = board_->status(0);
  RunResult result;
  result.step = finished_steps();
  result.steps = total_steps();
  result.skipped_steps = static_cast<int64_t>(first.skipped_steps.load());
  if (options_.evaluate) return result;
  if (checkpoints_.are_saved()) result.saved_step = std::max<int64_t>(0, board_->saves().written_step());
  result.unsaved = unsaved();
  if (job_.spec.loss && result.step > 0) {
    result.loss = first.loss.load();
    result.metrics = metrics();
  }
  return result;
}

std::string NetworkReports::summary() {
  std::string text = printed_tensors_line(job_.spec, *directory_);
  if (job_.plan.is_asynchronous() && !options_.evaluate)
    text += (text.empty() ? "" : "\n") + workers_report(board_->batches(), job_.spec.dataset.batch);
  if (serves_tables_alone(job_.plan) && !options_.evaluate)
    text += (text.empty() ? "" : "\n") + staleness_report(board_->batches());
  if (const nlohmann::ordered_json tokens = token_exchange(); !tokens.is_null())
    text +=
        (text.empty() ? "" : "\n") +
        fmt::format("{} of tokens sent to experts and back; {} were expected, and at most {}",
                    format_bytes(tokens["bytes"].get<int64_t>()), format_bytes(tokens["expected_bytes"].get<int64_t>()),
                    format_bytes(tokens["most_bytes"].get<int64_t>()));
  if (const nlohmann::ordered_json audited = audits(); !audited.is_null())
    text += (text.empty() ? "" : "\n") +
            fmt::format("audits: {} of {} steps replayed on other {}, with the same bits; {:.2g} % of the run's time",
                        audited["steps"].get<int64_t>(), with_commas(finished_steps() - checkpoints_.first_step()),
                        job_.spec.launch.device == Device::cuda ? "GPUs" : "cores",
                        100 * audited["overhead"].get<double>());
  if (!options_.profile) return text;
  std::vector<Program> programs;
  for (int rank = 0; rank < classes_.num_ranks(); ++rank) programs.push_back(classes_.of_rank(rank));
  const std::string profile = collect_profile(*options_.profile, programs, job_.spec.name, *directory_,
                                              job_.cost.machine(), gpu_watch_ ? gpu_watch_->middle() : std::nullopt);
  return text.empty() ? profile : text + "\n" + profile;
}

nlohmann::ordered_json NetworkReports::token_exchange() const {
  const TokenTraffic planned = token_traffic_of_step(classes_);
  if (options_.evaluate || job_.plan.is_asynchronous() || planned.most == 0) return {};
  int64_t steps = 0, bytes = 0;
  for (int rank = 0; rank < classes_.num_ranks(); ++rank) {
    const std::optional<RankTokenBytes> counted = read_token_bytes(*directory_, rank);
    if (!counted) return {};
    steps = counted->steps;
    bytes += counted->bytes;
  }
  return {{"steps", steps},
          {"bytes", bytes},
          {"expected_bytes", steps * planned.expected},
          {"most_bytes", steps * planned.most}};
}

nlohmann::ordered_json NetworkReports::audits() const {
  int64_t steps = 0;
  double overhead = 0;
  for (int rank = 0; job_.spec.train.audit_every > 0 && rank < classes_.num_ranks(); ++rank) {
    const std::optional<RankAudits> of_rank = read_audits(*directory_, rank);
    if (!of_rank) continue;
    steps = std::max(steps, of_rank->steps);
    overhead = std::max(overhead, of_rank->overhead);
  }
  if (steps == 0) return {};
  return {{"steps", steps}, {"overhead", overhead}};
}

nlohmann::ordered_json NetworkReports::record() const {
  nlohmann::ordered_json record = nlohmann::ordered_json::object();
  if (on_hosts_ != nullptr) record = on_hosts_->traffic();
  if (nlohmann::ordered_json audited = audits(); !audited.is_null()) record["audits"] = std::move(audited);
  if (nlohmann::ordered_json tokens = token_exchange(); !tokens.is_null()) record["token_exchange"] = std::move(tokens);
  return record;
}

}  // namespace trainctl
