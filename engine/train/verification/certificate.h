// The result of verifying a job: what was checked, how far results may differ, and how far they did.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/spec/job_spec.h"

namespace trainctl {

enum class CheckStatus : uint8_t { passed, failed, skipped };
std::string_view to_string(CheckStatus status);

struct VerifiedCheck {
  std::string name;  ///< "proof", "losses", "gradients", …
  std::string rule;  ///< the property that a passed check shows, as a sentence
  CheckStatus status = CheckStatus::passed;
  std::string summary;  ///< "largest relative difference 2.1e-07, at step 3"; for a skipped check the reason
  std::optional<double> largest, tolerance;  ///< relative differences
  std::vector<std::string> findings;         ///< the first faults
};

struct Certificate {
  std::string name;                  ///< name of the job
  std::string digest;                ///< job_digest
  std::string trainctl;              ///< version
  std::string written;               ///< "2026-11-29 12:30:00 UTC"
  std::string device = "cpu";        ///< where the numbers were computed
  int ranks = 1;                     ///< ranks of the job
  int64_t steps = 0;                 ///< steps of each run
  double seconds = 0;                ///< that verification took
  std::vector<std::string> changes;  ///< how the job was reduced; empty: it ran in full size
  std::vector<VerifiedCheck> checks;

  /// No check has failed, and the proof is among those that passed.
  bool passed() const;
  size_t count(CheckStatus status) const;
};

/// Digest of everything in the job that its plan and its numbers depend on: neither the length of the training, nor
/// what it logs, saves and validates, nor where its logs are.
std::string job_digest(JobSpec spec);

nlohmann::ordered_json to_json(const Certificate& certificate);
/// Throws EnvError if the text is not a certificate; `path` is where it was read.
Certificate certificate_of(std::string_view json, const std::string& path);

}  // namespace trainctl
