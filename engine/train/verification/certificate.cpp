// The result of verifying a job: what was checked, how far results may differ, and how far they did.
#include "engine/train/verification/certificate.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "engine/train/files/digest.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

Json check_json(const VerifiedCheck& check) {
  Json json = {
      {"name", check.name}, {"rule", check.rule}, {"status", to_string(check.status)}, {"summary", check.summary}};
  if (check.largest) json["largest"] = *check.largest;
  if (check.tolerance) json["tolerance"] = *check.tolerance;
  if (!check.findings.empty()) json["findings"] = check.findings;
  return json;
}

VerifiedCheck check_of(const Json& json) {
  VerifiedCheck check;
  check.name = json.at("name").get<std::string>();
  check.rule = json.at("rule").get<std::string>();
  check.summary = json.at("summary").get<std::string>();
  const auto status = json.at("status").get<std::string>();
  check.status = CheckStatus::failed;
  for (const CheckStatus each : {CheckStatus::passed, CheckStatus::skipped})
    if (status == to_string(each)) check.status = each;
  if (json.contains("largest") && json["largest"].is_number()) check.largest = json["largest"].get<double>();
  if (json.contains("tolerance")) check.tolerance = json["tolerance"].get<double>();
  if (json.contains("findings")) check.findings = json["findings"].get<std::vector<std::string>>();
  return check;
}

}  // namespace

std::string_view to_string(CheckStatus status) {
  switch (status) {
    case CheckStatus::passed:
      return "passed";
    case CheckStatus::failed:
      return "failed";
    case CheckStatus::skipped:
      return "skipped";
  }
  return "?";
}

size_t Certificate::count(CheckStatus status) const {
  return static_cast<size_t>(
      std::count_if(checks.begin(), checks.end(), [&](const VerifiedCheck& check) { return check.status == status; }));
}

bool Certificate::passed() const {
  return !checks.empty() && checks.front().status == CheckStatus::passed && count(CheckStatus::failed) == 0;
}

std::string job_digest(JobSpec spec) {
  const LaunchSpec launch;
  spec.launch.log_dir = launch.log_dir;
  spec.launch.device = launch.device;
  spec.launch.timeout_seconds = launch.timeout_seconds;
  spec.launch.grace_seconds = launch.grace_seconds;
  spec.launch.max_restarts = launch.max_restarts;
  spec.launch.log_size = launch.log_size;
  spec.launch.log_files = launch.log_files;
  const TrainSpec train;
  spec.train.epochs = train.epochs;
  spec.train.steps = train.steps;
  spec.train.log_every = train.log_every;
  spec.train.sink_steps = train.sink_steps;
  spec.train.histograms = spec.train.fingerprints = spec.train.audit_every = 0;
  spec.train.checkpoint.reset();
  spec.train.stop_when.reset();
  spec.validation.reset();
  spec.print = {};
  spec.env.clear();
  return digest_of(to_yaml(spec));
}

Json to_json(const Certificate& certificate) {
  Json checks = Json::array();
  for (const VerifiedCheck& check : certificate.checks) checks.push_back(check_json(check));
  return {{"format", "trainctl certificate 1"}, {"name", certificate.name},         {"passed", certificate.passed()},
          {"digest", certificate.digest},       {"trainctl", certificate.trainctl}, {"written", certificate.written},
          {"device", certificate.device},       {"ranks", certificate.ranks},       {"steps", certificate.steps},
          {"seconds", certificate.seconds},     {"changes", certificate.changes},   {"checks", std::move(checks)}};
}

Certificate certificate_of(std::string_view text, const std::string& path) {
  try {
    const Json json = Json::parse(text);
    if (json.at("format") != "trainctl certificate 1")
      throw EnvError(path + " is not a certificate of trainctl verify");
    Certificate certificate;
    certificate.name = json.at("name").get<std::string>();
    certificate.digest = json.at("digest").get<std::string>();
    certificate.trainctl = json.at("trainctl").get<std::string>();
    certificate.written = json.at("written").get<std::string>();
    certificate.device = json.at("device").get<std::string>();
    certificate.ranks = json.at("ranks").get<int>();
    certificate.steps = json.at("steps").get<int64_t>();
    certificate.seconds = json.at("seconds").get<double>();
    certificate.changes = json.at("changes").get<std::vector<std::string>>();
    for (const Json& check : json.at("checks")) certificate.checks.push_back(check_of(check));
    return certificate;
  } catch (const Json::exception& error) {
    throw EnvError(path + " is not a certificate of trainctl verify: " + error.what());
  }
}

}  // namespace trainctl
