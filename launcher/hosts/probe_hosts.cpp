// The launcher's side of probe.h, which blocks.
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "launcher/hosts/probe.h"
#include "launcher/hosts/scripts.h"
#include "launcher/rank_error.h"

namespace trainctl::hosts {
namespace {

using Json = nlohmann::json;

constexpr double kProbeAnswerSeconds = 30, kProbeInstallSeconds = 900;
/// Time limit for reaching the hosts, all of which are probed at once.
constexpr double kReachSeconds = 10;

/// A child process with pipes, and the lines that it writes.
class Talk {
 public:
  explicit Talk(const PipedChild& child) : child_(child) {}
  Talk(const Talk&) = delete;
  Talk& operator=(const Talk&) = delete;
  ~Talk() {
    for (const int fd : {child_.in, child_.out, child_.err})
      if (fd >= 0) close(fd);
    for (const int pid : {child_.pid, child_.feeder})
      if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
      }
  }

  /// Returns the rest of the next line that begins with `start`; nullopt if the child ends, or writes no such line in
  /// time.
  std::optional<std::string> line(const std::string& start, double seconds) {
    const double deadline = steady_seconds() + seconds;
    for (;;) {
      for (size_t end = out_.find('\n'); end != std::string::npos; end = out_.find('\n')) {
        const std::string one = out_.substr(0, end);
        out_.erase(0, end + 1);
        if (one.starts_with(start)) return one.substr(start.size());
        others_ += one + "\n";
      }
      if (!read(deadline)) return std::nullopt;
    }
  }
  /// Returns whether the child is still running at `deadline` (steady seconds) without having written a whole line.
  bool is_silent_until(double deadline) {
    while (out_.find('\n') == std::string::npos && read(deadline)) {
    }
    return out_.find('\n') == std::string::npos && (child_.out >= 0 || child_.err >= 0);
  }
  void say(const std::string& line) {
    const std::string text = line + "\n";
    if (write(child_.in, text.data(), text.size()) < 0) return;  // then it ends, which line() notices
  }
  /// Returns the child's exit code; -1 if it did not end in time, or was killed.
  int end(double seconds) {
    const double deadline = steady_seconds() + seconds;
    while (read(deadline)) {
    }
    int status = 0;
    while (waitpid(child_.pid, &status, WNOHANG) == 0) {
      if (steady_seconds() >= deadline) return -1;
      usleep(5000);
    }
    child_.pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  const std::string& errors() const { return errors_; }
  const std::string& other_lines() const { return others_; }

 private:
  /// Returns false if both pipes have ended, or nothing arrives in time.
  bool read(double deadline) {
    std::array<pollfd, 2> ready{{{child_.out, POLLIN, 0}, {child_.err, POLLIN, 0}}};
    const double left = deadline - steady_seconds();
    if ((child_.out < 0 && child_.err < 0) || left <= 0) return false;
    if (poll(ready.data(), ready.size(), static_cast<int>(left * 1000) + 1) <= 0) return errno == EINTR;
    take(ready[0].revents, child_.out, out_);
    take(ready[1].revents, child_.err, errors_);
    return true;
  }
  static void take(short events, int& fd, std::string& text) {
    if (events == 0 || fd < 0) return;
    std::array<char, 4096> buffer{};
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got > 0) return void(text.append(buffer.data(), static_cast<size_t>(got)));
    close(fd);
    fd = -1;
  }

  PipedChild child_;
  std::string out_, errors_, others_;
};

std::string one_line(std::string text) {
  std::erase(text, '\r');
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ';');
  return text;
}

struct Probe {
  std::unique_ptr<Talk> talk;
  int port = 0;
};

/// Waits for the probe that was started at `begin`. If the program is missing, installs it and starts another probe.
Probe await_probe(const Bundle& bundle, const Transport& transport, const std::string& interface, HostFacts& facts,
                  std::unique_ptr<Talk> talk, double begin) {
  Probe probe{std::move(talk)};
  for (const bool may_install : {true, false}) {
    if (!may_install) {
      begin = wall_seconds();
      probe.talk = std::make_unique<Talk>(transport.run(facts.name, probe_script(bundle, interface)));
    }
    const auto line = probe.talk->line(kProbeLine, std::max(0.1, begin + kReachSeconds - wall_seconds()));
    const double end = wall_seconds();
    if (line) {
      const Json json = Json::parse(*line, nullptr, false);
      if (!json.is_object()) break;
      facts.machine = field_or(json, "machine", "");
      facts.system = field_or(json, "system", "");
      facts.address = field_or(json, "address", "");
      facts.cores = field_or(json, "cores", 0);
      facts.gpus = field_or(json, "gpus", 0);
      facts.memory_bytes = field_or(json, "memory", int64_t{0});
      facts.disk_bytes = field_or(json, "disk", int64_t{0});
      facts.round_trip_seconds = end - begin;
      // Most of this time passes before the probe reads its clock.
      facts.clock_seconds = field_or(json, "time", 0.0) - end;
      if (facts.clock_seconds < 0 && facts.clock_seconds > begin - end) facts.clock_seconds = 0;
      probe.port = field_or(json, "port", 0);
      return probe;
    }
    const bool lacks_program = probe.talk->other_lines().find(kNotInstalled) != std::string::npos;
    if (!lacks_program || !may_install) break;
    Talk install(transport.run(facts.name, install_script(bundle), [&](int fd) { write_tar(bundle, fd); }));
    if (install.end(kProbeInstallSeconds) != 0) {
      facts.fault = "could not install this program: " + one_line(install.errors());
      probe.talk.reset();
      return probe;
    }
  }
  const std::string& others = probe.talk->other_lines();
  probe.talk->end(1);
  const std::string said = one_line(probe.talk->errors());
  if (const size_t at = others.find(kWrongMachine); at != std::string::npos) {
    facts.fault = "has a different architecture: " +
                  one_line(others.substr(at + std::char_traits<char>::length(kWrongMachine) + 1)) +
                  "; this program is for " + bundle.machine;
  } else {
    facts.fault = said.empty() ? "did not respond within 10 s" : said;
  }
  probe.talk.reset();
  return probe;
}

}  // namespace

bool HostsReport::fine() const {
  const auto is_fine = [](const auto& facts) { return facts.fault.empty(); };
  return std::all_of(hosts.begin(), hosts.end(), is_fine) && std::all_of(links.begin(), links.end(), is_fine);
}

HostsReport probe_hosts(const Cluster& cluster, const Transport& transport, const std::string& interface,
                        const std::function<void(const std::string& line)>& notice) {
  std::signal(SIGPIPE, SIG_IGN);
  const Bundle bundle = bundle_of_this_program();
  HostsReport report;
  std::vector<std::unique_ptr<Talk>> talks;
  const double begin = wall_seconds();
  for (const RankPlace& place : cluster.places) {
    if (place.local_rank != 0) continue;
    report.hosts.emplace_back().name = place.host;
    talks.push_back(std::make_unique<Talk>(transport.run(place.host, probe_script(bundle, interface))));
  }
  const double late = steady_seconds() + kLateSeconds;
  for (size_t i = 0; i < talks.size(); ++i)
    if (talks[i]->is_silent_until(late) && notice)
      notice(fmt::format("host {} has not responded for {:g} s; the limit is {:g} s", report.hosts[i].name,
                         kLateSeconds, kReachSeconds));
  std::vector<Probe> probes;
  for (size_t i = 0; i < talks.size(); ++i)
    probes.push_back(await_probe(bundle, transport, interface, report.hosts[i], std::move(talks[i]), begin));
  for (size_t from = 0; from < probes.size(); ++from) {
    if (!probes[from].talk) continue;
    Json others = Json::array();
    for (size_t to = 0; to < probes.size(); ++to)
      if (to != from && probes[to].talk)
        others.push_back({report.hosts[to].name, report.hosts[to].address, probes[to].port});
    if (others.empty()) continue;
    probes[from].talk->say(others.dump());
    for (const Json& other : others) {
      LinkFacts link;
      link.from = report.hosts[from].name;
      link.to = other.at(0).get<std::string>();
      const auto line = probes[from].talk->line(kLinkLine, kProbeAnswerSeconds);
      const Json json = line ? Json::parse(*line, nullptr, false) : Json();
      link.fault = json.is_object() ? field_or(json, "fault", "") : "the probe did not respond";
      if (json.is_object()) {
        link.latency_seconds = field_or(json, "latency", 0.0);
        link.bytes_per_second = field_or(json, "bandwidth", 0.0);
      }
      report.links.push_back(std::move(link));
    }
  }
  return report;
}

}  // namespace trainctl::hosts
