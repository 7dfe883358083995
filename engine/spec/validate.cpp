// Applies the rules between fields. Their order matters: a rule that reports a field silences later rules about it.
#include "engine/spec/validate.h"

#include "engine/spec/rules/rules.h"

namespace trainctl {
namespace rules {
namespace {

/// Applies the rules for one data set: that of the job, or one source of a mixture.
void validate_dataset(RuleContext& r) {
  blocks_are_shuffled(r);
  labels_suit_the_loss(r);
  documents_suit_the_job(r);
  document_fields_agree(r);
  filters_are_expressions(r);
  preference_data_suits_the_job(r);
  object_stores_suit_the_type(r);
  dataset_is_one_folder(r);
  sample_fields_suit_the_type(r);
  random_integers_have_classes(r);
  shapes_are_images(r);
  constant_integers_are_whole(r);
  batches_have_a_bounded_size(r);
}

void validate_sources(const JobSpec& job, Problems& problems) {
  JobSpec with_source = job;
  for (const DatasetSpec& source : job.dataset.sources) {
    with_source.dataset = source;
    with_source.dataset.batch = job.dataset.batch;
    RuleContext r{with_source, problems, "dataset.sources." + source.name};
    validate_dataset(r);
  }
}

/// Applies the rules for jobs that have a network instead of a command.
void validate_network_job(RuleContext& r) {
  stand_alone_is_one_rank(r);
  bf16_gradients_need_bf16_weights(r);
  audits_replay_steps(r);
  saved_adapters_need_weights(r);
  packed_weights_are_frozen(r);
  dora_starts_from_weights(r);
  several_adapters_have_a_field(r);
  parameter_servers_suit_the_job(r);
  replicas_divide_the_ranks(r);
  stages_divide_ranks(r);
  stage_config_names_existing_stages(r);
  chunks_are_interleaved(r);
  parallel_sizes_multiply_to_the_ranks(r);
  if (r.job.dataset.is_mix()) {
    mixture_is_consistent(r);
    validate_sources(r.job, r.problems);
  } else {
    validate_dataset(r);
  }
  ranks_divide_the_micro_batches(r);
  micro_batches_divide_the_batch(r);
  expert_parallelism_needs_strategies(r);
  collectives_only_in_hybrid(r);
  groups_cover_the_stage(r);
  metrics_have_classes(r);
  validation_data_suits_the_dataset(r);
  validation_can_generate_texts(r);
  validation_has_its_own_samples(r);
  metrics_of_validation_exist(r);
  learning_rate_schedule_is_consistent(r);
  plateau_follows_a_validation(r);
  gradients_are_clipped_in_one_way(r);
  weight_averages_suit_the_mode(r);
  whole_parameters_are_not_sharded(r);
  summed_losses_count_all_labels(r);
  auxiliary_losses_add_up(r);
  skipped_steps_suit_the_mode(r);
  fp8_recipe_suits_the_job(r);
  spike_limit_is_consistent(r);
  state_type_suits_the_optimizer(r);
  fields_of_types_agree(r);
}

void validate_job(RuleContext& r) {
  ranks_fit_on_the_hosts(r);
  elastic_runs_have_hosts(r);
  saves_are_consistent(r);
  cluster_manager_assigns_the_hosts(r);
  resource_requests_are_well_formed(r);
  volumes_have_a_path(r);
  machines_fit_the_ranks(r);
  spot_notices_have_an_address(r);
  trackers_differ(r);
  paths_use_no_shell_syntax(r);
  if (!r.job.has_command() && !r.problems.touch("command")) validate_network_job(r);
}

}  // namespace
}  // namespace rules

void validate(const JobSpec& job, Problems& problems) {
  rules::RuleContext r{job, problems};
  rules::validate_job(r);
}

}  // namespace trainctl
