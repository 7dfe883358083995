// A failed run in words and as JSON.
#include "launcher/failure_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/base/text.h"
#include "launcher/log_tail.h"

namespace trainctl {
namespace {

constexpr int kLastWords = 20;

std::string rank_name(int rank, const Cluster& cluster) {
  return "rank " + std::to_string(rank) + " (" + cluster.places[static_cast<size_t>(rank)].host + ")";
}

/// "at step 412, all_reduce grad.0", from its error.json or from its last observed position.
std::string where(const RankReport& report) {
  if (report.error && report.error->step > 0) {
    std::string text = " at step " + std::to_string(report.error->step);
    if (!report.error->instruction.empty()) text += ", in " + report.error->instruction;
    return text;
  }
  return report.doing.empty() ? "" : " at " + report.doing;
}

/// What was observed of a rank that the launcher or another rank waited for in vain.
std::string silence(const RankReport& report) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.0f s", report.silent_seconds);
  const std::string still =
      report.silent_seconds > 0 ? " has stood still for " + std::string(seconds) : " stopped answering";
  return still + where(report) + (report.frozen ? "; its process was stopped, by SIGSTOP or a debugger" : "");
}

/// `said`: the rank's own error, or another rank's complaint about it; empty if there is none.
std::string describe_cause(const std::vector<RankReport>& reports, const Cause& cause, const Cluster& cluster,
                           std::string& said) {
  if (cause.kind == Cause::Kind::none) return "";
  const RankReport& report = reports[static_cast<size_t>(cause.rank)];
  const std::string name = rank_name(cause.rank, cluster);
  if (cause.complaining_rank >= 0) said = reports[static_cast<size_t>(cause.complaining_rank)].error->what;
  if (cause.kind == Cause::Kind::ended_early) {
    return name + " ended while rank " + std::to_string(cause.complaining_rank) + " still waited for it" +
           where(report);
  }
  if (cause.kind == Cause::Kind::silent) {
    if (cause.complaining_rank < 0 && !report.frozen) {
      said = "it hangs, or needs longer: then set a larger launch.timeout";
    }
    return name + silence(report);
  }
  if (report.state == ProcessState::failed_to_start) return name + " could not be started: " + report.start_error;
  if (report.out_of_memory) return name + " was killed by the kernel for lack of memory" + where(report);
  if (!report.error) return name + " " + describe(report.end) + where(report);
  if (report.error->kind == ErrorKind::loss) return report.error->what;
  said = report.error->what;
  return name + (report.error->kind == ErrorKind::bug ? " met a bug of trainctl" : " failed") + where(report);
}

std::string cause_with_words(const Outcome& outcome, const Cluster& cluster) {
  std::string said;
  const std::string line = describe_cause(outcome.reports, outcome.cause, cluster, said);
  return said.empty() ? line : line + ": " + said;
}

/// "ranks 0, 1, 2 stopped because of it".
std::string consequences(const Outcome& outcome) {
  std::vector<std::string> ranks;
  for (size_t rank = 0; rank < outcome.reports.size(); ++rank) {
    const RankReport& report = outcome.reports[rank];
    if (static_cast<int>(rank) != outcome.cause.rank && report.failed()) ranks.push_back(std::to_string(rank));
  }
  if (ranks.empty()) return "";
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(ranks) + " stopped because of it\n";
}

/// The loss is the same on all ranks, so none of them failed because of another.
bool is_of_all_ranks(const Outcome& outcome) {
  const auto& error = outcome.reports[static_cast<size_t>(outcome.cause.rank)].error;
  return error && error->kind == ErrorKind::loss;
}

nlohmann::ordered_json attempts_json(const Outcome& outcome) {
  auto list = nlohmann::ordered_json::array();
  for (const FailedAttempt& attempt : outcome.failed_attempts) {
    list.push_back({{"rank", attempt.cause.rank}, {"message", attempt.message}, {"seconds", attempt.seconds}});
  }
  return list;
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

}  // namespace

std::string cause_line(const std::vector<RankReport>& reports, const Cause& cause, const Cluster& cluster) {
  std::string said;
  return describe_cause(reports, cause, cluster, said);
}

std::string failure_report(const Outcome& outcome, const Cluster& cluster, const RunDirectory& directory) {
  if (outcome.cause.kind == Cause::Kind::none) return "";
  if (is_of_all_ranks(outcome)) return cause_line(outcome.reports, outcome.cause, cluster) + "\n";
  const std::string log = directory.rank_file(outcome.cause.rank, "stderr");
  const std::string words = tail_of_file(log, kLastWords);
  const auto& error = outcome.reports[static_cast<size_t>(outcome.cause.rank)].error;
  const bool repeated =
      error && !words.empty() && (error->kind == ErrorKind::spec || words.find(error->what) != std::string::npos);
  const std::string cause =
      repeated ? cause_line(outcome.reports, outcome.cause, cluster) : cause_with_words(outcome, cluster);
  const std::string text = consequences(outcome) + cause + "\n";
  if (words.empty()) return text + "  it wrote nothing to " + log + "\n";
  return text + "  its last words, in " + log + ":\n" + indented(words);
}

std::string outcome_json(const Outcome& outcome) {
  nlohmann::ordered_json json = {{"exit_code", outcome.exit_code}, {"seconds", outcome.seconds}};
  if (outcome.signal != 0) json["signal"] = signal_name(outcome.signal);
  if (outcome.stopped_at_step) json["stopped_at_step"] = *outcome.stopped_at_step;
  if (!outcome.failed_attempts.empty()) json["restarts"] = attempts_json(outcome);
  return json.dump() + "\n";
}

std::string failure_json(const Outcome& outcome, const Cluster& cluster) {
  nlohmann::ordered_json json;
  json["exit_code"] = outcome.exit_code;
  json["first_cause"] = {{"rank", outcome.cause.rank},
                         {"host", cluster.places[static_cast<size_t>(outcome.cause.rank)].host},
                         {"kind", to_string(outcome.cause.kind)},
                         {"message", cause_with_words(outcome, cluster)}};
  if (!outcome.failed_attempts.empty()) json["restarts"] = attempts_json(outcome);
  json["ranks"] = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < outcome.reports.size(); ++rank) {
    const RankReport& report = outcome.reports[rank];
    nlohmann::ordered_json entry = {{"rank", rank}};
    entry["ended"] = report.state == ProcessState::failed_to_start ? report.start_error
                     : report.state == ProcessState::waiting       ? "was not started"
                                                                   : describe(report.end);
    entry["consequence"] = static_cast<int>(rank) != outcome.cause.rank && report.failed() && !is_of_all_ranks(outcome);
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
