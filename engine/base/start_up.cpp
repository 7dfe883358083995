// Measures the time until a run's first finished step: phases one after another, so that they add up.
#include "engine/base/start_up.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/monotonic_clock.h"

namespace trainctl {
namespace {

using Phase = StartUpClock::Phase;

void add_to(std::vector<Phase>& phases, const Phase& phase) {
  const auto known = std::find_if(phases.begin(), phases.end(), [&](const Phase& p) { return p.name == phase.name; });
  if (known == phases.end()) {
    phases.push_back(phase);
  } else {
    known->ns += phase.ns;
  }
}

/// Returns the text before `end`, and removes it and `end` from `text`.
std::string_view take_until(std::string_view& text, char end) {
  const std::string_view taken = text.substr(0, text.find(end));
  text.remove_prefix(std::min(text.size(), taken.size() + 1));
  return taken;
}

std::optional<int64_t> number_in(std::string_view text) {
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

StartUpClock::StartUpClock() : last_(monotonic_ns()) {}

void StartUpClock::add(std::string_view name, bool with_others) {
  if (stopped_) return;
  const int64_t now = monotonic_ns();
  add_to(phases_, {std::string(name), now - last_, with_others});
  last_ = now;
}

void StartUpClock::add_concurrent(const StartUpClock& other) {
  for (const Phase& phase : other.phases_) add_to(beside_, phase);
}

double StartUpClock::seconds() const {
  int64_t ns = 0;
  for (const Phase& phase : phases_) ns += phase.ns;
  return static_cast<double>(ns) / 1e9;
}

double StartUpClock::seconds_alone() const {
  int64_t ns = 0;
  for (const Phase& phase : phases_) ns += phase.with_others ? 0 : phase.ns;
  return static_cast<double>(ns) / 1e9;
}

std::string StartUpClock::to_text() const {
  std::string text = std::to_string(last_) + ":";
  for (size_t i = 0; i < phases_.size(); ++i) {
    text += (i == 0 ? "" : ",") + phases_[i].name + "=" + std::to_string(phases_[i].ns);
  }
  return text;
}

StartUpClock StartUpClock::of_text(std::string_view text) {
  StartUpClock clock;
  std::string_view rest = text;
  std::optional<int64_t> number = number_in(take_until(rest, ':'));
  if (number) clock.last_ = *number;
  while (number && !rest.empty()) {
    std::string_view phase = take_until(rest, ',');
    const std::string name(take_until(phase, '='));
    number = number_in(phase);
    add_to(clock.phases_, {name, number.value_or(0)});
  }
  if (!number) throw EnvError("'" + std::string(text) + "' is not a start-up clock: NS:NAME=NS,…");
  return clock;
}

}  // namespace trainctl
