// The data that a page shows about a run, read from its folder, or about a job that was only planned.
#include "cli/report/run_data.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/commands/checkpoint/facts.h"
#include "cli/commands/checkpoint/find_checkpoint.h"
#include "cli/render/move_rows.h"
#include "cli/render/plan_report.h"
#include "cli/report/metrics_data.h"
#include "cli/run/launch/run_end.h"
#include "cli/run/launch/validation_results.h"
#include "cli/run/saves/checkpoints.h"
#include "cli/run/worker/rank_output.h"
#include "cli/text/base64.h"
#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/spec/job_fields.h"
#include "engine/spec/parse.h"
#include "engine/train/verification/run_difference.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

/// Reads a JSON object from a file; null if there is none.
Json read_object(const std::string& path) {
  std::ifstream file(path);
  if (!file) return nullptr;
  Json json = Json::parse(file, nullptr, false);
  return json.is_object() ? json : Json(nullptr);
}

std::string read_whole_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// Drops fields meant for tools: every call of every rank, factors, groups.
Json shown_of(Json plan) {
  plan.erase("calls");
  if (!plan.contains("layers")) return plan;  // a job that runs a program
  for (Json& layer : plan["layers"]) layer.erase("factors");
  for (Json& move : plan["redistributions"]) move.erase("groups");
  return plan;
}

/// {"layers": [{"depth", "times", "name", "rows": indices in the plan's layers}, …]: as `trainctl plan` folds them,
///  "moves": [[stage, pass, kind, what, times, bytes, groups], …]: redistributions and transfers, folded likewise}
Json folds_of(const Json& plan) {
  Json layers = Json::array();
  for (const FoldLine& line : folded_layers(plan))
    layers.push_back({{"depth", line.depth}, {"times", line.times}, {"name", line.name}, {"rows", line.rows}});
  return {{"layers", std::move(layers)}, {"moves", folded_moves(plan)}};
}

void add_plan(Json plan, Json& data) {
  if (plan.is_null()) return;
  if (plan.contains("layers")) data["folds"] = folds_of(plan);
  data["plan"] = shown_of(std::move(plan));
}

void add_end(const RunDirectory& run, Json& data) {
  const std::optional<RunEnd> end = read_run_end(run);
  if (!end) return;
  data["ending"] = end->ending;
  data["seconds"] = end->seconds;
  data["exit_code"] = end->exit_code;
  if (end->result.step > 0) {
    data["step"] = end->result.step;
    data["steps"] = end->result.steps;
    if (end->result.skipped_steps > 0) data["skipped_steps"] = end->result.skipped_steps;
  }
  const Json outcome = read_object(run.file("outcome.json"));
  if (outcome.contains("restarts")) data["restarts"] = outcome["restarts"];
  if (!end->failure.empty()) data["failure"] = end->failure;
  if (const Json error = read_object(run.file("error.json")); error.contains("first_cause"))
    data["cause"] = error["first_cause"];
}

bool is_below(const std::string& path, const std::string& folder) {
  std::error_code error;
  const std::string inner = std::filesystem::weakly_canonical(path, error).string(),
                    outer = std::filesystem::weakly_canonical(folder, error).string();
  return !error && inner.starts_with(outer + "/");
}

/// Replaces the names of images in the evaluation's folder by the images themselves.
void embed_images(const std::string& folder, Json& evaluation) {
  if (!evaluation.contains("worst") || !evaluation["worst"].is_array()) return;
  for (Json& sample : evaluation["worst"]) {
    if (!sample.is_object() || !sample.contains("image")) continue;
    const std::string name = field_or(sample, "image", "");
    const std::string png = name.find('/') == std::string::npos ? read_whole_text(folder + "/" + name) : "";
    if (png.empty())
      sample.erase("image");
    else
      sample["image"] = "data:image/png;base64," + base64_of(png);
  }
}

/// The newest evaluation of a checkpoint of this run; null if there is none.
Json newest_evaluation(const RunDirectory& run) {
  const std::string folder = std::filesystem::path(run.path()).parent_path().string() + "/evaluations";
  std::vector<int> numbers = list_runs(folder);
  std::reverse(numbers.begin(), numbers.end());
  for (const int number : numbers) {
    const RunDirectory directory(folder, number);
    Json evaluation = read_object(directory.file("evaluation.json"));
    if (evaluation.is_null() || !is_below(field_or(evaluation, "checkpoint", ""), checkpoint_folder(run))) continue;
    const Json manifest = read_object(field_or(evaluation, "checkpoint", "") + "/" + std::string(kManifestName));
    if (manifest.is_object() && field_or(manifest, "run", run.run()) != run.run()) continue;
    evaluation["number"] = number;
    embed_images(directory.path(), evaluation);
    return evaluation;
  }
  return nullptr;
}

/// The checkpoints of this run only: several runs may share a folder of checkpoints.
Json checkpoints_of(const RunDirectory& run) {
  Json rows = Json::array();
  std::vector<CheckpointEntry> entries;
  try {
    const CheckpointPlace place = find_checkpoints(run.path(), "");
    if (!place.folder.empty()) entries = CheckpointDirectory(place.folder).list();
  } catch (const SpecError&) {  // the job saves no checkpoints
  } catch (const EnvError&) {   // their disk is not available
  }
  for (const CheckpointEntry& entry : entries) {
    if (!entry.complete() || entry.manifest.run != run.run()) continue;
    Json row = {{"step", entry.step}, {"state", state_word(entry)}, {"folder", folder_name(entry.path)}};
    put_facts(row, entry.manifest);
    rows.push_back(std::move(row));
  }
  std::sort(rows.begin(), rows.end(), [](const Json& a, const Json& b) { return a["step"] < b["step"]; });
  return rows;
}

/// Invalid UTF-8 becomes U+FFFD, as when the page is written.
/// A prediction for a machine whose speed is a guess says nothing about a run that was measured.
void forget_guess(Json& plan) {
  if (!plan.is_object() || !plan.contains("estimate")) return;
  if (plan["estimate"].value("source", "").starts_with("a guess")) plan.erase("estimate");
}

std::string name_of(const Json& plan) {
  const auto name = plan.find("job");
  return name != plan.end() && name->is_string() ? name->get<std::string>() : "?";
}

}  // namespace

Json run_data(const RunDirectory& run) {
  const std::string plan_file = run.file("plan.json");
  Json plan = read_object(plan_file);
  Json data = {{"name", plan.is_null() ? "?" : name_of(plan)},
               {"label", "run " + std::to_string(run.run())},
               {"state", to_string(state_of(run))},
               {"path", run.path()}};
  if (const int64_t started = start_ns(run); started > 0) data["started"] = static_cast<double>(started) / 1e9;
  add_end(run, data);
  try {
    forget_guess(plan);
    add_plan(std::move(plan), data);
  } catch (const Json::exception& error) {
    throw EnvError(plan_file + " is damaged (" + error.what() + "); delete it to see the rest of the report");
  }
  data["job"] = hide_env(read_whole_text(run.file("job.yaml")));
  for (const char* part : {"machine", "profile"})
    if (Json json = read_object(run.file(std::string(part) + ".json")); !json.is_null()) data[part] = std::move(json);
  data["metrics"] = metrics_data(run.file("metrics.jsonl"));
  if (auto validated = data["metrics"].find("validated"); validated != data["metrics"].end()) {
    data["validation"] = std::move(*validated);
    data["metrics"].erase("validated");
  }
  if (Json evaluation = newest_evaluation(run); !evaluation.is_null()) data["evaluation"] = std::move(evaluation);
  if (Json rows = checkpoints_of(run); !rows.empty()) data["checkpoints"] = std::move(rows);
  return data;
}

Json planned_data(Json plan, const std::string& job) {
  const std::string name = name_of(plan);
  Json data = {{"name", name}, {"label", "plan"}, {"state", "planned"}};
  add_plan(std::move(plan), data);
  data["job"] = hide_env(job);
  return data;
}

namespace {

/// Returns where two runs with fingerprints diverge; null if they have none. It is a map of tensors and steps, with a
/// row for each tensor in the order of the network.
Json divergence_json(const std::vector<Json>& runs) {
  if (runs.size() != 2) return nullptr;
  const std::string a = field_or(runs[0], "path", ""), b = field_or(runs[1], "path", "");
  for (const std::string& path : {a, b})
    if (path.empty() || !std::filesystem::exists(path + "/" + kFingerprintsFile)) return nullptr;
  try {
    const RunDifference found = compare_run_folders(a, b, 0);
    Json json = to_json(found);
    json.erase("tensors");
    std::map<int64_t, size_t> columns;
    for (const int64_t step : found.steps) columns.emplace(step, columns.size());
    std::vector<Json> rows;
    std::map<std::string, size_t> places;
    for (const TensorDistance& each : found.distances) {
      const auto [place, added] = places.emplace(each.kind + " " + each.name, rows.size());
      if (added) rows.push_back({{"tensor", place->first}, {"distances", std::vector<Json>(columns.size())}});
      // -1: the distance is not a number.
      rows[place->second]["distances"][columns.at(each.step)] = !each.differs ? Json(0)
                                                                : std::isfinite(each.distance)
                                                                    ? Json(std::max(each.distance, 1e-12))
                                                                    : Json(-1);
    }
    json["rows"] = std::move(rows);
    return json;
  } catch (const EnvError&) {  // damaged
    return nullptr;
  }
}

}  // namespace

Json page_data(std::vector<Json> runs, const std::string& version) {
  std::vector<std::vector<std::pair<std::string, std::string>>> jobs;
  for (const Json& run : runs) {
    try {
      jobs.push_back(job_fields(run["job"].get<std::string>(), "job.yaml"));
    } catch (const SpecError&) {  // no job.yaml, or a damaged one
      jobs.emplace_back();
    }
  }
  Json divergence = divergence_json(runs);
  Json data = {{"trainctl", version}, {"written", std::time(nullptr)}, {"runs", std::move(runs)}};
  data["differences"] = differing_fields(jobs);
  if (!divergence.is_null()) data["divergence"] = std::move(divergence);
  return data;
}

}  // namespace trainctl
