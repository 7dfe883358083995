// Rules between the fields of a job: one function per rule, one source file per section of the job file. A rule reports
// an error and its remedy; it does nothing if a field that it reads already has an error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/spec/problems.h"
#include "engine/spec/replicas.h"

namespace trainctl::rules {

/// A job that is checked, and the errors found so far.
struct RuleContext {
  const JobSpec& job;
  Problems& problems;
  /// For a source of a mixture, which is then job.dataset: its path in the job file, e.g. "dataset.sources.code".
  std::string source = {};

  /// Reports an error at the field `path`.
  void wrong(const std::string& path, const std::string& message, const std::string& hint = {});
  /// True if none of these fields, and none inside them, has an error.
  bool fine(std::initializer_list<const char*> paths) const;
  /// Returns the path in the job file: "dataset.x" is "dataset.sources.code.x" for a source of a mixture.
  std::string in_job(const std::string& path) const;
  /// The number of ranks; with parallel.local_steps, the number of ranks of one replica.
  int ranks() const { return job.launch.ranks / std::max(1, num_replicas(job)); }
  int ranks_per_stage() const { return ranks() / job.parallel.stages; }
};

// launch.cpp
void ranks_fit_on_the_hosts(RuleContext& r);
void elastic_runs_have_hosts(RuleContext& r);
void cluster_manager_assigns_the_hosts(RuleContext& r);
void resource_requests_are_well_formed(RuleContext& r);
void volumes_have_a_path(RuleContext& r);
void machines_fit_the_ranks(RuleContext& r);
void spot_notices_have_an_address(RuleContext& r);
void trackers_differ(RuleContext& r);

// paths.cpp
void paths_use_no_shell_syntax(RuleContext& r);

// parallel.cpp
void stand_alone_is_one_rank(RuleContext& r);
void stages_divide_ranks(RuleContext& r);
void stage_config_names_existing_stages(RuleContext& r);
void chunks_are_interleaved(RuleContext& r);
void parallel_sizes_multiply_to_the_ranks(RuleContext& r);
void micro_batches_divide_the_batch(RuleContext& r);
void ranks_divide_the_micro_batches(RuleContext& r);
void expert_parallelism_needs_strategies(RuleContext& r);
void collectives_only_in_hybrid(RuleContext& r);
void groups_cover_the_stage(RuleContext& r);

// replicas.cpp
void replicas_divide_the_ranks(RuleContext& r);

// parameter_server.cpp
void parameter_servers_suit_the_job(RuleContext& r);

// adapters.cpp
void saved_adapters_need_weights(RuleContext& r);
void packed_weights_are_frozen(RuleContext& r);
void dora_starts_from_weights(RuleContext& r);
void several_adapters_have_a_field(RuleContext& r);

// dataset.cpp: the job's data set, or one source of a mixture
void blocks_are_shuffled(RuleContext& r);
void labels_suit_the_loss(RuleContext& r);
void object_stores_suit_the_type(RuleContext& r);
void dataset_is_one_folder(RuleContext& r);
void sample_fields_suit_the_type(RuleContext& r);
void random_integers_have_classes(RuleContext& r);
void shapes_are_images(RuleContext& r);
void constant_integers_are_whole(RuleContext& r);
void batches_have_a_bounded_size(RuleContext& r);

// documents.cpp: the job's data set, or one source of a mixture
void preference_data_suits_the_job(RuleContext& r);
void documents_suit_the_job(RuleContext& r);
void filters_are_expressions(RuleContext& r);
void document_fields_agree(RuleContext& r);

// mixture.cpp
void mixture_is_consistent(RuleContext& r);

// validation.cpp
void metrics_have_classes(RuleContext& r);
void validation_data_suits_the_dataset(RuleContext& r);
void validation_can_generate_texts(RuleContext& r);
void validation_has_its_own_samples(RuleContext& r);
void metrics_of_validation_exist(RuleContext& r);

// training.cpp
void bf16_gradients_need_bf16_weights(RuleContext& r);
void audits_replay_steps(RuleContext& r);
void saves_are_consistent(RuleContext& r);
void gradients_are_clipped_in_one_way(RuleContext& r);
void weight_averages_suit_the_mode(RuleContext& r);
void whole_parameters_are_not_sharded(RuleContext& r);
void summed_losses_count_all_labels(RuleContext& r);
void skipped_steps_suit_the_mode(RuleContext& r);
void fields_of_types_agree(RuleContext& r);
void fp8_recipe_suits_the_job(RuleContext& r);

// losses.cpp
void auxiliary_losses_add_up(RuleContext& r);

// updates.cpp
void learning_rate_schedule_is_consistent(RuleContext& r);
void plateau_follows_a_validation(RuleContext& r);
void spike_limit_is_consistent(RuleContext& r);
void state_type_suits_the_optimizer(RuleContext& r);

// Shared by several files

/// Reports an error unless validations report the metric; with `of_validation` false, unless the job has it.
void metric_is_known(RuleContext& r, const std::string& path, const std::string& name, bool of_validation);

std::string number(int64_t value);
/// Returns the twelve smallest divisors as a list: "1, 2, 4, 8".
std::string divisors(int64_t value);
/// True if `path` of the data set is one folder, in which the type or `fields` determine the names of the files.
bool is_one_folder(const DatasetSpec& set);
bool has_source_called(const DatasetSpec& mix, const std::string& name);
std::vector<std::string> source_names(const DatasetSpec& mix);

}  // namespace trainctl::rules
