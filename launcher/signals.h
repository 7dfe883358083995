// Sets which signals this process handles, and which its children inherit. A signal that was ignored when the program
// started stays ignored: nohup ignores SIGHUP, and a shell without job control ignores SIGINT for its background jobs.
#pragma once

#include <csignal>
#include <initializer_list>
#include <vector>

namespace trainctl {

/// For the beginning of main. Unblocks all signals: a parent that waits for signals with sigwait or signalfd leaves
/// them blocked. Resets SIGCHLD, without which no child can be waited for. Ignores SIGXFSZ, so that a file that reaches
/// `ulimit -f` is a write error (EFBIG). As the first process of a container, which the kernel spares signals that have
/// no handler, exits at SIGINT, SIGTERM and SIGHUP with 128 + signal, until a command handles them.
void begin_signals();

/// Returns whether the signal was ignored when the program started.
bool was_ignored(int signal);

/// Returns the signals among `signals` that were not ignored when the program started: the ones to handle.
std::vector<int> heeded(std::initializer_list<int> signals);

/// Installs `handler` for the heeded ones of `signals`.
void handle_signals(std::initializer_list<int> signals, void (*handler)(int));

/// For a child, before exec: unblocks all signals and restores the dispositions with which the program started, except
/// SIGCHLD and SIGTERM, which become the default: programs wait for their children, and the launcher ends ranks by
/// SIGTERM. Only async-signal-safe calls.
void restore_signals();

}  // namespace trainctl
