// Compares the schema's verdict on a job with the parser's. An editor with the schema shows no error in a valid job,
// and shows the errors of an invalid one, except for the kinds of errors that are listed below.
#include <doctest/doctest.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/overrides.h"
#include "engine/spec/parse.h"
#include "engine/spec/yaml_tree.h"
#include "tests/bad_specs/bad_jobs.h"
#include "tests/spec/json_schema.h"

using namespace trainctl;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

/// Converts a value by the rules of YAML 1.2, which editors follow.
Json scalar(const YamlNode& node) {
  if (node.quoted) return node.text;
  if (node.text == "true" || node.text == "false") return node.text == "true";
  const char *begin = node.text.data(), *end = begin + node.text.size();
  int64_t integer = 0;
  if (const auto read = std::from_chars(begin, end, integer); read.ec == std::errc() && read.ptr == end) return integer;
  double number = 0;
  if (const auto read = std::from_chars(begin, end, number); read.ec == std::errc() && read.ptr == end) return number;
  return node.text;
}

Json to_json(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::null:
      return nullptr;
    case YamlNode::Kind::scalar:
      return scalar(node);
    case YamlNode::Kind::list: {
      Json list = Json::array();
      for (const YamlNode& item : node.items) list.push_back(to_json(item));
      return list;
    }
    case YamlNode::Kind::map:
      break;
  }
  Json map = Json::object();
  for (const YamlNode::Entry& entry : node.entries) map[entry.key] = to_json(entry.value);
  return map;
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<fs::path> jobs_in(const char* folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(std::string(TRAINCTL_SOURCE_DIR) + "/" + folder))
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  REQUIRE_FALSE(files.empty());
  return files;
}

bool schema_accepts(const YamlNode& job) {
  static const SchemaValidator validator{Json::parse(job_schema())};
  return validator.accepts(to_json(job));
}

/// Rules that no schema can express, with the names of the files in tests/bad_specs that break them.
const std::map<std::string, std::vector<std::string>> kBeyondASchema = {
    {"a name that must be, or must not be, that of a layer or module",
     {"fp8_layer_*",
      "samples_input_unknown",
      "samples_transforms_of_unknown",
      "input_itself",
      "input_later",
      "input_unknown",
      "layer_name_inside_another",
      "adapters_field_taken",
      "auxiliary_loss_label",
      "layer_name_twice",
      "loss_input_unknown",
      "module_input_from_outside",
      "module_unknown",
      "module_uses_itself",
      "offload_unknown",
      "print_control_character",
      "print_unknown",
      "recompute_unknown",
      "share_*",
      "stage_config_*",
      "strategy_unknown_layer",
      "mix_share_of_unknown_source",
      "validation_of_unknown_source"}},
    {"values of several fields that do not go together",
     {"attention_share_without_bias",
      "recompute_excludes_only",
      "path_of_a_shell",
      "attention_window_not_causal",
      "audit_servers",
      "batch_micro_batches",
      "rank_micro_batches_*",
      "chunks_of_1f1b",
      "clip_bounds",
      "lstm_dropout_of_one_layer",
      "average_of_an_average",
      "average_with_servers",
      "clip_twice",
      "clipped_twice",
      "lamb_with_servers",
      "local_steps_*",
      "machines_per_rank",
      "replicas_without_local_steps",
      "spot_address*",
      "slurm_time",
      "muon_level_3",
      "collective_*",
      "constant_fraction",
      "context_method_alone",
      "expert_method_alone",
      "cosine_*",
      "curriculum_in_blocks",
      "documents_*",
      "fim_of_bytes",
      "fingerprints_async",
      "fp8_without_precision",
      "fp8_margin_without_delayed",
      "fp8_recipe_in_hybrid",
      "fp16_without_precision",
      "fp16_gradient_precision",
      "fp16_local_steps",
      "fp16_servers",
      "skip_with_auxiliary_losses",
      "generate_*",
      "gradient_precision",
      "group_of_betas",
      "histograms_async",
      "hosts_*",
      "hybrid_batch",
      "interleaved_*",
      "loss_inputs",
      "interpolate_size",
      "noise_with_classes",
      "shapes_of_two",
      "loss_label_dtype*",
      "loss_sum_ignores",
      "soft_labels_ignore_index",
      "soft_labels_metric",
      "metric_of_numbers",
      "metric_twice",
      "metric_without_loss",
      "missing_classes",
      "mix_ramps_overlap",
      "mix_shuffle",
      "mix_source_documents",
      "mix_without_shares",
      "mnist_two_folders",
      "moe_balance",
      "moe_expert_mode",
      "nesterov_without_momentum",
      "packing_without_pack",
      "ranks_stages",
      "rms_norm_offset_without_scale",
      "rotary_scaling_*",
      "schedule_milestones",
      "schedule_piecewise",
      "schedule_plateau",
      "schedule_segments",
      "schedule_wsd",
      "spike_*",
      "state_type_average",
      "servers_async",
      "servers_on_gpus",
      "servers_optimizer_shard",
      "servers_stages",
      "servers_tables",
      "fingerprints_tables",
      "histograms_tables",
      "shuffle_block_unshuffled",
      "sizes_*",
      "skip_with_servers",
      "stage_number*",
      "stand_alone_*",
      "store_of_photos",
      "tokens_loss_of_numbers",
      "track_foreign_field",
      "track_twice",
      "validation_of_training_*",
      "validation_of_mix_without_samples",
      "samples_*_fields",
      "samples_delimiter",
      "samples_npy_two_arrays",
      "samples_split_above_one",
      "samples_split_word",
      "samples_weights_count",
      "samples_without_label"}},
    {"a value that only the type of the layer can judge",
     {"pad_counts", "reshape_two_unknowns", "rotary_odd_dim", "transpose_not_a_permutation"}},
    {"a product or a number of things", {"module_too_many_layers", "range_huge_batch"}},
    {"the size of a number with a unit", {"range_bytes", "range_seconds"}},
    {"what an expression is worth, and what its names are",
     {"vars_unknown", "vars_division_by_zero", "vars_later", "vars_itself", "vars_override_*", "variable_of_hydra",
      "expression_*", "filter_syntax", "if_is_a_number", "if_all_left_out", "module_body_unknown_name",
      "module_unused_syntax"}},
    {"the arguments and inputs of a module at its use",
     {"module_argument_*", "module_with_of_plain", "module_inputs_too_few", "index_without_repeat"}},
};

std::string kind_beyond_a_schema(const std::string& name) {
  for (const auto& [kind, globs] : kBeyondASchema)
    for (const std::string& glob : globs)
      if (glob_match(glob, name)) return kind;
  return "";
}

}  // namespace

TEST_CASE("the schema accepts every job that the parser accepts") {
  int jobs = 0;
  for (const char* folder : {"tests/jobs", "configs", "templates", "tests/bad_specs/plan"}) {
    for (const fs::path& file : jobs_in(folder)) {
      INFO(file.string());
      const YamlNode job = read_yaml(text_of(file), file.string());
      CHECK(schema_accepts(job));
      ++jobs;
    }
  }
  CHECK(jobs > 60);
}

TEST_CASE("the schema refuses every bad job, except for errors that a schema cannot express") {
  std::map<std::string, int> beyond;
  int refused = 0;
  for (const fs::path& file : jobs_in("tests/bad_specs")) {
    const std::string name = file.stem().string();
    INFO(name);
    if (!read_bad_job(file).overrides.empty()) continue;  // an editor sees no command line
    YamlNode job;
    try {
      job = read_yaml(text_of(file), file.string());
    } catch (const SpecError&) {
      continue;  // an editor's reader of YAML refuses it
    }
    const std::string kind = kind_beyond_a_schema(name);
    CHECK(schema_accepts(job) == !kind.empty());
    kind.empty() ? ++refused : ++beyond[kind];
  }
  CHECK(refused > 60);
  for (const auto& [kind, count] : beyond) MESSAGE(count << " bad jobs: " << kind);
}
