// Reports a failed run as text and as JSON.
#include "launcher/failure_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "launcher/live_status.h"

namespace trainctl {
namespace {

/// Failures within this time may have occurred in any order.
constexpr double kAtOnceSeconds = 0.25;

std::string rank_name(int rank, const Cluster& cluster) {
  return cluster.names.name(rank) + " (" + cluster.places[static_cast<size_t>(rank)].host + ")";
}

/// " at step 412, in all_reduce grad.0", from the rank's error.json or its last observed position.
std::string where(const RankReport& report) {
  if (report.error && report.error->step > 0) {
    std::string text = " at step " + std::to_string(report.error->step);
    if (!report.error->instruction.empty()) text += ", in " + report.error->instruction;
    return text;
  }
  return at_position(report.doing);
}

std::string ranks_name(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + format_ranks(ranks);
}

std::vector<int> without(std::vector<int> ranks, int rank) {
  std::erase(ranks, rank);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::string in_seconds(double seconds) {
  return seconds < 10 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} s", seconds);
}

/// The beginning of a message, in one line.
std::string first_line(const std::string& text) {
  constexpr size_t kMost = 500;
  const size_t end = std::min(text.find('\n'), text.size());
  return end <= kMost ? text.substr(0, end) : text.substr(0, kMost) + "…";
}

bool ranks_explain(const std::vector<RankReport>& reports) {
  return std::all_of(reports.begin(), reports.end(), [](const RankReport& report) { return report.ranks_explain; });
}

/// Tells why a rank of a program that does not explain its failures is the cause, although it did not fail.
std::string suspicion(const std::vector<RankReport>& reports, const Cause& cause) {
  const Course course = course_of(reports);
  const RankReport& report = reports[static_cast<size_t>(cause.rank)];
  const std::string others = "; the other ranks may have been waiting for it";
  if (cause.kind == Cause::Kind::ended_early) {
    return " had exited with code 0 " + in_seconds(course.first_failure - report.time) + " earlier" + others;
  }
  const std::string still = course.running.size() == 1 ? " was the only rank still running" : " was still running";
  return still + (report.frozen ? ", and its process was stopped by SIGSTOP or a debugger" : "") + others;
}

/// Describes a rank for which the launcher or another rank waited without success.
std::string silence(const RankReport& report) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.0f s", report.silent_seconds);
  const std::string still =
      report.silent_seconds > 0 ? " has made no progress for " + std::string(seconds) : " stopped responding";
  return still + where(report) + (report.frozen ? "; its process was stopped by SIGSTOP or a debugger" : "");
}

/// The distinct start errors: a run on several hosts lists all hosts that cannot be reached.
std::string start_errors(const std::vector<RankReport>& reports) {
  std::vector<std::string> errors;
  for (const RankReport& report : reports) {
    const bool is_known = std::find(errors.begin(), errors.end(), report.start_error) != errors.end();
    if (report.state == ProcessState::failed_to_start && !is_known) errors.push_back(report.start_error);
  }
  return join(errors, "; ");
}

/// `said`: the rank's own error, or another rank's complaint about it; empty if there is none.
std::string describe_cause(const std::vector<RankReport>& reports, const Cause& cause, const Cluster& cluster,
                           std::string& said) {
  if (cause.kind == Cause::Kind::none) return "";
  const RankReport& report = reports[static_cast<size_t>(cause.rank)];
  const std::string name = rank_name(cause.rank, cluster);
  if (cause.complaining_rank >= 0) said = reports[static_cast<size_t>(cause.complaining_rank)].error->what;
  if (cause.kind == Cause::Kind::link) {
    const LostLink& link = *report.lost_link;
    return "the link host " + link.from + " <-> host " + link.to + " is broken: " + link.fault + "; " + name +
           " was last seen" + (where(report).empty() ? " before its first step" : where(report));
  }
  const bool suspected = cause.kind == Cause::Kind::ended_early || cause.kind == Cause::Kind::silent;
  if (suspected && !report.ranks_explain) return ranks_name({cause.rank}) + suspicion(reports, cause);
  if (cause.kind == Cause::Kind::ended_early) {
    return name + " ended while " + cluster.names.name(cause.complaining_rank) + " was still waiting for it" +
           where(report);
  }
  if (cause.kind == Cause::Kind::silent) {
    if (cause.complaining_rank < 0 && !report.frozen) {
      said = "it hangs or needs more time; in the latter case increase launch.timeout";
    }
    return name + silence(report);
  }
  if (report.state == ProcessState::failed_to_start) return name + " could not be started: " + start_errors(reports);
  if (!report.host_lost.empty())
    return "host " + cluster.places[static_cast<size_t>(cause.rank)].host + " " + report.host_lost + "; " + name +
           " was last seen" + (where(report).empty() ? " before its first step" : where(report));
  if (report.out_of_memory) return name + " was killed by the kernel: out of memory" + where(report);
  if (!report.end.left.empty())
    said =
        "a rank ends when its process ends, so it must wait for the processes that it starts (use `wait` at the end of "
        "a "
        "script, `exec`, or `setsid --wait`)";
  if (!report.error) return name + " " + describe(report.end) + where(report);
  if (report.error->kind == ErrorKind::loss) return report.error->what;
  said = report.error->kind == ErrorKind::program || report.error->kind == ErrorKind::comm
             ? first_line(report.error->what)
             : report.error->what;
  return name + (report.error->kind == ErrorKind::bug ? " hit a bug in trainctl" : " failed") + where(report);
}

std::string cause_with_words(const Outcome& outcome, const Cluster& cluster) {
  std::string said;
  const std::string line = describe_cause(outcome.reports, outcome.cause, cluster, said);
  return said.empty() ? line : line + ": " + said;
}

/// Tells how a rank ended: "exited with code 1", "could not be started".
std::string manner(const RankReport& report) {
  return report.state == ProcessState::failed_to_start ? "could not be started" : describe(report.end);
}

/// The ranks except the cause that failed on their own, one line per manner and time.
std::string other_failures(const Outcome& outcome, const Course& course) {
  std::map<std::pair<std::string, std::string>, std::vector<int>> groups;
  for (const int rank : without(course.failed, outcome.cause.rank)) {
    const RankReport& report = outcome.reports[static_cast<size_t>(rank)];
    const double later = failure_time(report) - course.first_failure;
    groups[{later <= kAtOnceSeconds ? "" : in_seconds(later), manner(report)}].push_back(rank);
  }
  const bool follows = outcome.cause.kind != Cause::Kind::failed;
  std::string text;
  for (const auto& [key, ranks] : groups) {
    const auto& [later, how] = key;
    const std::string when = !later.empty() ? " " + later + " later" : follows ? "" : " at the same time";
    text += ranks_name(ranks) + " " + how + when + "\n";
  }
  return text;
}

/// Ranks of a program that may have caused the failure, which cannot be determined from outside.
std::string observations(const Outcome& outcome, const Course& course) {
  if (outcome.cause.kind != Cause::Kind::failed || course.failed.empty()) return "";
  std::string text;
  if (!course.ended.empty()) {
    const RankReport& last = outcome.reports[static_cast<size_t>(course.ended.back())];
    text += ranks_name(without(course.ended, -1)) + " had exited with code 0 " +
            in_seconds(course.first_failure - last.time) + " earlier\n";
  }
  if (course.running.size() == 1 && course.failed.size() > 1) {
    text += ranks_name(course.running) + " was the only rank still running\n";
  }
  return text;
}

/// "ranks 0, 1, 2 stopped as a consequence".
std::string consequences(const Outcome& outcome, const Cluster& cluster, const Course& course = {}) {
  std::vector<std::string> ranks, servers;
  for (size_t i = 0; i < outcome.reports.size(); ++i) {
    const auto rank = static_cast<int>(i);
    const bool on_its_own = std::find(course.failed.begin(), course.failed.end(), rank) != course.failed.end();
    if (rank == outcome.cause.rank || !outcome.reports[i].failed() || on_its_own) continue;
    const bool is_server = cluster.names.is_server(rank);
    (is_server ? servers : ranks).push_back(std::to_string(is_server ? rank - cluster.names.workers : rank));
  }
  const auto counted = [](const std::string& noun, const std::vector<std::string>& numbers) {
    return numbers.empty() ? "" : noun + (numbers.size() == 1 ? " " : "s ") + join(numbers);
  };
  if (ranks.empty() && servers.empty()) return "";
  const std::string between = ranks.empty() || servers.empty() ? "" : " and ";
  return counted("rank", ranks) + between + counted("server", servers) + " stopped as a consequence\n";
}

/// The loss is the same on all ranks, so none of them failed because of another.
bool is_of_all_ranks(const Outcome& outcome) {
  const auto& error = outcome.reports[static_cast<size_t>(outcome.cause.rank)].error;
  return error && error->kind == ErrorKind::loss;
}

/// True if a failure is a consequence of the cause. False where it is unknown: for ranks of a program that failed at
/// the same moment as the cause.
bool is_consequence(const Outcome& outcome, int rank, const Course& course) {
  const RankReport& report = outcome.reports[static_cast<size_t>(rank)];
  if (rank == outcome.cause.rank || !report.failed() || is_of_all_ranks(outcome)) return false;
  const bool on_its_own = std::find(course.failed.begin(), course.failed.end(), rank) != course.failed.end();
  const bool at_once = on_its_own && failure_time(report) - course.first_failure <= kAtOnceSeconds;
  return outcome.cause.kind != Cause::Kind::failed || !at_once;
}

nlohmann::ordered_json attempts_json(const Outcome& outcome) {
  auto list = nlohmann::ordered_json::array();
  for (const FailedAttempt& attempt : outcome.failed_attempts) {
    list.push_back({{"rank", attempt.cause.rank}, {"message", attempt.message}, {"seconds", attempt.seconds}});
  }
  return list;
}

nlohmann::ordered_json brief_outcome(const Outcome& outcome) {
  nlohmann::ordered_json json = {{"exit_code", outcome.exit_code}, {"seconds", outcome.seconds}};
  if (outcome.signal != 0) json["signal"] = signal_name(outcome.signal);
  if (outcome.stopped_at_step) json["stopped_at_step"] = *outcome.stopped_at_step;
  return json;
}

std::string indented(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    out += "  | " + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return out;
}

/// "last lines of its stderr, …/stderr:" and the lines.
std::string words_of(const RankReport& report, const std::string& whose, const std::string& log) {
  if (!report.last_lines.empty())
    return "  last lines of " + whose + " stderr, " + log + ":\n" + indented(report.last_lines);
  if (report.error && !report.error->stack.empty()) {
    return "  " + whose + " stack trace:\n" + indented(report.error->stack);
  }
  return "";
}

std::string cause_and_words(const Outcome& outcome, const Cluster& cluster, const RunDirectory& directory) {
  const RankReport& report = outcome.reports[static_cast<size_t>(outcome.cause.rank)];
  const auto& error = report.error;
  const std::string& words = report.last_lines;
  const bool repeated =
      error && !words.empty() && (error->kind == ErrorKind::spec || words.find(error->what) != std::string::npos);
  const std::string cause =
      repeated ? cause_line(outcome.reports, outcome.cause, cluster) : cause_with_words(outcome, cluster);
  const std::string log = directory.rank_file(outcome.cause.rank, "stderr");
  const std::string said = words_of(report, "its", log);
  return cause + "\n" + (said.empty() ? "  it wrote nothing to " + log + "\n" : said);
}

/// A program does not report for which rank it waited. If the cause only hangs or is gone, the report begins with it,
/// followed by the other ranks' messages.
std::string report_of_program(const Outcome& outcome, const Cluster& cluster, const RunDirectory& directory) {
  const Course course = course_of(outcome.reports);
  if (outcome.cause.kind == Cause::Kind::failed) {
    return observations(outcome, course) + other_failures(outcome, course) + consequences(outcome, cluster, course) +
           cause_and_words(outcome, cluster, directory);
  }
  std::string text = cause_line(outcome.reports, outcome.cause, cluster) + "\n" + other_failures(outcome, course);
  for (const int rank : course.failed) {
    const RankReport& report = outcome.reports[static_cast<size_t>(rank)];
    const std::string words =
        words_of(report, "rank " + std::to_string(rank) + "'s", directory.rank_file(rank, "stderr"));
    if (!words.empty()) return text + words;
  }
  return text;
}

}  // namespace

std::string at_position(const std::string& doing) {
  if (doing.empty()) return "";
  return (doing.starts_with("step ") ? " at " : " during ") + doing;
}

// Text from ranks and other hosts is untrusted: terminal escapes in it are removed.

std::string cause_line(const std::vector<RankReport>& reports, const Cause& cause, const Cluster& cluster) {
  std::string said;
  return terminal_text(describe_cause(reports, cause, cluster, said));
}

std::string failure_report(const Outcome& outcome, const Cluster& cluster, const RunDirectory& directory) {
  if (outcome.cause.kind == Cause::Kind::none) return "";
  if (is_of_all_ranks(outcome)) return cause_line(outcome.reports, outcome.cause, cluster) + "\n";
  if (!ranks_explain(outcome.reports)) return terminal_text(report_of_program(outcome, cluster, directory));
  return terminal_text(consequences(outcome, cluster) + cause_and_words(outcome, cluster, directory));
}

std::string brief_outcome_json(const Outcome& outcome) { return brief_outcome(outcome).dump() + "\n"; }

std::string outcome_json(const Outcome& outcome) {
  nlohmann::ordered_json json = brief_outcome(outcome);
  if (!outcome.failed_attempts.empty()) json["restarts"] = attempts_json(outcome);
  return json.dump() + "\n";
}

std::string failure_json(const Outcome& outcome, const Cluster& cluster) {
  nlohmann::ordered_json json;
  json["exit_code"] = outcome.exit_code;
  json["first_cause"] = {{"rank", outcome.cause.rank},
                         {"host", cluster.places[static_cast<size_t>(outcome.cause.rank)].host},
                         {"kind", to_string(outcome.cause.kind)},
                         {"message", terminal_text(cause_with_words(outcome, cluster))}};
  if (!outcome.failed_attempts.empty()) json["restarts"] = attempts_json(outcome);
  const Course course = ranks_explain(outcome.reports) ? Course{} : course_of(outcome.reports);
  json["ranks"] = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < outcome.reports.size(); ++rank) {
    const RankReport& report = outcome.reports[rank];
    nlohmann::ordered_json entry = {{"rank", rank}};
    entry["ended"] = report.state == ProcessState::failed_to_start ? report.start_error
                     : report.state == ProcessState::waiting       ? "was not started"
                                                                   : describe(report.end);
    entry["consequence"] = is_consequence(outcome, static_cast<int>(rank), course);
    entry["time"] = report.time;
    if (report.frozen) entry["frozen"] = true;
    if (report.out_of_memory) entry["out_of_memory"] = true;
    if (!report.doing.empty()) entry["doing"] = report.doing;
    if (report.error) entry["error"] = nlohmann::ordered_json::parse(to_json(*report.error));
    json["ranks"].push_back(std::move(entry));
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace trainctl
