// Collects the faults that kernels commit, and prints or throws them.
#include "tools/cuda_emulator/faults.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

namespace trainctl::emulator {
namespace {

std::string& pending() {
  static std::string text;
  return text;
}

std::set<std::string>& reported() {
  static std::set<std::string> keys;
  return keys;
}

}  // namespace

void report_fault(const std::string& key, const std::string& text) {
  if (!reported().insert(key).second) return;
  std::fprintf(stderr, "emulator: %s\n", text.c_str());
  pending() += (pending().empty() ? "" : "\n") + text;
}

std::string take_faults() { return std::exchange(pending(), {}); }

void forget_faults() {
  reported().clear();
  pending().clear();
}

bool faults_fail_calls() {
  const char* asked = std::getenv("TRAINCTL_EMULATOR_FAULTS");
  return asked == nullptr || std::strcmp(asked, "print") != 0;
}

}  // namespace trainctl::emulator
