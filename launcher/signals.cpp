// Sets which signals this process handles, and which its children inherit.
#include "launcher/signals.h"

#include <unistd.h>

#include <array>

namespace trainctl {
namespace {

/// All signals whose disposition this program changes anywhere, and SIGCHLD.
constexpr std::array kChanged = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE, SIGXFSZ, SIGCHLD};

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

std::array<bool, kChanged.size()> ignored_now() {
  std::array<bool, kChanged.size()> ignored{};
  for (size_t i = 0; i < kChanged.size(); ++i) ignored[i] = is_ignored(kChanged[i]);
  return ignored;
}

/// Read before main, hence before anything changes a disposition.
const std::array<bool, kChanged.size()> ignored_at_start = ignored_now();

void unblock_all() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// Exits as the kernel makes any process except the first of a container exit on these signals.
void end_first_process(int signal) { _exit(128 + signal); }

}  // namespace

void begin_signals() {
  constexpr pid_t kFirst = 1;
  if (getpid() == kFirst) handle_signals({SIGINT, SIGTERM, SIGHUP}, end_first_process);
  std::signal(SIGCHLD, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);
  unblock_all();
}

bool was_ignored(int signal) {
  for (size_t i = 0; i < kChanged.size(); ++i)
    if (kChanged[i] == signal) return ignored_at_start[i];
  return false;
}

std::vector<int> heeded(std::initializer_list<int> signals) {
  std::vector<int> kept;
  for (const int signal : signals)
    if (!was_ignored(signal)) kept.push_back(signal);
  return kept;
}

void handle_signals(std::initializer_list<int> signals, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  for (const int signal : heeded(signals)) sigaction(signal, &action, nullptr);
}

void restore_signals() {
  for (size_t i = 0; i < kChanged.size(); ++i) {
    const bool is_kept = ignored_at_start[i] && kChanged[i] != SIGCHLD && kChanged[i] != SIGTERM;
    std::signal(kChanged[i], is_kept ? SIG_IGN : SIG_DFL);
  }
  unblock_all();
}

}  // namespace trainctl
