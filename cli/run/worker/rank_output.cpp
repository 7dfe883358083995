// Writes a rank's output lines and files.
#include "cli/run/worker/rank_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/text/tensor_text.h"
#include "cli/text/workers_report.h"
#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/compile/report/report.h"
#include "engine/ops/moe/expert_load.h"
#include "engine/train/files/npy_file.h"

namespace trainctl {
namespace {

/// Uses one write per line, so that lines arrive whole and without delay.
void write_line(std::string text) {
  text += '\n';
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

RankOutput::RankOutput(const PlannedJob& job, const Program& program, RankStatus& status, const RunDirectory& directory,
                       const RankOutputOptions& options)
    : spec_(job.spec),
      program_(program),
      status_(status),
      directory_(directory),
      start_up_path_(directory.rank_file(program.rank, "start_up.json")),
      printed_(job, program),
      prints_each_step_(std::count_if(program.instructions.begin(), program.instructions.end(),
                                      [](const Instruction& i) { return i.opcode == Opcode::print; })),
      options_(options) {
  for (LayerId l = 0; l < static_cast<LayerId>(job.graph.layers.size()); ++l)
    if (const int64_t k = experts_per_token(job.graph, l); k > 0)
      experts_per_token_[job.graph.layers[static_cast<size_t>(l)].name] = k;
  if (program.rank == 0)
    metrics_ = MetricsLog(directory, options.metrics, write_line);
  else if (options.copies_metrics)
    metrics_ = MetricsLog(directory, program.rank, write_line);
  std::error_code ignored;
  std::filesystem::remove(directory.rank_file(program.rank, kTokenBytesFile), ignored);  // left by an earlier attempt
  if (!options.record) return;
  collectives_.open(directory.rank_file(program.rank, "collectives.jsonl"));
  to_record_ = std::count_if(program.instructions.begin(), program.instructions.end(), communicates);
}

void RankOutput::connect(ExecutorOptions& executor) {
  executor.on_prepared = [this] { status_.looks.fetch_add(1, std::memory_order_relaxed); };
  executor.print = [this](const Operand& operand, const void* data, int micro_batch) {
    print_tensor(operand, data, micro_batch);
  };
  if (to_record_ > 0)
    executor.on_communication = [this](const Instruction& instruction) { on_communication(instruction); };
}

/// Called before the first on_step, which signals to the launcher that the file exists.
void RankOutput::on_first_step(const StartUpClock& clock) {
  const nlohmann::ordered_json json = start_up_json(clock);
  std::ofstream(start_up_path_) << json.dump() << '\n';
  metrics_.start_up(json);
}

void RankOutput::on_step(const StepReport& report) {
  if (report.is_first_not_finite) note_not_finite(report);
  set_status(report);
  const int64_t count = report.own_step > 0 ? report.own_step : report.run_step;
  const bool last = report.run_step == report.run_steps;
  const bool logged = count % spec_.train.log_every == 0 || last || report.run_step == not_finite_since_;
  if (!logged) return;
  if (report.has_loss) write_line(loss_line(report.epoch, report.step, static_cast<double>(report.loss)));
  report_in_place();
  metrics_.step(report);
}

void RankOutput::set_status(const StepReport& report) {
  // The first step is slower than the others: the average begins with the second.
  constexpr double kSmoothing = 0.1;
  const int64_t count = report.own_step > 0 ? report.own_step : report.run_step;
  step_seconds_ += (report.seconds - step_seconds_) * (count <= 2 ? 1.0 : kSmoothing);
  status_.total_epochs =
      static_cast<uint32_t>((report.run_steps + report.steps_per_epoch - 1) / report.steps_per_epoch);
  status_.total_steps = static_cast<uint64_t>(report.run_steps);
  status_.loss = report.loss;
  if (report.is_skipped) ++status_.skipped_steps;
  for (size_t i = 0; i < report.metrics.of.size(); ++i)
    status_.metrics[i] = static_cast<float>(report.metrics.values[i]);
  status_.finished_steps = static_cast<uint64_t>(report.run_step);
  status_.epoch = static_cast<uint32_t>(report.epoch);
  if (step_seconds_ > 0)
    status_.samples_per_second = static_cast<float>(static_cast<double>(spec_.dataset.batch) / step_seconds_);
}

/// Makes this asynchronous worker report if all workers before it have died.
void RankOutput::report_in_place() {
  if (metrics_.is_open() || !options_.takes_over || !options_.takes_over()) return;
  metrics_ = options_.is_apart ? MetricsLog(directory_, program_.rank, write_line)
                               : MetricsLog(directory_, RecordFile::Begin::append, write_line);
}

/// All ranks have the same loss, so only the first reports it. With train.on_nan: stop all ranks fail because of it.
void RankOutput::note_not_finite(const StepReport& report) {
  not_finite_since_ = report.run_step;
  if (spec_.train.on_nan != OnNan::stop && program_.rank == 0)
    write_line(not_finite_line(report) + "; continuing because train.on_nan is " +
               std::string(to_string(spec_.train.on_nan)));
  if (spec_.train.on_nan == OnNan::stop) metrics_.ended(false);
}

void RankOutput::on_epoch(const EpochReport& report) {
  if (report.has_loss) write_line(epoch_line(report));
  metrics_.epoch(report);
}

void RankOutput::on_validation_progress(int64_t done, int64_t all) {
  status_.validated_batches = static_cast<uint32_t>(done);
  status_.validation_batches = done < all ? static_cast<uint32_t>(all) : 0;
}

void RankOutput::on_validation(const ValidationReport& report) {
  write_line(validation_line(report));
  for (const std::string& line : text_lines(report)) write_line(line);
  report_in_place();
  metrics_.validation(report);
}

/// {"kind":"data","run_step":24,"workers":4,"ahead":1,"reason":"the trainer waits 43 % of a step, …"}
void RankOutput::on_loading(int64_t step, const LoadSetting& setting, const std::string& reason) {
  tunes_loading_ = true;
  write_line("data loading: " + to_string(setting) + " from step " + std::to_string(step) + ": " + reason);
  metrics_.line({{"kind", "data"},
                 {"run_step", step},
                 {"workers", setting.workers},
                 {"ahead", setting.ahead},
                 {"reason", reason}});
}

/// {"kind":"skipped","run_step":24,"samples":3,"first":"photos/cat/7.jpg: …"}: samples of this rank.
void RankOutput::on_skipped(int64_t step, const SkippedSamples& skipped) {
  write_line("data loading: " + std::to_string(skipped.count) + (skipped.count == 1 ? " sample" : " samples") +
             " skipped up to step " + std::to_string(step) + "; first: " + printable(skipped.first));
  metrics_.line({{"kind", "skipped"}, {"run_step", step}, {"samples", skipped.count}, {"first", skipped.first}});
}

/// {"kind":"rollback","run_step":24,"to":20}.
void RankOutput::on_rollback(int64_t step, int64_t to) {
  if (program_.rank == 0)
    write_line(fmt::format("spike at step {}: weights and optimizer states return to those after step {}", step, to));
  metrics_.line({{"kind", "rollback"}, {"run_step", step}, {"to", to}});
}

/// Reports the loading settings at the end. If nothing is tuned, only waits that are long enough to justify a change of
/// the job are reported.
void RankOutput::settled_loading(const LoadSetting& setting, const LoadWaits& waits) {
  constexpr double kShare = 0.02, kSeconds = 2;
  const std::string waited = fmt::format("training waited for data {:.1f} % of the time", 100 * waits.share);
  if (!tunes_loading_) {
    if (waits.share >= kShare && waits.seconds >= kSeconds)
      write_line(fmt::format("data loading: {}; {}", to_string(setting), waited));
    return;
  }
  const std::string fields =
      "dataset.workers=" + std::to_string(setting.workers) + " dataset.prefetch=" + std::to_string(setting.ahead);
  write_line(
      fmt::format("data loading: settled on {}; {}; to keep these settings: {}", to_string(setting), waited, fields));
  if (program_.rank == 0) std::ofstream(directory_.file("loading")) << fields << '\n';
}

void RankOutput::ended(const TrainResult& result) {
  settled_loading(result.loading, result.waits);
  if (result.skipped.count > 0)
    write_line("data loading: skipped " + std::to_string(result.skipped.count) + " reads of broken samples in total");
  metrics_.ended(true);
  if (result.stopped) note_stop(result);
  metrics_.report_lost();
}

void RankOutput::note_stop(const TrainResult& result) {
  if (!result.reason.empty()) {
    const uint64_t planned = status_.total_steps;
    status_.total_steps = status_.finished_steps = static_cast<uint64_t>(result.last_step);  // the run ends here
    write_line("stopped after step " + std::to_string(result.last_step) + ": " + result.reason);
    metrics_.line({{"stopped_at_step", result.last_step}, {"reason", result.reason}, {"steps", planned}});
    return;
  }
  write_line("stopped after step " + std::to_string(result.last_step) + " on request");
  metrics_.line({{"stopped_at_step", result.last_step}});
}

void RankOutput::write_traffic(const HostTraffic& traffic, int64_t steps) const {
  const nlohmann::ordered_json json = {{"steps", steps}, {"within", traffic.within}, {"between", traffic.between}};
  std::ofstream(directory_.rank_file(program_.rank, kTrafficFile)) << json.dump() << '\n';
}

std::optional<RankTraffic> read_traffic(const RunDirectory& directory, int rank) {
  std::ifstream file(directory.rank_file(rank, kTrafficFile));
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const RankTraffic traffic{field_or(json, "steps", int64_t{0}), field_or(json, "within", int64_t{-1}),
                            field_or(json, "between", int64_t{-1})};
  if (traffic.steps <= 0 || traffic.within < 0 || traffic.between < 0) return std::nullopt;
  return traffic;
}

void RankOutput::write_token_bytes(int64_t bytes, int64_t steps) const {
  const nlohmann::ordered_json json = {{"steps", steps}, {"bytes", bytes}};
  std::ofstream(directory_.rank_file(program_.rank, kTokenBytesFile)) << json.dump() << '\n';
}

void RankOutput::write_audits(int64_t steps, double overhead) const {
  const nlohmann::ordered_json json = {{"steps", steps}, {"overhead", overhead}};
  std::ofstream(directory_.rank_file(program_.rank, kAuditsFile)) << json.dump() << '\n';
}

std::optional<RankAudits> read_audits(const RunDirectory& directory, int rank) {
  std::ifstream file(directory.rank_file(rank, kAuditsFile));
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const RankAudits audits{field_or(json, "steps", int64_t{0}), field_or(json, "overhead", -1.0)};
  if (audits.steps <= 0 || audits.overhead < 0) return std::nullopt;
  return audits;
}

std::optional<RankTokenBytes> read_token_bytes(const RunDirectory& directory, int rank) {
  std::ifstream file(directory.rank_file(rank, kTokenBytesFile));
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const RankTokenBytes counted{field_or(json, "steps", int64_t{0}), field_or(json, "bytes", int64_t{-1})};
  if (counted.steps <= 0 || counted.bytes < 0) return std::nullopt;
  return counted;
}

void RankOutput::write_fingerprints(int64_t step, const Fingerprints& fingerprints) const {
  std::ofstream file(directory_.file(kFingerprintsFile), std::ios::app);
  file << fingerprint_line(step, fingerprints) << std::flush;
  if (!file) throw EnvError("cannot write " + directory_.file(kFingerprintsFile));
}

void RankOutput::write_histograms(int64_t step, const std::map<std::string, Histogram>& histograms) {
  metrics_.histograms(step, histograms);
}

int64_t steps_between_expert_loads(const TrainSpec& train) {
  constexpr int64_t kLeastSteps = 10;  // a report waits for all ranks
  return std::max({train.log_every, train.sink_steps, kLeastSteps});
}

void RankOutput::write_expert_loads(int64_t step, const LoadsOfLayers& loads) {
  std::map<std::string, ExpertReport> reports;
  for (const auto& [layer, load] : loads) reports[layer] = expert_report(load, experts_per_token_[layer]);
  metrics_.experts(step, reports);
}

void RankOutput::write_workers(const BatchBoard& board) {
  if (metrics_.is_open()) metrics_.line(workers_json(board, spec_.dataset.batch));
}

/// Counts the calls instead of the steps: with sink_steps, further steps, which make the same calls, may run before
/// on_step reports the first one.
void RankOutput::on_communication(const Instruction& instruction) {
  if (to_record_ == 0) return;
  collectives_ << communication_json(instruction, program_).dump() << '\n';
  if (--to_record_ == 0) collectives_.flush();
}

void RankOutput::print_tensor(const Operand& operand, const void* data, int micro_batch) {
  const int64_t step = prints_++ / prints_each_step_;  // every step prints the same tensors
  if (step % spec_.print.every != 0) return;
  const PrintedPart part = printed_.part(operand, micro_batch);
  if (spec_.print.format == PrintFormat::text) return write_text(operand, part, data, micro_batch);
  if (part.first_holder) write_npy(operand, part, data, step + 1);
}

void RankOutput::write_npy(const Operand& operand, const PrintedPart& part, const void* data, int64_t step) const {
  const std::string folder = directory_.file("tensors/step." + std::to_string(step));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw EnvError("cannot create " + folder + ": " + error.message());
  if (options_.has_hosts && part.known && part.shape != part.whole)
    return write_npy_shard(folder, operand.tensor, part.whole, operand.dtype, part.first, part.shape, data);
  const std::string rank = part.known ? "" : ".rank." + std::to_string(program_.rank);
  write_npy_part(folder + "/" + operand.tensor + rank + ".npy", part.whole, operand.dtype, part.first, part.shape,
                 data);
}

void RankOutput::write_text(const Operand& operand, const PrintedPart& part, const void* data, int micro_batch) const {
  std::string prefix = operand.tensor + " (rank " + std::to_string(program_.rank);
  if (spec_.parallel.micro_batches > 1) prefix += ", micro-batch " + std::to_string(micro_batch);
  if (!part.known)
    prefix += ", its own shard";
  else if (part.shape != part.whole || spec_.launch.ranks > 1)
    prefix += ", " + part_text(part);
  prefix += "): ";
  write_line(prefix + tensor_text(data, operand.shape, operand.dtype, static_cast<int>(prefix.size())));
}

void write_evaluation(const RunDirectory& directory, const std::string& checkpoint, const ValidationReport& report) {
  nlohmann::ordered_json json = {{"checkpoint", checkpoint}, {"step", report.run_step}, {"samples", report.samples}};
  for (const auto& [name, value] : report.values) json[name] = value;
  json["seconds"] = report.seconds;
  directory.write("evaluation.json", json.dump(2) + "\n");
  write_line("step " + std::to_string(report.run_step) + ": " + values_text(report) + " (" +
             with_commas(report.samples) + " samples)");
}

}  // namespace trainctl
