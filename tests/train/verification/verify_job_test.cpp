// Tests that sound jobs pass the verification, and that each planted fault is found.
#include "engine/train/verification/verify_job.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/train/verification/loss_slope.h"
#include "tests/jobs/jobs.h"
#include "tests/train/verification/planted_faults.h"

using namespace trainctl;

namespace {

std::string failures(const Certificate& certificate) {
  std::string text;
  for (const VerifiedCheck& check : certificate.checks) {
    if (check.status != CheckStatus::failed) continue;
    text += check.name + ": " + check.summary + "\n";
    for (const std::string& finding : check.findings) text += "  " + finding + "\n";
  }
  return text;
}

const VerifiedCheck* find_check(const Certificate& certificate, const std::string& name) {
  const auto found = std::find_if(certificate.checks.begin(), certificate.checks.end(),
                                  [&](const VerifiedCheck& check) { return check.name == name; });
  return found == certificate.checks.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("every planted fault is found, and without it the same job is verified") {
  const std::vector<FaultCase> cases = fault_cases();
  CHECK(cases.size() >= 20);
  for (const FaultCase& each : cases) {
    CAPTURE(each.name);
    VerifyOptions options{.slope_seconds = 3, .timeout_seconds = 8};
    options.fault = each.fault;
    const Certificate certificate = verify_job(job_spec(each.job, each.overrides), options);
    CAPTURE(failures(certificate));
    CHECK_FALSE(certificate.passed());
    const bool is_named = std::any_of(each.found_by.begin(), each.found_by.end(), [&](const std::string& of) {
      const VerifiedCheck* check = find_check(certificate, of);
      return check != nullptr && check->status == CheckStatus::failed;
    });
    CHECK(is_named);
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> sound;
  for (const FaultCase& each : cases)
    if (const std::pair<std::string, std::vector<std::string>> job{each.job, each.overrides};
        std::find(sound.begin(), sound.end(), job) == sound.end())
      sound.push_back(job);
  for (const auto& [job, overrides] : sound) {
    CAPTURE(job);
    const Certificate certificate = verify_job(job_spec(job, overrides));
    CAPTURE(failures(certificate));
    CHECK(certificate.passed());
    // The loss of some networks has a corner at the place at which its slope would be measured.
    for (const VerifiedCheck& check : certificate.checks)
      if (check.status == CheckStatus::skipped) CHECK(check.name == "slope");
  }
}

TEST_CASE("a certificate is read back as it was written") {
  const Certificate written = verify_job(job_spec("mlp", {"launch.ranks=2", "parallel.mode=data_parallel"}));
  const Certificate read = certificate_of(to_json(written).dump(), "certificate.json");
  CHECK(to_json(read) == to_json(written));
  CHECK_THROWS_WITH(certificate_of("{}", "certificate.json"),
                    doctest::Contains("certificate.json is not a certificate"));
}

TEST_CASE("the digest of a job depends on its plan, and not on the length of its training or its logs") {
  const std::string digest = job_digest(job_spec("mlp"));
  CHECK(job_digest(job_spec("mlp", {"train.epochs=3", "launch.log_dir=elsewhere", "train.log_every=5"})) == digest);
  CHECK(job_digest(job_spec("mlp", {"launch.ranks=2", "parallel.mode=data_parallel"})) != digest);
  CHECK(job_digest(job_spec("mlp", {"seed=4"})) != digest);
}

TEST_CASE("a slope that changes with the length of the step does not blame the gradient, and one that stays does") {
  // The loss of a weight of 0, by the slope between -w and w. `gradient` is what the job computed.
  const auto slope_with = [](float gradient, double (*slope)(double length)) {
    const LossAt loss_at = [&](const MoveWeights& move) {
      std::vector<float> weight = {0};
      move("w", weight);
      const double w = weight[0];
      return static_cast<float>(2.0 + w * slope(std::abs(w)));
    };
    return loss_slopes({{"w", {gradient}}}, 2.0, loss_at, 3e-4, 10).back();
  };
  // Units of relu turn on and off at all distances, as after layers whose outputs hardly depend on the sample.
  const LossSlope corners = slope_with(1, [](double length) { return 1 - 0.02 * std::log10(1 + length / 1e-6); });
  CHECK(corners.difference() > 0.05);
  CHECK(corners.is_uncertain());
  for (const double wrong : {1.002, 1.05}) {
    CAPTURE(wrong);
    const LossSlope smooth =
        slope_with(static_cast<float>(wrong), [](double length) { return 1 + 0.3 * length * length; });
    CHECK(smooth.difference() == doctest::Approx(wrong - 1).epsilon(0.2));
    CHECK_FALSE(smooth.is_uncertain());
  }
}
