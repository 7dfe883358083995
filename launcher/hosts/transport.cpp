// Reaches a host by a process of this host whose pipes are connected to a shell there.
#include "launcher/hosts/transport.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "launcher/quiet_fork.h"
#include "launcher/signals.h"

namespace trainctl::hosts {

PipedChild start_piped(const std::vector<std::string>& words, const Feed& feed) {
  int in[2], out[2], err[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
    throw EnvError(std::string("cannot create a pipe: ") + describe_errno(errno));
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t launcher = getpid();
  PipedChild child;
  child.pid = quiet_fork();  // in a separate group, out of reach of the terminal's Ctrl-C
  if (child.pid == 0) {
    restore_signals();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(127);
    dup2(in[0], 0);
    dup2(out[1], 1);
    dup2(err[1], 2);
    execvp(argv[0], argv.data());
    dprintf(2, "%s: %s\n", argv[0], std::strerror(errno));
    _exit(127);
  }
  const int error = errno;
  child.feeder = child.pid > 0 && feed ? quiet_fork() : -1;
  if (child.feeder == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    restore_signals();
    close(in[0]);
    feed(in[1]);
    _exit(0);
  }
  close(in[0]);
  close(out[1]);
  close(err[1]);
  if (feed) close(in[1]);
  child.in = feed ? -1 : in[1];
  child.out = out[0];
  child.err = err[0];
  if (child.pid < 0) {
    for (const int fd : {child.in, child.out, child.err})
      if (fd >= 0) close(fd);
    throw EnvError("cannot start " + words[0] + ": " + describe_errno(error));
  }
  return child;
}

}  // namespace trainctl::hosts
