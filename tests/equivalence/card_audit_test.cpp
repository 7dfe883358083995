// train.audit_every on GPUs, with CPU executors in place of cards: they record steps on a tape and replay them from it.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/planning/compile_job.h"
#include "engine/planning/plan_job.h"
#include "engine/runtime/range_digest.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/runtime/tape_layout.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/trainer/step_audit.h"
#include "engine/train/trainer/trainer.h"
#include "tests/equivalence/harness.h"
#include "tests/jobs/jobs.h"
#include "tests/train/function_observer.h"

using namespace trainctl;

namespace {

/// Passes calls on, records them on a tape, or takes their results from one.
class TapedExchange final : public Communicator {
 public:
  explicit TapedExchange(Communicator& inner) : inner_(inner) {}
  void use(StepTape* tape, bool replays) {
    tape_ = tape;
    replays_ = replays;
    next_ = 0;
  }

  int rank() const override { return inner_.rank(); }
  int num_ranks() const override { return inner_.num_ranks(); }
  int open_group(const std::vector<int>& ranks) override { return inner_.open_group(ranks); }
  void register_arena(void* base, int64_t bytes) override { inner_.register_arena(base, bytes); }
  void all_reduce(int group, const void* in, void* out, int64_t count, DType dtype) override {
    exchange(in, out, [&] { inner_.all_reduce(group, in, out, count, dtype); });
  }
  void all_gather(int group, const void* in, void* out, int64_t count, DType dtype) override {
    exchange(in, out, [&] { inner_.all_gather(group, in, out, count, dtype); });
  }
  void reduce_scatter(int group, const void* in, void* out, int64_t count, DType dtype) override {
    exchange(in, out, [&] { inner_.reduce_scatter(group, in, out, count, dtype); });
  }
  void all_to_all(int group, const void* in, void* out, int64_t count, DType dtype) override {
    exchange(in, out, [&] { inner_.all_to_all(group, in, out, count, dtype); });
  }
  void broadcast(int group, const void* in, void* out, int64_t count, DType dtype, int root) override {
    exchange(in, out, [&] { inner_.broadcast(group, in, out, count, dtype, root); });
  }
  void barrier(int group) override { inner_.barrier(group); }
  int64_t send(int peer, const void* data, int64_t bytes) override {
    int64_t sequence = 1;
    exchange(data, nullptr, [&] { sequence = inner_.send(peer, data, bytes); });
    return sequence;
  }
  void wait_send(int peer, int64_t sequence) override {
    if (tape_ == nullptr || !replays_) inner_.wait_send(peer, sequence);
  }
  void recv(int peer, void* data, int64_t bytes) override {
    exchange(nullptr, data, [&] { inner_.recv(peer, data, bytes); });
  }
  void set_position(RankPosition position) override { inner_.set_position(position); }
  RankPosition position_of(int rank) const override { return inner_.position_of(rank); }

 private:
  template <class Call>
  void exchange(const void* in, void* out, const Call& call) {
    if (tape_ == nullptr) return call();
    const StepTape::Exchange& e = tape_->exchanges.at(next_++);
    const auto copy = [](void* to, const void* from, int64_t bytes) {
      if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    };
    std::byte* const received = tape_->received.get() + e.received;
    copy((replays_ ? tape_->given_again : tape_->given).get() + e.given, in, e.given_bytes);
    if (replays_) return copy(out, received, e.received_bytes);
    call();
    copy(received, out, e.received_bytes);
  }

  Communicator& inner_;
  StepTape* tape_ = nullptr;
  bool replays_ = false;
  size_t next_ = 0;
};

/// Changes a bit of the last weight of a program after a step.
void flip(const Program& program, Executor& executor) {
  int64_t offset = -1;
  for (const StoredRange& range : stored_ranges(program))
    if (range.slot == kWeightSlot && range.count > 0) offset = range.offset;
  uint32_t bits = 0;
  executor.read(offset, &bits, sizeof bits);
  bits ^= 1U << 12;
  executor.write(offset, &bits, sizeof bits);
}

class PlayedCard final : public Executor {
 public:
  PlayedCard(const Program& program, Communicator& comm, const ExecutorOptions& options, bool is_wrong,
             std::span<std::byte> arena = {})
      : program_(program),
        exchange_(comm),
        replays_(options.replays),
        is_wrong_(is_wrong),
        inner_(make_cpu_executor(program, exchange_, options, arena)) {
    if (replays_ != nullptr) replays_->given_again = memory_of(replays_->given_bytes);
  }

  const InputLayout& inputs() const override { return inner_->inputs(); }
  void start_step(const std::byte* inputs, const StepScalars& scalars) override {
    StepTape* const tape = replays_ != nullptr ? replays_ : std::exchange(recording_, nullptr);
    if (replays_ == nullptr && tape != nullptr) copy_state(*tape, tape->before.get());
    exchange_.use(tape, replays_ != nullptr);
    inner_->start_step(inputs, scalars);
    exchange_.use(nullptr, false);
    if (is_wrong_) flip(program_, *inner_);
  }
  float finish_step(std::span<float> metrics) override { return inner_->finish_step(metrics); }
  int max_in_flight() const override { return inner_->max_in_flight(); }
  std::unique_ptr<Executor> beside(const Program& program, const ExecutorOptions& options) override {
    return inner_->beside(program, options);
  }
  HostBlock allocate_inputs(int64_t bytes) override { return inner_->allocate_inputs(bytes); }
  void read(int64_t offset, void* to, int64_t bytes) override { inner_->read(offset, to, bytes); }
  void write(int64_t offset, const void* from, int64_t bytes) override { inner_->write(offset, from, bytes); }
  void prepare_copy(const std::vector<StateCopy>& copies, std::byte* to) override { inner_->prepare_copy(copies, to); }
  void begin_copy() override { inner_->begin_copy(); }
  bool is_copied(bool wait) override { return inner_->is_copied(wait); }

  std::unique_ptr<StepTape> make_tape() override { return std::make_unique<StepTape>(lay_out_tape(program_)); }
  void open_tape(StepTape& tape) override {
    tape_ = &tape;
    tape.before = memory_of(tape.state_bytes);
    tape.after = memory_of(tape.state_bytes);
    tape.given = memory_of(tape.given_bytes);
    tape.received = memory_of(tape.received_bytes);
  }
  void begin_record(StepTape& tape) override { recording_ = &tape; }
  void end_record() override { copy_state(*tape_, tape_->after.get()); }
  void load_tape() override {
    for (const StateCopy& copy : replays_->moves)
      inner_->write(copy.offset, replays_->before.get() + copy.to, copy.bytes);
  }
  std::vector<uint64_t> tape_digests() override {
    const StepTape& tape = replays_ != nullptr ? *replays_ : *tape_;
    const std::byte* const given = (replays_ != nullptr ? tape.given_again : tape.given).get();
    std::vector<std::byte> state(static_cast<size_t>(tape.state_bytes));
    if (replays_ != nullptr)
      copy_state(tape, state.data());
    else
      std::memcpy(state.data(), tape.after.get(), state.size());
    std::vector<uint64_t> digests;
    for (const StateCopy& copy : tape.state) digests.push_back(range_digest(state.data() + copy.to, copy.bytes));
    for (const StepTape::Exchange& e : tape.exchanges) digests.push_back(range_digest(given + e.given, e.given_bytes));
    return digests;
  }
  void fetch(const std::byte* from, void* to, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }

 private:
  static std::shared_ptr<std::byte> memory_of(int64_t bytes) {
    return {new std::byte[static_cast<size_t>(bytes) + 1](), std::default_delete<std::byte[]>()};
  }
  void copy_state(const StepTape& tape, std::byte* to) {
    for (const StateCopy& copy : tape.moves) inner_->read(copy.offset, to + copy.to, copy.bytes);
  }

  const Program& program_;
  TapedExchange exchange_;
  StepTape* const replays_;
  const bool is_wrong_;
  std::unique_ptr<Executor> inner_;
  StepTape *recording_ = nullptr, *tape_ = nullptr;
};

struct Audited {
  std::vector<int64_t> steps;  ///< by rank: steps that were audited
  std::vector<float> losses;   ///< losses of rank 0
  std::vector<size_t> saved;   ///< by rank: tensors of a mismatch
  std::optional<AuditMismatch> mismatch;
};

/// Audits every fourth of 12 steps. `wrong_cards`: which of a rank's cards compute incorrectly; `fault_of`: a rank
/// whose weights get a wrong bit after each step from the sixth on.
Audited audit(const Overrides& overrides, const std::vector<bool>& wrong_cards, int fault_of = -1) {
  const PlannedJob job = plan_job(job_spec("transformer", overrides + Overrides{"train.steps=12", "train.epochs=12"}));
  const std::vector<Program> programs = compile_all(job);
  const size_t n = programs.size();
  Audited found{std::vector<int64_t>(n), {}, std::vector<size_t>(n), {}};
  try {
    run_ranks(programs, [&](int rank, std::unique_ptr<Communicator> comm, std::span<std::byte> arena) {
      const auto r = static_cast<size_t>(rank);
      AuditOptions options{.every = 4};
      options.save = [&](const AuditMismatch&, const AuditedValues& first, const AuditedValues& replayed) {
        CHECK(first != replayed);
        found.saved[r] = replayed.size();
        return std::string("a folder");
      };
      if (rank == fault_of)
        options.corrupt = [&](int64_t step, Executor& executor) {
          if (step >= 6) flip(programs[r], executor);
        };
      for (size_t card = 0; card < wrong_cards.size(); ++card)
        options.cards.push_back(
            {static_cast<int>(card),
             [is_wrong = wrong_cards[card]](const Program& program, Communicator& ranks, const ExecutorOptions& of) {
               return std::make_unique<PlayedCard>(program, ranks, of, is_wrong);
             }});
      StepAudit step_audit(programs[r], *comm, std::move(options));
      TrainOptions training;
      training.device = [arena](const Program& program, Communicator& ranks, const ExecutorOptions& of) {
        return std::make_unique<PlayedCard>(program, ranks, of, false, arena);
      };
      training.audit = &step_audit;
      TrainObservers observers;
      observers.add(step_audit);
      Trainer trainer(job, programs[r], step_audit.communicator(), std::move(observers), training);
      while (const std::optional<StepReport> report = trainer.run_step())
        if (rank == 0) found.losses.push_back(report->loss);
      found.steps[r] = step_audit.audited_steps();
    });
  } catch (const AuditFailed& error) {
    found.mismatch = error.mismatch();
  }
  return found;
}

}  // namespace

TEST_CASE("steps that are recorded on a tape and replayed on another card have the same bits under each plan") {
  const std::vector<Overrides> plans = {
      {"launch.ranks=1", "parallel.mode=stand_alone"},
      {"launch.ranks=2", "parallel.mode=data_parallel", "parallel.micro_batches=2"},
      {"launch.ranks=2", "parallel.mode=data_parallel", "parallel.optimizer_shard={level: 1, min_kb: 0}"},
      {"launch.ranks=2", "parallel.mode=data_parallel", "parallel.optimizer_shard={level: 3, min_kb: 0}"},
      {"launch.ranks=2", "parallel.mode=data_parallel", "parallel.optimizer_shard={level: 2, min_kb: 0}"},
      {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.tensor=2"},
      {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=4"},
  };
  for (const Overrides& plan : plans) {
    CAPTURE(plan.back());
    const Audited found = audit(plan, {false, false});
    CHECK_FALSE(found.mismatch);
    CHECK(found.losses.size() == 12);
    for (const int64_t steps : found.steps) CHECK(steps == 3);
  }
}

TEST_CASE("a wrong bit in one tensor of a rank is named by its next audit, with the card that computed incorrectly") {
  const Audited found = audit({"launch.ranks=2", "parallel.mode=data_parallel"}, {false, false}, 1);
  REQUIRE(found.mismatch);
  CHECK(found.mismatch->step == 8);
  CHECK(found.mismatch->tensor.starts_with("weight/"));
  CHECK(found.mismatch->first_is_wrong == true);
  CHECK(found.mismatch->text().find("step 8 produced different bits on GPU 0 than its replay on GPU 1") == 0);
  CHECK(found.saved[0] == 0);
  CHECK(found.saved[1] > 0);
}

TEST_CASE("a third card tells that the replaying card computed incorrectly") {
  const Overrides plan = {"launch.ranks=1", "parallel.mode=stand_alone"};
  const Audited found = audit(plan, {false, true, false});
  REQUIRE(found.mismatch);
  CHECK(found.mismatch->step == 4);
  CHECK(found.mismatch->first_is_wrong == false);
  const Audited of_two = audit(plan, {false, true});
  REQUIRE(of_two.mismatch);
  CHECK_FALSE(
      of_two.mismatch->first_is_wrong.has_value());  // with two cards a replay that repeats the step does not tell
}
