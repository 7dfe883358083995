// See fault.h.
#include "cli/worker/fault.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/base/error.h"

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
  } else if (text != "hang" || !of_rank || !step) {
    throw EnvError(std::string(kVariable) + " is " + order + ", expected RANK:STEP:exitCODE, :hang or :skip");
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

}  // namespace trainctl
