// A failed run in words and as JSON.
#include "launcher/failure_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/text.h"
#include "launcher/log_reader.h"

namespace trainctl {
namespace {

constexpr int kLastWords = 20;

std::string rank_name(int rank, const Cluster& cluster) {
  return "rank " + std::to_string(rank) + " (" + cluster.places[static_cast<size_t>(rank)].host + ")";
}

const RankReport& report_of(const Outcome& outcome, int rank) { return outcome.reports[static_cast<size_t>(rank)]; }

/// "at step 412, all_reduce grad.0", from its own words or from what was seen of it.
std::string where(const RankReport& report) {
  if (report.error && report.error->step > 0) {
    std::string text = " at step " + std::to_string(report.error->step);
    if (!report.error->instruction.empty()) text += ", in " + report.error->instruction;
    return text;
  }
  return report.doing.empty() ? "" : " at " + report.doing;
}

/// In one line. `with_words`: also what the rank said of it.
std::string cause_line(const Outcome& outcome, const Cluster& cluster, bool with_words) {
  const Cause& cause = outcome.cause;
  const RankReport& report = report_of(outcome, cause.rank);
  const std::string name = rank_name(cause.rank, cluster);
  switch (cause.kind) {
    case Cause::Kind::none:
      return "";
    case Cause::Kind::ended_early:
      return name + " ended while rank " + std::to_string(cause.complaining_rank) + " still waited for it" +
             where(report) + ": " + report_of(outcome, cause.complaining_rank).error->what;
    case Cause::Kind::silent:
      return name + " stopped answering" + where(report) + ": " +
             report_of(outcome, cause.complaining_rank).error->what;
    case Cause::Kind::failed:
      break;
  }
  if (report.state == ProcessState::failed_to_start) return name + " could not be started: " + report.start_error;
  if (report.out_of_memory) return name + " was killed by the kernel: the host ran out of memory" + where(report);
  if (!report.error) return name + " " + describe(report.end) + where(report);
  const bool bug = report.error->kind == ErrorKind::bug;
  return name + (bug ? " met a bug of trainctl" : " failed") + where(report) +
         (with_words ? ": " + report.error->what : "");
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

std::string failure_report(const Outcome& outcome, const Cluster& cluster, const RunDirectory& directory) {
  if (outcome.cause.kind == Cause::Kind::none) return "";
  const std::string log = directory.rank_file(outcome.cause.rank, "stderr");
  const std::string words = tail_of_file(log, kLastWords);
  const auto& error = report_of(outcome, outcome.cause.rank).error;
  const bool repeated =
      error && !words.empty() && (error->kind == ErrorKind::spec || words.find(error->what) != std::string::npos);
  const std::string text = consequences(outcome) + cause_line(outcome, cluster, !repeated) + "\n";
  if (words.empty()) return text + "  it wrote nothing to " + log + "\n";
  return text + "  its last words, in " + log + ":\n" + indented(words);
}

std::string outcome_json(const Outcome& outcome) {
  return nlohmann::ordered_json{{"exit_code", outcome.exit_code}, {"seconds", outcome.seconds}}.dump() + "\n";
}

std::string failure_json(const Outcome& outcome, const Cluster& cluster) {
  nlohmann::ordered_json json;
  json["exit_code"] = outcome.exit_code;
  json["first_cause"] = {{"rank", outcome.cause.rank},
                         {"host", cluster.places[static_cast<size_t>(outcome.cause.rank)].host},
                         {"message", cause_line(outcome, cluster, true)}};
  json["ranks"] = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < outcome.reports.size(); ++rank) {
    const RankReport& report = outcome.reports[rank];
    nlohmann::ordered_json entry = {{"rank", rank}};
    entry["ended"] = report.state == ProcessState::failed_to_start ? report.start_error
                     : report.state == ProcessState::waiting       ? "was not started"
                                                                   : describe(report.end);
    entry["consequence"] = static_cast<int>(rank) != outcome.cause.rank && report.failed();
    entry["time"] = report.time;
    if (!report.doing.empty()) entry["doing"] = report.doing;
    if (report.error) entry["error"] = nlohmann::ordered_json::parse(to_json(*report.error));
    json["ranks"].push_back(std::move(entry));
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace trainctl
