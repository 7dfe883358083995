// Reports a crash of a plugin from a signal handler, which makes only async-signal-safe calls.
#include "engine/ops/plugins/plugin_crash.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/plugins.h"

namespace trainctl {
namespace {

void write_to_stderr(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void report_crash(int signal) {
  if (running_plugin() == nullptr) {
    raise(signal);  // SA_RESETHAND: this time it ends the process
    return;
  }
  const char* name = sigabbrev_np(signal);
  write_to_stderr("error: ");
  write_to_stderr(running_plugin());
  write_to_stderr(": it crashed with SIG");
  write_to_stderr(name == nullptr ? "?" : name);
  write_to_stderr("; trainctl check --plugin FILE tests a plugin\n");
  _exit(kExitEnv);
}

}  // namespace

void report_plugin_crashes() {
  static std::array<char, 65536> stack;
  stack_t in_use{};
  if (sigaltstack(nullptr, &in_use) == 0 && (in_use.ss_flags & SS_DISABLE) != 0) {
    stack_t alternative{};
    alternative.ss_sp = stack.data();
    alternative.ss_size = stack.size();
    sigaltstack(&alternative, nullptr);
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    struct sigaction now {};
    if (sigaction(signal, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_handler = report_crash;
    action.sa_flags = SA_RESETHAND | SA_ONSTACK;
    sigaction(signal, &action, nullptr);
  }
}

}  // namespace trainctl
