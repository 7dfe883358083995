// See ssh.h.
#include "launcher/hosts/ssh.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>

#include "engine/base/error.h"

namespace trainctl::hosts {
namespace {

constexpr const char* kCache = "${XDG_CACHE_HOME:-$HOME/.cache}/trainctl/bin";

void reset_signals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}) std::signal(number, SIG_DFL);
}

}  // namespace

std::vector<std::string> ssh_words(const std::string& ssh, const std::string& host, const std::string& script) {
  check(script.find('\'') == std::string::npos, "a script for ssh has no single quote");
  std::vector<std::string> words;
  std::istringstream text(ssh);
  for (std::string word; text >> word;) words.push_back(word);
  if (words.empty()) throw EnvError("launch.ssh is empty");
  for (const char* option : {"-T", "-oBatchMode=yes", "-oClearAllForwardings=yes", "--"}) words.emplace_back(option);
  words.push_back(host);
  words.push_back("exec sh -c '" + script + "'");  // the login shell may be any
  return words;
}

namespace {

/// Becomes `trainctl agent` with these words, by the bundle's loader.
std::string script_of(const Bundle& bundle, const std::string& words) {
  const std::string at = std::string("d=\"") + kCache + "/" + bundle.name + "\"; ";
  return at + "m=$(uname -m); if test \"$m\" != " + bundle.machine + "; then echo " + kWrongMachine + " $m; " +
         "elif test -x \"$d/bin/trainctl\"; then exec \"$d/lib/" + bundle.loader +
         "\" --library-path \"$d/lib\" \"$d/bin/trainctl\" agent " + words + "; else echo " + kNotInstalled + "; fi";
}

}  // namespace

std::string agent_script(const Bundle& bundle, const std::string& id, bool may_start) {
  return script_of(bundle, id + (may_start ? "" : " --join") + " --installed \"$d\" --loader " + bundle.loader);
}

std::string probe_script(const Bundle& bundle, const std::string& interface) {
  const bool is_name = interface.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:@") == std::string::npos;
  if (!is_name) throw EnvError("'" + interface + "' is no interface (launch.interface)");
  return script_of(bundle, "probe" + (interface.empty() ? "" : " --interface " + interface));
}

std::string install_script(const Bundle& bundle) {
  return std::string("umask 077; d=\"") + kCache + "\"; t=\"$d/." + bundle.name +
         ".$$\"; mkdir -p \"$t\" && tar -xf - -C \"$t\" && chmod -R u+rwX,a+rX \"$t\" && "
         "if test -d \"$d/" +
         bundle.name + "\"; then rm -rf \"$t\"; else mv \"$t\" \"$d/" + bundle.name +
         "\"; fi || { rm -rf \"$t\"; exit 1; }";
}

PipedChild start_piped(const std::vector<std::string>& words, const std::function<void(int fd)>& feed) {
  int in[2], out[2], err[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
    throw EnvError(std::string("cannot make a pipe: ") + std::strerror(errno));
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t launcher = getpid();
  PipedChild child;
  child.pid = fork();
  if (child.pid == 0) {
    reset_signals();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(127);
    setpgid(0, 0);  // out of reach of the terminal's Ctrl-C
    dup2(in[0], 0);
    dup2(out[1], 1);
    dup2(err[1], 2);
    execvp(argv[0], argv.data());
    dprintf(2, "%s: %s\n", argv[0], std::strerror(errno));
    _exit(127);
  }
  const int error = errno;
  child.feeder = child.pid > 0 && feed ? fork() : -1;
  if (child.feeder == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    reset_signals();
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
    throw EnvError("cannot start " + words[0] + ": " + std::strerror(error));
  }
  return child;
}

}  // namespace trainctl::hosts
