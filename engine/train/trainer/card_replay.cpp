// Runs the recorded step on the second GPU, compares digests, and after a mismatch the bytes of states, losses and
// exchanges.
#include "engine/train/trainer/card_replay.h"

#include <fmt/format.h>

#include <algorithm>
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

/// Notes the first of `count` elements of `size` bytes that differs, and returns how many do.
int64_t first_difference(const std::byte* first, const std::byte* again, int64_t size, int64_t count, DType type,
                         AuditMismatch& found) {
  int64_t different = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (std::memcmp(first + i * size, again + i * size, static_cast<size_t>(size)) == 0) continue;
    if (different++ > 0) continue;
    found.element = i;
    found.first = value_at(type, first + i * size);
    found.replayed = value_at(type, again + i * size);
  }
  return different;
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
    const InputLayout& own = executor_->inputs();
    if (own.bytes != inputs.bytes || own.offsets != inputs.offsets || own.rows != inputs.rows ||
        own.as_bytes != inputs.as_bytes)
      throw EnvError(fmt::format(
          "train.audit_every: GPU {} does not have the memory to keep the samples that GPU {} keeps; close other "
          "programs on it, or set audit_every: 0",
          cards_[1].gpu, cards_[0].gpu));
  });
}

void CardReplay::rehearse() {
  on_own_thread([this] {
    executor_->load_tape();
    executor_->tape_digests();
  });
}

void CardReplay::run_on(Executor& executor, const Step& step, std::byte* inputs) const {
  check(executor.inputs().bytes == static_cast<int64_t>(step.inputs.size()), "a replay has the inputs of the step");
  std::memcpy(inputs, step.inputs.data(), step.inputs.size());
  executor.load_tape();
  executor.start_step(inputs, step.scalars);
  executor.finish_step();
}

std::optional<AuditMismatch> CardReplay::run(const Step& step, const std::vector<uint64_t>& recorded) {
  run_on(*executor_, step, inputs_.get());
  const std::vector<uint64_t> again = executor_->tape_digests();
  check(again.size() == recorded.size(), "a replay computes the digests of the recording");
  const auto different = std::mismatch(recorded.begin(), recorded.end(), again.begin());
  if (different.first == recorded.end()) return std::nullopt;
  recorded_ = {fetched(tape_->after, tape_->state_bytes), fetched(tape_->given, tape_->given_bytes)};
  replayed_ = replayed_on(*executor_);
  AuditMismatch found;
  found.device = "GPU";
  found.step = step.step;
  found.first_core = cards_[0].gpu;
  found.replay_core = cards_[1].gpu;
  find_difference(found, static_cast<size_t>(different.first - recorded.begin()));
  ask_third_card(step, found);
  return found;
}

std::vector<std::byte> CardReplay::fetched(const std::shared_ptr<std::byte>& memory, int64_t bytes) const {
  std::vector<std::byte> on_host(static_cast<size_t>(bytes));
  if (bytes > 0) executor_->fetch(memory.get(), on_host.data(), bytes);
  return on_host;
}

/// The result of the last step of an executor that replays.
CardReplay::Result CardReplay::replayed_on(Executor& executor) const {
  Result result;
  result.state.resize(static_cast<size_t>(tape_->state_bytes));
  for (const StateCopy& copy : tape_->moves) executor.read(copy.offset, result.state.data() + copy.to, copy.bytes);
  result.given.resize(static_cast<size_t>(tape_->given_bytes));
  if (tape_->given_bytes > 0) executor.fetch(tape_->given_again.get(), result.given.data(), tape_->given_bytes);
  return result;
}

/// The first element that differs, and the gradient that it belongs to if it belongs to one.
void CardReplay::describe_exchange(const StepTape::Exchange& exchange, AuditMismatch& found) const {
  const Instruction& instruction = program_.instructions[static_cast<size_t>(exchange.instruction)];
  const Operand& given = instruction.inputs[0];
  const std::byte *first = recorded_.given.data() + exchange.given, *again = replayed_.given.data() + exchange.given;
  const int64_t size = byte_size(given.dtype), elements = given.bytes() / size;
  const int64_t different = first_difference(first, again, size, elements, given.dtype, found);
  const int64_t at = given.offset + found.element * size;
  std::string part;
  for (const StoredRange& range : gradient_ranges(program_))
    if (range.offset <= at && at < range.offset + range.bytes()) part = name_of(range) + "; ";
  found.tensor =
      fmt::format("the data that it sends to {} ({}{} of {} elements)", instruction.name, part, different, elements);
}

/// Finds the first difference in the state, the data that was sent or the loss. `first_digest`: the first digest that
/// differs.
void CardReplay::find_difference(AuditMismatch& found, size_t first_digest) const {
  const auto differs = [&](const StateCopy& copy) {
    return std::memcmp(recorded_.state.data() + copy.to, replayed_.state.data() + copy.to,
                       static_cast<size_t>(copy.bytes)) != 0;
  };
  size_t at = 0;
  for (const StoredRange& range : stored_ranges(program_)) {
    if (range.count == 0) continue;
    const StateCopy& copy = tape_->state[at++];
    if (!differs(copy)) continue;
    first_difference(recorded_.state.data() + copy.to, replayed_.state.data() + copy.to, byte_size(range.dtype),
                     range.count, range.dtype, found);
    found.tensor = name_of(range);
    found.element += range.first;
    return;
  }
  for (const StepTape::Exchange& exchange : tape_->exchanges)
    if (std::memcmp(recorded_.given.data() + exchange.given, replayed_.given.data() + exchange.given,
                    static_cast<size_t>(exchange.given_bytes)) != 0)
      return describe_exchange(exchange, found);
  if (at < tape_->state.size() && differs(tape_->state[at])) {
    const int64_t to = tape_->state[at].to;
    first_difference(recorded_.state.data() + to, replayed_.state.data() + to, sizeof(float), 1, DType::f32, found);
    found.tensor = "loss";
    return;
  }
  found.tensor = fmt::format("digest {} of the step, although the copied bytes are the same", first_digest + 1);
}

/// Without a third card, the rank's own card shows at least whether its fault was transient.
void CardReplay::ask_third_card(const Step& step, AuditMismatch& found) {
  const AuditCard& card = cards_.size() > 2 ? cards_[2] : cards_[0];
  Result third;
  try {
    on_own_thread([&] {
      const std::unique_ptr<Executor> executor = executor_on(card);
      const HostBlock inputs = executor->allocate_inputs(executor->inputs().bytes);
      run_on(*executor, step, inputs.get());
      third = replayed_on(*executor);
    });
  } catch (const EnvError&) {
    return;  // it has no memory left
  }
  found.third_core = card.gpu;
  decide(found, third == replayed_, third == recorded_, cards_.size() > 2);
}

AuditedValues CardReplay::values(const Result& result) const {
  AuditedValues values;
  size_t at = 0;
  for (const StoredRange& range : stored_ranges(program_)) {
    if (range.count == 0) continue;
    const std::byte* bytes = result.state.data() + tape_->state[at++].to;
    if (!is_float(range.dtype) || range.is_copy) continue;
    std::vector<float>& all = values[name_of(range)];
    for (int64_t i = 0; i < range.count; ++i)
      all.push_back(static_cast<float>(value_at(range.dtype, bytes + i * byte_size(range.dtype))));
  }
  return values;
}

}  // namespace trainctl
