// Rules about parallel: modes, stages, chunks, sizes of parallelism, groups of collectives.
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "engine/base/text.h"
#include "engine/spec/fields.h"
#include "engine/spec/rules/rules.h"

namespace trainctl::rules {

void stand_alone_is_one_rank(RuleContext& r) {
  if (!r.fine({"parallel.mode", "launch.ranks", "parallel.stages"})) return;
  if (r.job.parallel.mode != ParallelMode::stand_alone) return;
  if (r.job.parallel.stages > 1)
    r.wrong("parallel.stages", "stand_alone has one stage, not " + number(r.job.parallel.stages),
            "set parallel.mode: data_parallel or semi_auto_parallel");
  else if (r.ranks() > 1)
    r.wrong("launch.ranks", "stand_alone runs on one rank, not " + number(r.ranks()),
            "set parallel.mode: data_parallel or semi_auto_parallel");
}

void stages_divide_ranks(RuleContext& r) {
  if (!r.fine({"launch.ranks", "parallel.stages"})) return;
  const int ranks = r.ranks(), stages = r.job.parallel.stages;
  if (ranks % stages == 0) return;
  r.wrong("parallel.stages", plural(ranks, "rank") + " cannot be divided evenly into " + number(stages) + " stages",
          "possible numbers of stages for " + plural(ranks, "rank") + ": " + divisors(ranks));
}

void stage_config_names_existing_stages(RuleContext& r) {
  if (!r.fine({"parallel.stages", "parallel.chunks"})) return;
  const int64_t stages = r.job.parallel.stages, chunks = r.job.parallel.chunks;
  const std::string there = chunks == 1 ? number(stages) + " stages"
                                        : number(stages * chunks) + " virtual stages (" + number(stages) +
                                              " stages of " + number(chunks) + " chunks)";
  for (const StageRule& rule : r.job.parallel.stage_config) {
    if (rule.stage < stages * chunks) continue;
    if (r.job.is_override("parallel.stages") && !r.job.is_override(rule.path))
      continue;  // The rule is ignored (plan/outdated.h).
    r.wrong(rule.path, "stage " + number(rule.stage) + " does not exist: there are " + there + ", counted from 0");
  }
}

void chunks_are_interleaved(RuleContext& r) {
  if (!r.fine({"parallel.schedule", "parallel.chunks", "parallel.stages"})) return;
  const ParallelSpec& parallel = r.job.parallel;
  const bool interleaved = parallel.schedule == Schedule::interleaved_1f1b;
  const std::string schedule(to_string(parallel.schedule));
  if (!interleaved && parallel.chunks > 1)
    return r.wrong("parallel.chunks",
                   "the schedule " + schedule + " has one chunk of layers per stage, not " + number(parallel.chunks),
                   "set parallel.schedule: interleaved_1f1b");
  if (!interleaved) return;
  if (parallel.chunks == 1)
    return r.wrong("parallel.schedule",
                   "interleaved_1f1b alternates between several chunks of a stage, but "
                   "parallel.chunks is 1",
                   "set parallel.chunks: 2 or more, or parallel.schedule: 1f1b");
  if (parallel.stages == 1)
    return r.wrong("parallel.schedule", "interleaved_1f1b needs several stages, but parallel.stages is 1",
                   "set parallel.stages: 2 or more, or parallel.schedule: 1f1b and parallel.chunks: 1");
  const int64_t micro_batches = parallel.micro_batches, stages = parallel.stages;
  if (!r.fine({"parallel.micro_batches"}) || micro_batches % stages == 0) return;
  const int64_t above = (micro_batches / stages + 1) * stages;
  r.wrong("parallel.micro_batches",
          "interleaved_1f1b processes micro-batches in groups of one per stage, but " + number(micro_batches) +
              " micro-batches cannot be divided into groups of " + number(stages),
          "for " + number(stages) + " stages, use " + (micro_batches > stages ? number(above - stages) + " or " : "") +
              number(above));
}

/// Checks that parallel.data times tensor times context is the number of ranks of a stage.
void parallel_sizes_multiply_to_the_ranks(RuleContext& r) {
  if (!r.fine({"parallel.mode", "parallel.data", "parallel.tensor", "parallel.context", "parallel.context_method",
               "parallel.stages", "launch.ranks"}))
    return;
  const ParallelSpec& parallel = r.job.parallel;
  if (parallel.context == 1 && parallel.context_method != ContextMethod::automatic)
    r.wrong("parallel.context_method",
            "context_method " + std::string(to_string(parallel.context_method)) +
                " has no effect, because parallel.context is 1",
            "set parallel.context, or remove context_method");
  if (!parallel.has_sizes()) return;
  const std::string first = parallel.context > 1  ? "parallel.context"
                            : parallel.tensor > 1 ? "parallel.tensor"
                                                  : "parallel.data";
  const bool is_searched = parallel.mode == ParallelMode::auto_parallel &&
                           parallel.search.algorithm == SearchAlgorithm::recursive_programming;
  if (parallel.mode == ParallelMode::auto_parallel && !is_searched)
    return r.wrong(first,
                   "only the search recursive_programming keeps given sizes of data, tensor and context parallelism",
                   "remove parallel.search.algorithm, or the sizes");
  if (parallel.mode != ParallelMode::semi_auto_parallel && !is_searched)
    return r.wrong(
        first,
        "sizes of data, tensor and context parallelism are for semi_auto_parallel and auto_parallel, not for " +
            std::string(to_string(parallel.mode)),
        "set parallel.mode: semi_auto_parallel, or remove them");
  const int64_t ranks = r.ranks(), stages = parallel.stages;
  if (ranks % stages != 0) return;
  const int64_t fixed = int64_t{parallel.tensor} * parallel.context, per_stage = ranks / stages;
  const std::string of_stage = stages > 1 ? " of a stage" : "";
  const std::string sizes = "tensor " + number(parallel.tensor) + " x context " + number(parallel.context);
  if (parallel.data > 0 && parallel.data * fixed != per_stage)
    return r.wrong("parallel.data",
                   "data " + number(parallel.data) + " x " + sizes + " is " + number(parallel.data * fixed) +
                       " ranks, but the job has " + number(per_stage) + " ranks" + of_stage,
                   "set launch.ranks: " + number(parallel.data * fixed * stages) + ", or omit data");
  if (per_stage % fixed != 0)
    r.wrong(
        first,
        sizes + " is " + number(fixed) + " ranks, which do not divide the " + number(per_stage) + " ranks" + of_stage,
        "possible products for " + number(per_stage) + " ranks: " + divisors(per_stage));
}

void micro_batches_divide_the_batch(RuleContext& r) {
  if (!r.fine({"dataset.batch", "parallel.micro_batches"})) return;
  const int64_t batch = r.job.dataset.batch, micro_batches = r.job.parallel.micro_batches;
  if (batch % micro_batches != 0) {
    r.wrong("parallel.micro_batches",
            "a batch of " + number(batch) + " samples cannot be divided evenly into " + number(micro_batches) +
                " micro-batches",
            "possible numbers of micro-batches: " + divisors(batch));
    return;
  }
  if (r.job.parallel.mode != ParallelMode::hybrid_parallel || r.job.parallel.full_batch) return;
  if (!r.fine({"launch.ranks", "parallel.stages", "parallel.full_batch"}) || r.job.launch.ranks % r.job.parallel.stages)
    return;
  const int ranks = r.ranks_per_stage();
  if ((batch / micro_batches) % ranks == 0) return;
  r.wrong("dataset.batch",
          "hybrid_parallel splits each micro-batch over the ranks of a stage, but a micro-batch of " +
              number(batch / micro_batches) + " cannot be divided evenly over the " + number(ranks) +
              " ranks of a stage",
          "change dataset.batch, or set parallel.full_batch: true so that each rank uses the whole micro-batch");
}

/// parallel.rank_micro_batches.
void ranks_divide_the_micro_batches(RuleContext& r) {
  const ParallelSpec& parallel = r.job.parallel;
  const char* const field = "parallel.rank_micro_batches";
  if (parallel.rank_micro_batches.empty()) return;
  if (!r.fine({field, "parallel.mode", "parallel.micro_batches", "parallel.stages", "parallel.local_steps",
               "launch.ranks"}))
    return;
  if (parallel.mode != ParallelMode::data_parallel)
    return r.wrong(
        field,
        "ranks have micro-batches of their own in data_parallel, not in " + std::string(to_string(parallel.mode)),
        "set parallel.mode: data_parallel, or remove it");
  if (parallel.stages > 1)
    return r.wrong(field, "every rank of a pipeline runs all micro-batches", "set parallel.stages: 1, or remove it");
  if (parallel.local_steps > 0)
    return r.wrong(field, "replicas that train local steps have equal parts of the batch", "remove it, or local_steps");
  const auto given = static_cast<int64_t>(parallel.rank_micro_batches.size());
  if (given != r.job.launch.ranks)
    return r.wrong(field, number(given) + " numbers, but the job has " + number(r.job.launch.ranks) + " ranks",
                   "list one number of micro-batches per rank");
  int64_t sum = 0;
  for (const int64_t count : parallel.rank_micro_batches) sum += count;
  if (sum != parallel.micro_batches)
    r.wrong(field,
            "the ranks run " + number(sum) + " micro-batches, but parallel.micro_batches is " +
                number(parallel.micro_batches),
            "omit parallel.micro_batches, or set it to " + number(sum));
}

void expert_parallelism_needs_strategies(RuleContext& r) {
  if (r.fine({"parallel.mode", "parallel.expert", "parallel.expert_method"}) && r.job.parallel.expert == 1 &&
      r.job.parallel.expert_method != ExpertMethod::automatic)
    r.wrong("parallel.expert_method",
            "expert_method " + std::string(to_string(r.job.parallel.expert_method)) +
                " has no effect, because parallel.expert is 1",
            "set parallel.expert, or remove expert_method");
  if (!r.fine({"parallel.mode", "parallel.expert"}) || r.job.parallel.expert <= 1) return;
  const ParallelMode mode = r.job.parallel.mode;
  if (mode == ParallelMode::semi_auto_parallel) return;
  r.wrong("parallel.expert", "it is short for strategies, which " + std::string(to_string(mode)) + " does not read",
          mode == ParallelMode::auto_parallel ? "auto_parallel chooses the cuts of experts itself: remove the field"
                                              : "set parallel.mode: semi_auto_parallel");
}

void collectives_only_in_hybrid(RuleContext& r) {
  if (!r.fine({"parallel.mode"}) || r.job.parallel.mode == ParallelMode::hybrid_parallel) return;
  for (const LayerSpec& layer : r.job.network) {
    if (!find_layer_type(layer.type)->collective) continue;
    r.wrong(layer.path + ".type", layer.type + " layers are only for hybrid_parallel; " +
                                      std::string(to_string(r.job.parallel.mode)) +
                                      " inserts collectives "
                                      "automatically");
  }
}

namespace {

/// Returns what is wrong with the groups of a collective; "" if nothing is. Each rank of the stage must be in exactly
/// one list, and all lists must have the same length.
std::string group_fault(const std::vector<Ints>& groups, int ranks) {
  std::set<int64_t> seen;
  for (const Ints& group : groups) {
    if (group.size() != groups.front().size()) return "all lists must have the same length";
    for (const int64_t rank : group) {
      if (rank >= ranks) return "rank " + number(rank) + " does not exist: a stage has ranks 0 to " + number(ranks - 1);
      if (!seen.insert(rank).second) return "rank " + number(rank) + " appears twice";
    }
  }
  if (seen.size() != static_cast<size_t>(ranks))
    return "each of the " + number(ranks) + " ranks of a stage must be in exactly one list, but only " +
           number(static_cast<int64_t>(seen.size())) + " are";
  return "";
}

}  // namespace

void groups_cover_the_stage(RuleContext& r) {
  if (!r.fine({"launch.ranks", "parallel.stages", "parallel.mode"}) || r.job.launch.ranks % r.job.parallel.stages)
    return;
  if (r.job.parallel.mode != ParallelMode::hybrid_parallel) return;
  for (const LayerSpec& layer : r.job.network) {
    const std::string path = layer.path + ".group";
    if (!find_layer_type(layer.type)->collective) continue;
    size_t size = static_cast<size_t>(r.ranks_per_stage());
    if (layer.attrs.has("group")) {
      if (!r.fine({path.c_str()})) continue;
      const std::vector<Ints> groups = layer.attrs.int_lists("group");
      const std::string fault =
          groups.empty() ? "must have at least one list" : group_fault(groups, r.ranks_per_stage());
      if (!fault.empty()) {
        r.wrong(path, fault, "e.g. [[0, 1], [2, 3]]");
        continue;
      }
      size = groups.front().size();
    }
    if (layer.attrs.integer("root", 0) >= static_cast<int64_t>(size))
      r.wrong(layer.path + ".root", "root " + number(layer.attrs.integer("root")) + " does not exist: the group has " +
                                        number(static_cast<int64_t>(size)) + " ranks, counted from 0");
  }
}

}  // namespace trainctl::rules
