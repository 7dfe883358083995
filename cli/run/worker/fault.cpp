// Injected faults for tests of the launcher.
#include "cli/run/worker/fault.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "engine/base/error.h"
#include "engine/runtime/stored_ranges.h"

namespace trainctl {
namespace {

constexpr const char* kVariable = "TRAINCTL_TEST_FAULT";

/// Reads the number before `end` and removes both from the front.
std::optional<int64_t> take_number(std::string_view& text, char end) {
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop == text.data() + text.size() || *stop != end) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(stop - text.data()) + 1);
  return value;
}

}  // namespace

std::optional<EmulatedSpeed> EmulatedSpeed::of_environment(int rank) {
  constexpr const char* kSpeed = "TRAINCTL_TEST_SPEED";
  const char* given = std::getenv(kSpeed);
  if (given == nullptr) return std::nullopt;
  const std::string copy = std::string(given) + ":";
  std::string_view text = copy;
  EmulatedSpeed speed;
  speed.rank_ = rank;
  for (int64_t* value : {&speed.us_, &speed.factor_, &speed.spell_ms_, &speed.seed_}) {
    const auto number = take_number(text, ':');
    if (!number) throw EnvError(std::string(kSpeed) + " is " + given + ", expected MICROSECONDS:FACTOR:SPELL_MS:SEED");
    *value = *number;
  }
  return speed;
}

bool EmulatedSpeed::is_slow() const {
  if (spell_ms_ == 0) return rank_ == seed_;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const int64_t spell = std::chrono::duration_cast<std::chrono::milliseconds>(now).count() / spell_ms_;
  const auto key = static_cast<uint64_t>(spell * 1'000'003 + rank_ * 7919 + seed_ * 104'729);
  return ((key * 0x9E3779B97F4A7C15ull) >> 63) != 0;
}

void EmulatedSpeed::step(double samples) const {
  const double us = samples * static_cast<double>(us_ * (is_slow() ? factor_ : 1));
  std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int64_t>(us)));
}

std::optional<Fault> Fault::of_environment(int rank) {
  const char* order = std::getenv(kVariable);
  if (order == nullptr) return std::nullopt;
  std::string_view text = order;
  const auto of_rank = take_number(text, ':');
  const auto step = take_number(text, ':');
  Fault fault;
  fault.step_ = step.value_or(0);
  if (text.starts_with("exit")) {
    fault.what_ = What::exit;
    fault.code_ = std::atoi(text.data() + 4);
  } else if (text == "skip") {
    fault.what_ = What::skip;
  } else if (text == "flip") {
    fault.what_ = What::flip;
  } else if (text != "hang" || !of_rank || !step) {
    throw EnvError(std::string(kVariable) + " is " + order + ", expected RANK:STEP:exitCODE, :hang, :skip or :flip");
  }
  return of_rank == rank ? std::optional(fault) : std::nullopt;
}

void Fault::strike(int64_t step) const {
  if (step != step_) return;
  if (what_ == What::exit) _exit(code_);
  while (what_ == What::hang) pause();
}

std::optional<LeftOut> Fault::left_out(const Program& program) const {
  if (what_ != What::skip) return std::nullopt;
  const auto first = std::find_if(program.instructions.begin(), program.instructions.end(),
                                  [](const Instruction& i) { return i.opcode == Opcode::collective; });
  if (first == program.instructions.end()) return std::nullopt;
  return LeftOut{static_cast<uint32_t>(step_ - 1), static_cast<int>(first - program.instructions.begin())};
}

std::function<void(int64_t, Executor&)> Fault::corruption(const Program& program) const {
  if (what_ != What::flip) return nullptr;
  int64_t offset = -1;
  for (const StoredRange& range : stored_ranges(program))
    if (range.slot == kWeightSlot && range.dtype == DType::f32 && range.own_count > 0) offset = range.own_offset();
  if (offset < 0) return nullptr;
  return [offset, from = step_](int64_t step, Executor& executor) {
    if (step < from) return;
    uint32_t bits = 0;
    executor.read(offset, &bits, sizeof bits);
    bits ^= 1U << 12;
    executor.write(offset, &bits, sizeof bits);
  };
}

}  // namespace trainctl
