// Facts about a checkpoint that the commands report.
#include "cli/commands/checkpoint/facts.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/measures.h"

namespace trainctl {
namespace {

nlohmann::ordered_json number(double value) {
  if (std::isfinite(value)) return value;
  return not_finite_name(value);
}

}  // namespace

std::string_view state_word(const CheckpointEntry& entry) {
  if (entry.complete()) return entry.verified ? "verified" : "complete";
  if (entry.being_written) return "being written";
  return entry.unfinished ? "half-written" : "damaged";
}

std::string epoch_text(const Manifest& manifest) {
  if (manifest.epoch_step == 0) return std::to_string(manifest.epoch - 1);
  return fmt::format("{} + {}", manifest.epoch - 1, manifest.epoch_step);
}

int64_t total_bytes(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const StoredFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

std::optional<double> epoch_loss(const Manifest& manifest) {
  if (manifest.epoch_step == 0) return {};
  return manifest.epoch_loss_sum / static_cast<double>(manifest.epoch_step);
}

std::string folder_name(const std::string& checkpoint) { return checkpoint.substr(checkpoint.rfind('/') + 1); }

void put_facts(nlohmann::ordered_json& json, const Manifest& m) {
  json["name"] = m.name;
  json["run"] = m.run;
  json["attempt"] = m.attempt;
  json["step"] = m.step;
  json["epoch"] = m.epoch;
  json["epoch_step"] = m.epoch_step;
  json["samples"] = m.samples;
  json["seed"] = m.seed;
  json["written"] = m.written;
  json["trainctl"] = m.trainctl;
  json["bytes"] = total_bytes(m);
  if (m.base)
    json["base"] = {{"from", m.base->from}, {"fingerprint", m.base->fingerprint}, {"tensors", m.base->tensors.size()}};
  if (const auto loss = epoch_loss(m)) json["epoch_loss"] = number(*loss);
  for (const auto& [name, value] : m.metrics) json["metrics"][name] = number(value);
}

}  // namespace trainctl
