// Implements audits of steps: replays a recorded step on another core or card, and compares the bits.
#include "engine/train/trainer/step_audit.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/files/safetensors.h"
#include "engine/train/trainer/audit_recorder.h"

namespace trainctl {
namespace {

std::string device_text(const char* device, int number) {
  return number < 0 ? fmt::format("an unknown {}", device) : fmt::format("{} {}", device, number);
}

/// Passes all calls on to the audited executor, and records the steps that are due for an audit.
class AuditedExecutor final : public Executor {
 public:
  AuditedExecutor(std::unique_ptr<Executor> inner, AuditRecorder& recorder)
      : inner_(std::move(inner)), recorder_(recorder) {}

  const InputLayout& inputs() const override { return inner_->inputs(); }
  void start_step(const std::byte* inputs, const StepScalars& scalars) override {
    recorder_.before_step();
    const bool is_due = recorder_.is_due(scalars);
    if (is_due) recorder_.begin(inputs, scalars);
    inner_->start_step(inputs, scalars);
    if (recorder_.options().corrupt) recorder_.options().corrupt(int64_t{scalars.step} + 1, *inner_);
    if (is_due) recorder_.end();
  }
  float finish_step(std::span<float> metrics) override {
    const float loss = inner_->finish_step(metrics);
    recorder_.step_finished();
    return loss;
  }
  int max_in_flight() const override { return inner_->max_in_flight(); }
  std::unique_ptr<Executor> beside(const Program& program, const ExecutorOptions& options) override {
    return inner_->beside(program, options);
  }
  HostBlock allocate_inputs(int64_t bytes) override { return inner_->allocate_inputs(bytes); }
  void read(int64_t offset, void* to, int64_t bytes) override { inner_->read(offset, to, bytes); }
  void write(int64_t offset, const void* from, int64_t bytes) override { inner_->write(offset, from, bytes); }
  void use_often(std::span<std::byte> memory) override { inner_->use_often(memory); }
  void begin_write(int64_t offset, const void* from, int64_t bytes) override {
    inner_->begin_write(offset, from, bytes);
  }
  void begin_read(int64_t offset, void* to, int64_t bytes) override { inner_->begin_read(offset, to, bytes); }
  void wait_read() override { inner_->wait_read(); }
  void prepare_copy(const std::vector<StateCopy>& copies, std::byte* to) override { inner_->prepare_copy(copies, to); }
  void begin_copy() override { inner_->begin_copy(); }
  bool is_copied(bool wait) override { return inner_->is_copied(wait); }

 private:
  std::unique_ptr<Executor> inner_;
  AuditRecorder& recorder_;
};

}  // namespace

std::string AuditMismatch::text() const {
  const auto core_text = [this](int number) { return device_text(device, number); };
  std::string text = fmt::format("step {} produced different bits on {} than its replay on {}: {}", step,
                                 core_text(first_core), core_text(replay_core), tensor);
  if (element >= 0) text += fmt::format(", element {}: {:.9g} and {:.9g}", element, first, replayed);
  if (third_core < 0) return text;
  const std::string third = "; a third run on " + core_text(third_core);
  if (first_is_wrong && *first_is_wrong)
    return text + third + " agrees with the replay, so " + core_text(first_core) + " computed incorrectly";
  if (first_is_wrong)
    return text + third + " agrees with the step, so " + core_text(replay_core) + " computed incorrectly";
  return text + third +
         (third_core == first_core ? " does not show which of them computed incorrectly" : " agrees with neither");
}

AuditFailed::AuditFailed(const AuditMismatch& mismatch, const std::string& where)
    : EnvError("audit: " + mismatch.text() + (where.empty() ? "" : "; both results are in " + where)),
      mismatch_(mismatch) {}

std::string save_audit(const std::string& folder, int rank, const AuditMismatch& mismatch, const AuditedValues& first,
                       const AuditedValues& replayed) {
  const std::string path = fmt::format("{}/audits/step_{}.rank_{}", folder, mismatch.step, rank);
  std::error_code error;
  std::filesystem::create_directories(folder + "/audits", error);
  bool is_written = !error;
  for (const auto& [name, values] : {std::pair(".first.safetensors", &first), {".replay.safetensors", &replayed}}) {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [tensor, elements] : *values)
      entries.push_back({tensor, StoredType::f32, {static_cast<int64_t>(elements.size())}});
    const SafetensorsHeader header = lay_out(std::move(entries), {{"audit", mismatch.text()}});
    std::ofstream file(path + name, std::ios::binary);
    file << safetensors_head(header);
    for (const SafetensorsEntry& entry : header.entries) {
      const std::vector<float>& elements = values->at(entry.name);
      file.write(reinterpret_cast<const char*>(elements.data()), static_cast<std::streamsize>(entry.bytes()));
    }
    file.close();
    is_written = is_written && !file.fail();
  }
  return is_written ? path + ".*" : "";
}

StepAudit::StepAudit(const Program& program, Communicator& comm, AuditOptions options)
    : recorder_(options.cards.empty() ? make_core_audit(program, comm, std::move(options))
                                      : make_card_audit(program, comm, std::move(options))) {}
StepAudit::~StepAudit() = default;
Communicator& StepAudit::communicator() { return recorder_->communicator(); }
std::unique_ptr<Executor> StepAudit::around(std::unique_ptr<Executor> audited, const ExecutorOptions& options) {
  recorder_->attach(*audited, options);
  return std::make_unique<AuditedExecutor>(std::move(audited), *recorder_);
}
void StepAudit::at_end(int64_t, Executor&) { recorder_->finish(); }
int64_t StepAudit::audited_steps() const { return recorder_->audited_steps(); }
double StepAudit::overhead() const { return recorder_->overhead(); }

}  // namespace trainctl
