// Reports a crash of a rank from a signal handler, which makes only async-signal-safe calls.
#include "cli/run/worker/crash.h"

#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>

#include "engine/base/plugins.h"
#include "engine/train/data/mapped_file.h"

namespace trainctl {
namespace {

void write_text(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void report(int signal, siginfo_t* info, void*) {
  const char* file = signal == SIGBUS ? mapped_file_at(info->si_addr) : nullptr;
  if (file != nullptr) {  // not a bug
    write_text(file);
    write_text(": cannot be read: its disk failed, or the file was truncated during the run\n");
    raise(signal);
    return;
  }
  const char* name = sigabbrev_np(signal);
  if (running_plugin() != nullptr) {
    write_text(running_plugin());
    write_text(": it crashed with SIG");
  } else {
    write_text("bug: this rank received SIG");
  }
  write_text(name == nullptr ? "?" : name);
  write_text(signal == SIGBUS ? " (the host may be out of memory)\n" : "\n");
  std::array<void*, 16> frames{};
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), frames.size()), STDERR_FILENO);
  raise(signal);  // SA_RESETHAND: this time it ends the process
}

}  // namespace

void report_crashes() {
  static std::array<char, 65536> stack;
  stack_t alternative{};
  alternative.ss_sp = stack.data();
  alternative.ss_size = stack.size();
  sigaltstack(&alternative, nullptr);
  void* warm[1];
  backtrace(warm, 1);  // the first call loads a library, which a handler must not
  struct sigaction action {};
  action.sa_sigaction = report;
  action.sa_flags = SA_RESETHAND | SA_ONSTACK | SA_SIGINFO;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(signal, &action, nullptr);
}

}  // namespace trainctl
