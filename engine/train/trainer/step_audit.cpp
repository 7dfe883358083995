// See the header.
#include "engine/train/trainer/step_audit.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "engine/graph/half.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/files/digest.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

using Bytes = std::vector<std::byte>;
using NamedValues = AuditedValues;

std::string digest_of_bytes(const void* data, int64_t bytes) {
  Digest digest;
  digest.add({static_cast<const uint8_t*>(data), static_cast<size_t>(bytes)});
  return digest.digits();
}

/// A call of the communicator: what this rank gave, and what it received.
struct RecordedExchange {
  std::string call;   ///< "all_reduce"
  std::string given;  ///< digest; "" if nothing was given
  Bytes received;
};

struct Recording {
  int64_t step = 0;
  Bytes arena, inputs;
  StepScalars scalars;
  std::vector<RecordedExchange> exchanges;
  NamedValues after;
  float loss = 0;
  int core = -1;
};

/// Forwards calls to another communicator, and records them between record_to(list) and record_to(nullptr).
class RecordingExchange final : public Communicator {
 public:
  explicit RecordingExchange(Communicator& inner) : inner_(inner) {}
  void record_to(std::vector<RecordedExchange>* exchanges) { to_ = exchanges; }

  int rank() const override { return inner_.rank(); }
  int num_ranks() const override { return inner_.num_ranks(); }
  int open_group(const std::vector<int>& ranks) override {
    const int id = inner_.open_group(ranks);
    sizes_[id] = static_cast<int64_t>(ranks.size());
    return id;
  }
  void register_arena(void* base, int64_t bytes) override { inner_.register_arena(base, bytes); }
  void all_reduce(int group, const void* in, void* out, int64_t count, DType dtype) override {
    const int64_t bytes = count * byte_size(dtype);
    exchange("all_reduce", in, bytes, out, bytes, [&] { inner_.all_reduce(group, in, out, count, dtype); });
  }
  void all_gather(int group, const void* in, void* out, int64_t count, DType dtype) override {
    const int64_t bytes = count * byte_size(dtype);
    exchange("all_gather", in, bytes, out, sizes_.at(group) * bytes,
             [&] { inner_.all_gather(group, in, out, count, dtype); });
  }
  void reduce_scatter(int group, const void* in, void* out, int64_t count, DType dtype) override {
    const int64_t bytes = count * byte_size(dtype);
    exchange("reduce_scatter", in, sizes_.at(group) * bytes, out, bytes,
             [&] { inner_.reduce_scatter(group, in, out, count, dtype); });
  }
  void all_to_all(int group, const void* in, void* out, int64_t count, DType dtype) override {
    const int64_t bytes = sizes_.at(group) * count * byte_size(dtype);
    exchange("all_to_all", in, bytes, out, bytes, [&] { inner_.all_to_all(group, in, out, count, dtype); });
  }
  void broadcast(int group, const void* in, void* out, int64_t count, DType dtype, int root) override {
    exchange("broadcast", nullptr, 0, out, count * byte_size(dtype),
             [&] { inner_.broadcast(group, in, out, count, dtype, root); });
  }
  void barrier(int group) override { inner_.barrier(group); }
  int64_t send(int peer, const void* data, int64_t bytes) override {
    if (to_ != nullptr) to_->push_back({"send", digest_of_bytes(data, bytes), {}});
    return inner_.send(peer, data, bytes);
  }
  void wait_send(int peer, int64_t sequence) override { inner_.wait_send(peer, sequence); }
  void recv(int peer, void* data, int64_t bytes) override {
    exchange("recv", nullptr, 0, data, bytes, [&] { inner_.recv(peer, data, bytes); });
  }
  void recv_sum(int peer, float* sum, int64_t count) override {
    const auto bytes = count * static_cast<int64_t>(sizeof(float));
    exchange("recv_sum", sum, bytes, sum, bytes, [&] { inner_.recv_sum(peer, sum, count); });
  }
  bool has_message(int peer) override { return inner_.has_message(peer); }
  void drop_messages(int peer) override { inner_.drop_messages(peer); }
  uint32_t mail() const override { return inner_.mail(); }
  void wait_for_mail(uint32_t seen, double seconds) override { inner_.wait_for_mail(seen, seconds); }
  void set_position(RankPosition position) override { inner_.set_position(position); }
  RankPosition position_of(int rank) const override { return inner_.position_of(rank); }
  std::optional<CommError> hopeless(const std::string& call, const std::vector<int>& missing,
                                    bool late) const override {
    return inner_.hopeless(call, missing, late);
  }

 private:
  template <typename Call>
  void exchange(const char* name, const void* in, int64_t in_bytes, void* out, int64_t out_bytes, const Call& call) {
    if (to_ == nullptr) return call();
    RecordedExchange recorded{name, in == nullptr ? "" : digest_of_bytes(in, in_bytes), {}};
    call();
    const auto* data = static_cast<const std::byte*>(out);
    recorded.received.assign(data, data + out_bytes);
    to_->push_back(std::move(recorded));
  }

  Communicator& inner_;
  std::map<int, int64_t> sizes_;
  std::vector<RecordedExchange>* to_ = nullptr;
};

/// Gives what was recorded, and notes the first call in which the rank gives something else.
class ReplayedExchange final : public Communicator {
 public:
  ReplayedExchange(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

  void replay(const std::vector<RecordedExchange>& exchanges) {
    exchanges_ = &exchanges;
    next_ = 0;
    difference_.clear();
  }
  const std::string& difference() const { return difference_; }

  int rank() const override { return rank_; }
  int num_ranks() const override { return ranks_; }
  int open_group(const std::vector<int>& ranks) override {
    const auto [found, added] = groups_.try_emplace(ranks, static_cast<int>(groups_.size()));
    sizes_[found->second] = static_cast<int64_t>(ranks.size());
    return found->second;
  }
  void register_arena(void*, int64_t) override {}
  void all_reduce(int, const void* in, void* out, int64_t count, DType dtype) override {
    give("all_reduce", in, count * byte_size(dtype), out);
  }
  void all_gather(int, const void* in, void* out, int64_t count, DType dtype) override {
    give("all_gather", in, count * byte_size(dtype), out);
  }
  void reduce_scatter(int group, const void* in, void* out, int64_t count, DType dtype) override {
    give("reduce_scatter", in, sizes_.at(group) * count * byte_size(dtype), out);
  }
  void all_to_all(int group, const void* in, void* out, int64_t count, DType dtype) override {
    give("all_to_all", in, sizes_.at(group) * count * byte_size(dtype), out);
  }
  void broadcast(int, const void*, void* out, int64_t, DType, int) override { give("broadcast", nullptr, 0, out); }
  void barrier(int) override {}
  int64_t send(int, const void* data, int64_t bytes) override {
    give("send", data, bytes, nullptr);
    return 1;
  }
  void wait_send(int, int64_t) override {}
  void recv(int, void* data, int64_t) override { give("recv", nullptr, 0, data); }
  void recv_sum(int, float* sum, int64_t count) override {
    give("recv_sum", sum, count * static_cast<int64_t>(sizeof(float)), sum);
  }
  void set_position(RankPosition) override {}
  RankPosition position_of(int) const override { return {}; }

 private:
  void give(const char* call, const void* in, int64_t bytes, void* out) {
    check(exchanges_ != nullptr && next_ < exchanges_->size() && (*exchanges_)[next_].call == call,
          "a replayed step makes the calls of the recorded one");
    const RecordedExchange& recorded = (*exchanges_)[next_++];
    if (in != nullptr && difference_.empty() && digest_of_bytes(in, bytes) != recorded.given)
      difference_ = fmt::format("what it gives to {}, call {} of the step", call, next_);
    if (out != nullptr && !recorded.received.empty())
      std::memcpy(out, recorded.received.data(), recorded.received.size());
  }

  const int rank_, ranks_;
  std::map<std::vector<int>, int> groups_;
  std::map<int, int64_t> sizes_;
  const std::vector<RecordedExchange>* exchanges_ = nullptr;
  size_t next_ = 0;
  std::string difference_;
};

/// All that this rank keeps from step to step, by "weight/fc1.weight", and its gradients.
void keep_values(const Program& program, Executor& executor, NamedValues& values) {
  std::map<std::string, size_t> filled;
  const auto add = [&](const StoredRange& range) {
    if (range.count == 0 || !is_float(range.dtype)) return;
    const std::string name = std::string(range.slot) + "/" + range.variable->name;
    std::vector<float>& all = values[name];
    const size_t before = filled[name];
    filled[name] += static_cast<size_t>(range.count);
    all.resize(std::max(all.size(), filled[name]));  // the memory of an earlier step is used again
    if (range.dtype == DType::f32) {
      executor.read(range.offset, all.data() + before, range.bytes());
      return;
    }
    std::vector<uint16_t> halves(static_cast<size_t>(range.count));
    executor.read(range.offset, halves.data(), range.bytes());
    halves_to_floats(range.dtype, halves.data(), range.count, all.data() + before);
  };
  for (const StoredRange& range : stored_ranges(program)) add(range);
  for (const StoredRange& range : gradient_ranges(program)) add(range);
}

/// Moves the calling thread to a core other than those; returns the core that it is on afterwards.
int move_to_another_core(const std::vector<int>& others) {
  const long cores = sysconf(_SC_NPROCESSORS_CONF);
  const int start = others.empty() ? 0 : others.back() + 1;
  for (long i = 0; i < cores; ++i) {
    const auto core = static_cast<int>((start + i) % cores);
    if (std::find(others.begin(), others.end(), core) != others.end()) continue;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) == 0) return core;
  }
  return sched_getcpu();
}

std::string core_text(int core) { return core < 0 ? "an unknown core" : "core " + std::to_string(core); }

}  // namespace

std::string AuditMismatch::text() const {
  std::string text = fmt::format("step {} gave other bits on {} than its replay on {}: {}", step, core_text(first_core),
                                 core_text(replay_core), tensor);
  if (element >= 0) text += fmt::format(", element {}: {:.9g} and {:.9g}", element, first, replayed);
  if (third_core < 0) return text;
  const std::string third = "; a third run on " + core_text(third_core);
  if (first_is_wrong && *first_is_wrong)
    return text + third + " agrees with the replay, so " + core_text(first_core) + " computed incorrectly";
  if (first_is_wrong)
    return text + third + " agrees with the step, so " + core_text(replay_core) + " computed incorrectly";
  return text + third +
         (third_core == first_core ? " does not tell which of them computed incorrectly" : " agrees with neither");
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

class StepAudit::State {
 public:
  State(const Program& program, Communicator& comm, AuditOptions options)
      : program_(program), comm_(comm), options_(std::move(options)), replayed_(comm.rank(), comm.num_ranks()) {
    check(options_.every > 0, "audits have an interval");
    options_.executor.print = [](const Operand&, const void*, int) {};
    options_.executor.timeline = nullptr;
    options_.executor.start_up = nullptr;
    options_.executor.on_communication = nullptr;
    options_.executor.on_prepared = nullptr;
  }
  ~State() {
    if (thread_.joinable()) thread_.join();
  }

  RecordingExchange& communicator() { return comm_; }
  int64_t audited() const { return audited_; }
  const AuditOptions& options() const { return options_; }

  bool is_due(const StepScalars& scalars) const { return (int64_t{scalars.step} + 1) % options_.every == 0; }

  void started() {
    if (first_step_ < 0) first_step_ = now();
  }

  double overhead() const {
    const double all = now() - first_step_;
    return first_step_ < 0 || all <= 0 ? 0 : (recorded_seconds_ + replayed_seconds_) / all;
  }

  void begin(Executor& executor, const std::byte* inputs, const StepScalars& scalars) {
    finish();
    const double begin = now();
    recording_.exchanges.clear();
    recording_.step = int64_t{scalars.step} + 1;
    recording_.scalars = scalars;
    recording_.core = sched_getcpu();
    recording_.arena.resize(static_cast<size_t>(program_.arena_bytes));
    executor.read(0, recording_.arena.data(), program_.arena_bytes);
    recording_.inputs.assign(inputs, inputs + executor.inputs().bytes);
    comm_.record_to(&recording_.exchanges);
    recorded_seconds_ += now() - begin;
  }

  void recorded(Executor& executor) {
    comm_.record_to(nullptr);
    const double begin = now();
    keep_values(program_, executor, recording_.after);
    if (program_.loss_offset >= 0) executor.read(program_.loss_offset, &recording_.loss, sizeof recording_.loss);
    ++audited_;
    is_done_ = false;
    thread_ = std::thread([this] {
      const double begin_replay = now();
      try {
        replay();
      } catch (...) {
        error_ = std::current_exception();
      }
      // The time of one thread is that on its core, without waits for a core that others use.
      replay_seconds_ =
          (has_one_thread() ? thread_seconds() : now() - begin_replay) - std::exchange(prepared_seconds_, 0);
      is_done_ = true;
    });
    recorded_seconds_ += now() - begin;
  }

  /// Takes the result of a replay that has ended.
  void look() {
    if (thread_.joinable() && is_done_) finish();
  }

  void finish() {
    if (!thread_.joinable()) return;
    thread_.join();
    replayed_seconds_ += std::exchange(replay_seconds_, 0);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    if (!mismatch_) return;
    const AuditMismatch mismatch = *std::exchange(mismatch_, std::nullopt);
    throw AuditFailed(mismatch, options_.save ? options_.save(mismatch, recording_.after, values_) : "");
  }

 private:
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  bool has_one_thread() const { return options_.executor.threads <= 1; }
  static double thread_seconds() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  /// The names and the values after the step, on the calling thread.
  std::pair<NamedValues, float> run_again() {
    if (!executor_) {
      const double begin = has_one_thread() ? thread_seconds() : now();
      executor_ = make_cpu_executor(program_, replayed_, options_.executor);
      prepared_seconds_ = (has_one_thread() ? thread_seconds() : now()) - begin;
    }
    replayed_.replay(recording_.exchanges);
    executor_->write(0, recording_.arena.data(), program_.arena_bytes);
    const HostBlock inputs = executor_->allocate_inputs(std::max<int64_t>(executor_->inputs().bytes, 1));
    std::copy(recording_.inputs.begin(), recording_.inputs.end(), inputs.get());
    executor_->start_step(inputs.get(), recording_.scalars);
    const float loss = executor_->finish_step();
    NamedValues values;
    keep_values(program_, *executor_, values);
    return {std::move(values), loss};
  }

  static bool same(const NamedValues& a, const NamedValues& b, AuditMismatch* at) {
    for (const auto& [name, values] : a) {
      const std::vector<float>& other = b.at(name);
      for (size_t i = 0; i < values.size(); ++i) {
        if (std::bit_cast<uint32_t>(values[i]) == std::bit_cast<uint32_t>(other[i])) continue;
        if (at != nullptr) {
          at->tensor = name;
          at->element = static_cast<int64_t>(i);
          at->first = double{values[i]};
          at->replayed = double{other[i]};
        }
        return false;
      }
    }
    return true;
  }

  void replay() {
    AuditMismatch found;
    found.step = recording_.step;
    found.first_core = recording_.core;
    found.replay_core = move_to_another_core({recording_.core});
    auto [values, loss] = run_again();
    bool is_same = same(recording_.after, values, &found);
    if (const std::string sent = replayed_.difference(); !sent.empty()) {
      if (is_same) found.tensor = sent;
      is_same = false;
    }
    if (is_same && std::bit_cast<uint32_t>(loss) != std::bit_cast<uint32_t>(recording_.loss)) {
      found.tensor = "loss";
      is_same = false;
    }
    if (is_same) return;
    found.third_core = move_to_another_core({recording_.core, found.replay_core});
    // Without a third core the first one shows at least whether its fault was transient.
    const bool has_third = found.third_core != recording_.core && found.third_core != found.replay_core;
    if (!has_third) found.third_core = move_to_another_core({found.replay_core});
    const NamedValues third = run_again().first;
    if (same(third, values, nullptr))
      found.first_is_wrong = true;
    else if (has_third && same(third, recording_.after, nullptr))
      found.first_is_wrong = false;
    values_ = std::move(values);
    mismatch_ = std::move(found);
  }

  const Program& program_;
  RecordingExchange comm_;
  AuditOptions options_;
  ReplayedExchange replayed_;
  std::unique_ptr<Executor> executor_;
  Recording recording_;
  NamedValues values_;
  std::optional<AuditMismatch> mismatch_;
  std::exception_ptr error_;
  std::atomic<bool> is_done_{true};
  std::thread thread_;
  int64_t audited_ = 0;
  double first_step_ = -1;  ///< when the first step started
  double recorded_seconds_ = 0, replayed_seconds_ = 0;
  double prepared_seconds_ = 0;  ///< once, as at the start of a run
  double replay_seconds_ = 0;    ///< the current replay, once it has ended
};

/// Passes everything on, and records the steps that are due.
class AuditedExecutor final : public Executor {
 public:
  AuditedExecutor(std::unique_ptr<Executor> inner, StepAudit::State& state) : inner_(std::move(inner)), state_(state) {}

  const InputLayout& inputs() const override { return inner_->inputs(); }
  void start_step(const std::byte* inputs, const StepScalars& scalars) override {
    state_.started();
    state_.look();
    const bool is_due = state_.is_due(scalars);
    if (is_due) state_.begin(*inner_, inputs, scalars);
    inner_->start_step(inputs, scalars);
    if (state_.options().corrupt) state_.options().corrupt(int64_t{scalars.step} + 1, *inner_);
    if (is_due) state_.recorded(*inner_);
  }
  float finish_step(std::span<float> metrics) override { return inner_->finish_step(metrics); }
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
  StepAudit::State& state_;
};

StepAudit::StepAudit(const Program& program, Communicator& comm, AuditOptions options)
    : state_(std::make_unique<State>(program, comm, std::move(options))) {}
StepAudit::~StepAudit() = default;
Communicator& StepAudit::communicator() { return state_->communicator(); }
std::unique_ptr<Executor> StepAudit::around(std::unique_ptr<Executor> audited, const ExecutorOptions&) {
  return std::make_unique<AuditedExecutor>(std::move(audited), *state_);
}
void StepAudit::at_end(int64_t, Executor&) { state_->finish(); }
int64_t StepAudit::audited_steps() const { return state_->audited(); }
double StepAudit::overhead() const { return state_->overhead(); }

}  // namespace trainctl
