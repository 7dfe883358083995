// Runs the recorded step on the second GPU, and compares states, losses and exchanged bytes.
#include "engine/train/trainer/card_replay.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <utility>

#include "engine/graph/half.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/trainer/audit_recorder.h"

namespace trainctl {
namespace {

std::string name_of(const StoredRange& range) { return std::string(range.slot) + "/" + range.variable->name; }

double value_at(DType type, const std::byte* bytes) {
  if (is_half(type)) {
    uint16_t half = 0;
    float value = 0;
    std::memcpy(&half, bytes, sizeof half);
    halves_to_floats(type, &half, 1, &value);
    return double{value};
  }
  if (is_float(type)) {
    float value = 0;
    std::memcpy(&value, bytes, sizeof value);
    return double{value};
  }
  int32_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

}  // namespace

CardReplay::CardReplay(const Program& program, int rank, int ranks, std::vector<AuditCard> cards,
                       ExecutorOptions options)
    : program_(program), cards_(std::move(cards)), options_(std::move(options)), alone_(rank, ranks) {
  check(cards_.size() > 1, "a replay needs a second card");
  options_.print = [](const Operand&, const void*, int) {};
  options_.on_communication = nullptr;
  options_.on_prepared = nullptr;
  options_.left_out.reset();
  options_.timeline = nullptr;
  options_.start_up = nullptr;
}

CardReplay::~CardReplay() {
  if (!executor_) return;
  on_own_thread([this] {
    inputs_.reset();
    executor_.reset();
  });
}

std::unique_ptr<Executor> CardReplay::executor_on(const AuditCard& card) {
  ExecutorOptions options = options_;
  options.replays = tape_.get();
  try {
    return card.make(program_, alone_, options);
  } catch (const EnvError& error) {
    throw EnvError(fmt::format("train.audit_every: GPU {} cannot replay the steps of GPU {}: {}", card.gpu,
                               cards_.front().gpu, error.what()));
  }
}

/// A card is current for a thread, so another one is prepared on a thread of its own.
void CardReplay::prepare(std::unique_ptr<StepTape> tape, const InputLayout& inputs) {
  check(tape != nullptr, "a card records its steps");
  tape_ = std::move(tape);
  on_own_thread([&] {
    executor_ = executor_on(cards_[1]);
    inputs_ = executor_->allocate_inputs(executor_->inputs().bytes);
    replayed_.state.resize(static_cast<size_t>(tape_->state_bytes));
    executor_->use_often(replayed_.state);
    const InputLayout& own = executor_->inputs();
    if (own.bytes != inputs.bytes || own.offsets != inputs.offsets || own.rows != inputs.rows ||
        own.as_bytes != inputs.as_bytes)
      throw EnvError(fmt::format(
          "train.audit_every: GPU {} does not have the memory to keep the samples that GPU {} keeps; close other "
          "programs on it, or set audit_every: 0",
          cards_[1].gpu, cards_[0].gpu));
  });
}

void CardReplay::load(Executor& executor, const Step& step, std::byte* inputs) const {
  for (const StateCopy& copy : tape_->state) executor.write(copy.offset, tape_->before.get() + copy.to, copy.bytes);
  check(executor.inputs().bytes == static_cast<int64_t>(step.inputs.size()), "a replay has the inputs of the step");
  std::memcpy(inputs, step.inputs.data(), step.inputs.size());
}

void CardReplay::read_state(Executor& executor, Result& result) const {
  result.state.resize(static_cast<size_t>(tape_->state_bytes));
  for (const StateCopy& copy : tape_->state) executor.read(copy.offset, result.state.data() + copy.to, copy.bytes);
}

/// All that the last replay gave.
std::vector<std::byte> CardReplay::given_again() const {
  std::vector<std::byte> all;
  for (const StepTape::Exchange& exchange : tape_->exchanges) {
    const std::byte* const given = tape_->exchanged.get() + exchange.given_again;
    all.insert(all.end(), given, given + exchange.given_bytes);
  }
  return all;
}

void CardReplay::load(const Step& step) { load(*executor_, step, inputs_.get()); }

void CardReplay::run(const Step& step) {
  executor_->start_step(inputs_.get(), step.scalars);
  replayed_.loss = executor_->finish_step();
}

/// The result of the rank's own card.
CardReplay::Result CardReplay::recorded(const Step& step) const {
  Result result;
  result.loss = step.loss.value_or(0);
  result.state.assign(static_cast<size_t>(tape_->state_bytes), std::byte{});
  for (const StateCopy& copy : tape_->state)
    std::memcpy(result.state.data() + copy.to, tape_->after.get() + copy.to, static_cast<size_t>(copy.bytes));
  for (const StepTape::Exchange& exchange : tape_->exchanges) {
    const std::byte* const given = tape_->exchanged.get() + exchange.given;
    result.given.insert(result.given.end(), given, given + exchange.given_bytes);
  }
  return result;
}

/// The first element that differs, and the gradient that it belongs to if it belongs to one.
void CardReplay::describe_exchange(const Instruction& instruction, const std::byte* first, const std::byte* again,
                                   AuditMismatch& found) const {
  const Operand& given = instruction.inputs[0];
  const int64_t size = byte_size(given.dtype), elements = given.bytes() / size;
  int64_t different = 0;
  for (int64_t i = 0; i < elements; ++i) {
    if (std::memcmp(first + i * size, again + i * size, static_cast<size_t>(size)) == 0) continue;
    if (different++ > 0) continue;
    found.element = i;
    found.first = value_at(given.dtype, first + i * size);
    found.replayed = value_at(given.dtype, again + i * size);
  }
  const int64_t at = given.offset + found.element * size;
  std::string part;
  for (const StoredRange& range : gradient_ranges(program_))
    if (range.offset <= at && at < range.offset + range.bytes()) part = name_of(range) + "; ";
  found.tensor =
      fmt::format("the data that it sends to {} ({}{} of {} elements)", instruction.name, part, different, elements);
}

/// Compares the state after the step, the data that it sent and its loss with the replay, bit by bit. Returns whether
/// they differ, and the first difference in `found`.
bool CardReplay::find_difference(const Step& step, const Result& replayed, AuditMismatch& found) const {
  size_t at = 0;
  for (const StoredRange& range : stored_ranges(program_)) {
    if (range.count == 0) continue;
    const StateCopy& copy = tape_->state[at++];
    const std::byte *first = tape_->after.get() + copy.to, *again = replayed.state.data() + copy.to;
    if (std::memcmp(first, again, static_cast<size_t>(copy.bytes)) == 0) continue;
    const int64_t size = byte_size(range.dtype);
    int64_t element = 0;
    while (std::memcmp(first + element * size, again + element * size, static_cast<size_t>(size)) == 0) ++element;
    found.tensor = name_of(range);
    found.element = range.first + element;
    found.first = value_at(range.dtype, first + element * size);
    found.replayed = value_at(range.dtype, again + element * size);
    return true;
  }
  for (const StepTape::Exchange& exchange : tape_->exchanges) {
    const std::byte* const memory = tape_->exchanged.get();
    if (std::memcmp(memory + exchange.given, memory + exchange.given_again,
                    static_cast<size_t>(exchange.given_bytes)) == 0)
      continue;
    describe_exchange(program_.instructions[static_cast<size_t>(exchange.instruction)], memory + exchange.given,
                      memory + exchange.given_again, found);
    return true;
  }
  if (!step.loss || std::bit_cast<uint32_t>(*step.loss) == std::bit_cast<uint32_t>(replayed.loss)) return false;
  found.tensor = "loss";
  return true;
}

/// Without a third card, the rank's own card shows at least whether its fault was transient.
void CardReplay::ask_third_card(const Step& step, AuditMismatch& found) {
  const AuditCard& card = cards_.size() > 2 ? cards_[2] : cards_[0];
  replayed_.given = given_again();  // the third run overwrites it
  Result third;
  try {
    on_own_thread([&] {
      const std::unique_ptr<Executor> executor = executor_on(card);
      const HostBlock inputs = executor->allocate_inputs(executor->inputs().bytes);
      load(*executor, step, inputs.get());
      executor->start_step(inputs.get(), step.scalars);
      third.loss = executor->finish_step();
      read_state(*executor, third);
    });
  } catch (const EnvError&) {
    return;  // it has no memory left
  }
  third.given = given_again();
  found.third_core = card.gpu;
  const auto same = [&step](const Result& a, const Result& b) {
    return a.state == b.state && a.given == b.given &&
           (!step.loss || std::bit_cast<uint32_t>(a.loss) == std::bit_cast<uint32_t>(b.loss));
  };
  decide(found, same(third, replayed_), same(third, recorded(step)), cards_.size() > 2);
}

std::optional<AuditMismatch> CardReplay::compare(const Step& step) {
  read_state(*executor_, replayed_);
  AuditMismatch found;
  found.device = "GPU";
  found.step = step.step;
  found.first_core = cards_[0].gpu;
  found.replay_core = cards_[1].gpu;
  if (!find_difference(step, replayed_, found)) return std::nullopt;
  ask_third_card(step, found);
  return found;
}

AuditedValues CardReplay::values(const std::byte* state) const {
  AuditedValues values;
  size_t at = 0;
  for (const StoredRange& range : stored_ranges(program_)) {
    if (range.count == 0) continue;
    const std::byte* bytes = state + tape_->state[at++].to;
    if (!is_float(range.dtype) || range.is_copy) continue;
    std::vector<float>& all = values[name_of(range)];
    for (int64_t i = 0; i < range.count; ++i)
      all.push_back(static_cast<float>(value_at(range.dtype, bytes + i * byte_size(range.dtype))));
  }
  return values;
}

AuditedValues CardReplay::first_values() const { return values(tape_->after.get()); }
AuditedValues CardReplay::replayed_values() const { return values(replayed_.state.data()); }

}  // namespace trainctl
