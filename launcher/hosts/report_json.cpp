// Converts a RankReport to the form in which an agent sends it to its launcher, and back.
#include "launcher/hosts/report_json.h"

#include <nlohmann/json.hpp>

namespace trainctl::hosts {
namespace {

using Json = nlohmann::json;

}  // namespace

std::string report_json(const RankReport& report, double now) {
  Json json = {{"signaled", report.end.signaled},
               {"code", report.end.code},
               {"left", report.end.left},
               {"age", now - report.time},
               {"out_of_memory", report.out_of_memory},
               {"last_words", report.last_lines},
               {"failed_unasked", report.failed_unasked},
               {"blames_peer", report.blames_peer}};
  if (report.error) {
    RankError error = *report.error;
    error.time = error.time > 0 ? now - error.time : -1;
    json["error"] = to_json(error);
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<RankReport> parse_report(std::string_view text, double now) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  RankReport report;
  report.state = ProcessState::ended;
  try {
    report.end = {-1, json.at("signaled").get<bool>(), json.at("code").get<int>(), json.at("left").get<std::string>()};
    report.time = now - json.at("age").get<double>();
    report.out_of_memory = json.at("out_of_memory").get<bool>();
    report.last_lines = json.at("last_words").get<std::string>();
    report.failed_unasked = json.at("failed_unasked").get<bool>();
    report.blames_peer = json.at("blames_peer").get<bool>();
    if (json.contains("error")) {
      report.error = parse_rank_error(json.at("error").get<std::string>());
      if (!report.error) return std::nullopt;
      report.error->time = report.error->time >= 0 ? now - report.error->time : 0;
    }
  } catch (const Json::exception&) {
    return std::nullopt;
  }
  return report;
}

}  // namespace trainctl::hosts
