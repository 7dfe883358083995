// The fields of parallel. Defaults are the initializers of job_spec.h.
#include "engine/spec/field_makers.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/section_fields.h"

namespace trainctl {
namespace {

const Section& optimizer_shard_section() {
  using S = OptimizerShardSpec;
  static const Section section{
      "parallel.optimizer_shard",
      "Shards state that data-parallel ranks would otherwise replicate (ZeRO, HSDP).",
      {
          field<&S::level>("level",
                           "Sharding level. 0: nothing is sharded; 1: optimizer state is sharded; 2: gradients are "
                           "also sharded; 3: weights are also sharded.")
              .at_least(0)
              .at_most(3),
          field<&S::min_kb>("min_kb", "Parameters smaller than this many KiB are not sharded.")
              .at_least(0)
              .at_most(kMaxSize),
          field<&S::within_host>("within_host",
                                 "Shard only over the ranks of one host. Every host then stores the complete state, "
                                 "and gradient shards are summed across hosts."),
      }};
  return section;
}

const Section& offload_section() {
  using O = OffloadSpec;
  static const Section section{
      "parallel.offload",
      "Optimizer state and activations that GPU ranks keep in host memory.",
      {
          field<&O::optimizer>("optimizer",
                               "Where optimizer state is stored. device: in GPU memory; host: in pinned host memory, "
                               "which updates read and write over the bus."),
          make_field("activations", FieldKind::patterns,
                     "Layers, by name or glob, whose outputs are offloaded to pinned host memory until the backward "
                     "pass. Copy engines transfer them in both directions while kernels run."),
      }};
  return section;
}

const Section& outer_section() {
  using O = OuterSpec;
  static const Section section{
      "parallel.outer",
      "The outer optimizer for local_steps: SGD, with the mean difference between the outer weights and the replicas' "
      "weights as the gradient.",
      {
          field<&O::learning_rate>("learning_rate",
                                   "Learning rate of the outer optimizer. If it is 1 and momentum is 0, the new "
                                   "weights are the mean of the replicas' weights.")
              .above(0),
          field<&O::momentum>("momentum", "Momentum of the outer optimizer.").at_least(0).below(1),
          field<&O::nesterov>("nesterov", "Use Nesterov momentum, as in PyTorch's SGD."),
          field<&O::round_growth>("round_growth",
                                  "Maximum length of a round as a fraction of the number of steps before it, so that "
                                  "rounds grow from one step to local_steps. A round ends at the next multiple of "
                                  "local_steps at the latest. 0: every round has local_steps steps.")
              .at_least(0),
          field<&O::local_rate>(
              "local_rate",
              "Factor by which the job's learning rate is multiplied in local steps. 0 (default): the square root of "
              "the number of replicas, but at most 1.41, for adam, adamw and nadam, and 1 for other optimizers.")
              .at_least(0),
          field<&O::precision>("precision",
                               "Precision in which replicas exchange weight differences: fp32, or bf16, which halves "
                               "the communication volume."),
      }};
  return section;
}

const Section& search_section() {
  using S = SearchSpec;
  static const Section section{
      "parallel.search",
      "How auto_parallel chooses the settings that the job omits.",
      {
          field<&S::algorithm>(
              "algorithm",
              "Search algorithm. recursive_programming searches all omitted settings. sharding_propagation only "
              "derives the cuts of the remaining layers from the given strategies, with the least redistribution. "
              "exhaustive tries every plan and is meant for small jobs."),
          field<&S::effort>("effort",
                            "Search effort, which determines how many plans are estimated and how many are tried. See "
                            "docs/planning.md."),
      }};
  return section;
}

Field rank_micro_batches_field() {
  Field f = field<&ParallelSpec::rank_micro_batches>(
                "rank_micro_batches",
                "Number of micro-batches that each rank runs per step in data_parallel mode, for ranks of different "
                "speeds; micro_batches is the sum of these numbers. If omitted, ranks share each micro-batch evenly "
                "or, with a list of machines, in proportion to the speeds of the machines. See unequal_machines.md.")
                .at_least(1)
                .at_most(kMaxMicroBatches);
  f.get = [](const void* object) -> Value {  // an empty text means "not set"
    const Ints& counts = static_cast<const ParallelSpec*>(object)->rank_micro_batches;
    return counts.empty() ? Value(std::string()) : Value(counts);
  };
  return f;
}

}  // namespace

const Section& parallel_section() {
  using P = ParallelSpec;
  static const Section section{
      "parallel",
      "How the network is distributed over ranks. These fields do not change the results, except for local_steps, "
      "asynchronous parameter servers and, if layers compute over the rows of a batch, micro_batches.",
      {
          field<&P::mode>("mode", "How the plan is determined. See the modes below."),
          field<&P::stages>("stages", "Number of pipeline stages; must divide launch.ranks.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::chunks>(
              "chunks",
              "Number of chunks (groups of consecutive layers) per stage; must be greater than 1 for interleaved_1f1b.")
              .at_least(1)
              .at_most(kMaxRanks),
          make_field("stage_config", FieldKind::stage_map,
                     "Pipeline stage of each layer, by name or glob. If omitted, layers are distributed over the "
                     "stages automatically to balance the load. With chunks, the number is the virtual stage, from 0 "
                     "to stages * chunks - 1."),
          unless_zero<&P::data>("data",
                                "Data parallelism: number of ranks of a stage that share the batch. If omitted, the "
                                "number of ranks of the stage divided by tensor and context.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::tensor>(
              "tensor",
              "Tensor parallelism: number of ranks over which attention heads and hidden features are sharded.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::context>("context",
                             "Context parallelism: number of ranks over which the rows of each sequence are sharded.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::context_method>("context_method",
                                    "With context parallelism, how attention obtains the keys and values of all rows. "
                                    "gather: each rank gathers them; ring: they are passed from rank to rank; ulysses: "
                                    "ranks exchange rows for heads; auto: the method with the lowest estimated time."),
          field<&P::micro_batches>("micro_batches",
                                   "Number of micro-batches per batch (gradient accumulation); must divide "
                                   "dataset.batch.")
              .at_least(1)
              .at_most(kMaxMicroBatches),
          rank_micro_batches_field(),
          field<&P::schedule>(
              "schedule", "Order of the forward and backward passes of the micro-batches. See the schedules below."),
          make_field(
              "strategies", FieldKind::strategy_map,
              "Sharding strategies of layers: the cuts of each dim of each input of a layer, including its weights."),
          field<&P::expert>("expert",
                            "Expert parallelism: number of ranks over which the experts of each moe layer are "
                            "distributed; the other ranks of a stage share the batch. This is a shorthand for "
                            "strategies and applies to the moe layers that have none.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::expert_method>("expert_method",
                                   "With expert parallelism, how tokens reach the ranks of their experts. gather: each "
                                   "of these ranks receives all tokens; all_to_all: each rank receives only the tokens "
                                   "that its experts process; auto: the method with the lowest estimated time."),
          make_field("recompute", FieldKind::patterns,
                     "Activation checkpointing: layers, by name or glob, whose outputs are recomputed in the backward "
                     "pass instead of being stored. A name or glob after '!' excludes layers."),
          subsection<&P::optimizer_shard>("optimizer_shard", optimizer_shard_section(),
                                          "Shards optimizer state, gradients and weights over data-parallel ranks.")
              .shorthand("level"),
          subsection<&P::offload>("offload", offload_section(), "Keeps optimizer state or activations in host memory."),
          field<&P::bucket_bytes>(
              "bucket_bytes",
              "Maximum size of a bucket, in bytes of gradients. At optimizer_shard levels 0 to 2, the parameters of a "
              "bucket are reduced, updated and gathered together. 0 (default): 32 MiB.")
              .is(FieldKind::bytes)
              .at_least(0),
          field<&P::full_batch>("full_batch",
                                "Whether each rank reads the whole batch and uses only its slice. false: each rank "
                                "reads only its slice."),
          field<&P::head_pieces>("head_pieces",
                                 "Chunked loss: number of row chunks in which the last matrix product, the loss and "
                                 "their gradients are computed, so that the full prediction is never in memory. 0 "
                                 "(default): one chunk, or the number that max_memory requires.")
              .at_least(0)
              .at_most(kMaxHeadPieces),
          field<&P::max_memory>("max_memory", "Memory limit per rank. 0: no limit.").is(FieldKind::bytes).at_least(0),
          field<&P::local_steps>("local_steps",
                                 "DiLoCo: number of steps that each replica trains on its own part of the batch before "
                                 "the replicas synchronize their weights through the outer optimizer. 0: all ranks "
                                 "share every step. Local steps change the results. See local_steps.md.")
              .at_least(0)
              .at_most(kMaxSize),
          unless_zero<&P::replicas>(
              "replicas",
              "Number of replicas for local_steps. Each replica has launch.ranks / replicas ranks, which follow the "
              "plan that the other fields describe. If omitted, there is one replica per host.")
              .at_least(1)
              .at_most(kMaxRanks),
          subsection<&P::outer>("outer", outer_section(), "The outer optimizer for local_steps."),
          subsection<&P::search>("search", search_section(), "Search options for auto_parallel.")
              .shorthand("algorithm"),
          field<&P::servers>(
              "servers",
              "Number of server processes that store the weights in parameter_server mode, in addition to the workers.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::sync>("sync",
                          "Whether each step in parameter_server mode uses the gradients of all workers. With tables, "
                          "the workers all-reduce all other gradients. false: each worker processes its own batches, "
                          "and the servers apply each push immediately."),
          field<&P::staleness>("staleness",
                               "Maximum number of rounds (one batch per worker) by which a worker may be ahead of the "
                               "oldest unfinished batch, with sync: false or tables. 0: synchronous steps.")
              .at_least(0)
              .at_most(kMaxStaleness),
          field<&P::rebalance>("rebalance",
                               "Whether, with sync: false, each batch is assigned to the next idle worker. false: each "
                               "worker processes a fixed share of the batches."),
          list_field<&P::tables>(
              "tables", FieldKind::any_names,
              "Embedding layers, by name or glob, whose tables are stored only on the servers in parameter_server "
              "mode. The tables are partitioned by rows and updated with each push."),
      }};
  return section;
}

}  // namespace trainctl
