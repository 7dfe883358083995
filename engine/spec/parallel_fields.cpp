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
          field<&S::level>("level", "0: nothing, 1: optimizer state, 2: also gradients, 3: also weights.")
              .at_least(0)
              .at_most(3),
          field<&S::min_kb>("min_kb", "Parameters smaller than this many KiB are not sharded.")
              .at_least(0)
              .at_most(kMaxSize),
          field<&S::within_host>("within_host",
                                 "Shard over the ranks of one host only. Every host stores the whole state, and the "
                                 "gradient shards are summed across hosts."),
      }};
  return section;
}

const Section& offload_section() {
  using O = OffloadSpec;
  static const Section section{
      "parallel.offload",
      "State and activations that ranks on GPUs keep in the memory of their host.",
      {
          field<&O::optimizer>("optimizer",
                               "Where optimizer state is stored. device: in GPU memory; host: in pinned host memory, "
                               "which updates read and write over the bus."),
          make_field("activations", FieldKind::patterns,
                     "Layers, by name or glob, whose outputs are kept in pinned host memory until the backward pass. "
                     "Copy engines move them there and back while kernels run."),
      }};
  return section;
}

const Section& outer_section() {
  using O = OuterSpec;
  static const Section section{
      "parallel.outer",
      "The outer optimizer of local_steps: SGD on the mean difference between the outer weights and the replicas' "
      "weights.",
      {
          field<&O::learning_rate>(
              "learning_rate",
              "The outer learning rate; with 1 and no momentum, the new weights are the mean of the replicas' weights.")
              .above(0),
          field<&O::momentum>("momentum", "The outer momentum.").at_least(0).below(1),
          field<&O::nesterov>("nesterov", "Nesterov momentum, as in PyTorch's SGD."),
          field<&O::round_growth>(
              "round_growth",
              "Rounds grow from one step to local_steps: each has at most this share of the steps before it, and ends "
              "at a multiple of local_steps at the latest. 0: all have local_steps.")
              .at_least(0),
          field<&O::local_rate>(
              "local_rate",
              "Factor on the job's learning rate in local steps; 0: the square root of the number of replicas, at "
              "most 1.41, for adam, adamw and nadam; 1 for other optimizers.")
              .at_least(0),
          field<&O::precision>("precision",
                               "The precision in which replicas exchange their differences: fp32 or bf16, which halves "
                               "the bytes."),
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
              "recursive_programming: searches all omitted settings; sharding_propagation: only derives the cuts of "
              "the remaining layers from the given strategies, with the least redistribution; exhaustive: tries "
              "every plan, for small jobs."),
          field<&S::effort>("effort", "How many plans are estimated and how many are tried: see docs/planning.md."),
      }};
  return section;
}

Field rank_micro_batches_field() {
  Field f = field<&ParallelSpec::rank_micro_batches>(
                "rank_micro_batches",
                "For data_parallel: the number of micro-batches that each rank runs in a step, for ranks of different "
                "speeds; micro_batches is their sum. Omitted: ranks share each micro-batch evenly, or in proportion "
                "to the speeds of a list of machines. See unequal_machines.md.")
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
      "How the network runs on several ranks. Except local_steps, asynchronous parameter servers and, for "
      "layers that compute over the rows of a batch, micro_batches, these fields do not change the results.",
      {
          field<&P::mode>("mode", "How the plan is determined: see the modes below."),
          field<&P::stages>("stages", "Number of pipeline stages; must divide launch.ranks.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::chunks>("chunks", "Groups of consecutive layers per stage; more than one for interleaved_1f1b.")
              .at_least(1)
              .at_most(kMaxRanks),
          make_field(
              "stage_config", FieldKind::stage_map,
              "The stage of each layer, by name or glob; balanced automatically if omitted. With chunks, the virtual "
              "stage: 0 to stages * chunks - 1."),
          unless_zero<&P::data>("data",
                                "Data parallelism: number of ranks of a stage that share the batch; default: the ranks "
                                "of the stage divided by tensor and context.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::tensor>("tensor", "Tensor parallelism: number of ranks that share the heads and hidden features.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::context>("context", "Context parallelism: number of ranks that share the rows of each sequence.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::context_method>(
              "context_method",
              "With context: how attention gets the keys and values of all rows. gather: each rank gathers them; ring: "
              "they are passed from rank to rank; ulysses: ranks exchange rows for heads; auto: the method with the "
              "lowest estimated time."),
          field<&P::micro_batches>("micro_batches",
                                   "Number of micro-batches per batch (gradient accumulation); must divide "
                                   "dataset.batch.")
              .at_least(1)
              .at_most(kMaxMicroBatches),
          rank_micro_batches_field(),
          field<&P::schedule>("schedule",
                              "Order of the forward and backward passes of the micro-batches: see the schedules "
                              "below."),
          make_field("strategies", FieldKind::strategy_map,
                     "Cuts per dim for each input of a layer, weights included."),
          field<&P::expert>("expert",
                            "Number of ranks over which each moe layer distributes its experts; the other ranks of a "
                            "stage share the batch. A shorthand for strategies of the moe layers that have none.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::expert_method>(
              "expert_method",
              "With expert: how tokens reach the ranks of their experts. gather: each of these ranks receives all "
              "tokens; "
              "all_to_all: a rank receives only the tokens that its experts compute; auto: the method with the lowest "
              "estimated time."),
          make_field("recompute", FieldKind::patterns,
                     "Activation checkpointing: layers, by name or glob, that are computed again in the backward "
                     "pass instead of storing their output. A name or glob after '!' excludes layers."),
          subsection<&P::optimizer_shard>("optimizer_shard", optimizer_shard_section(),
                                          "Shards optimizer state, gradients and weights over data-parallel ranks.")
              .shorthand("level"),
          subsection<&P::offload>("offload", offload_section(), "Keeps optimizer state or activations in host memory."),
          field<&P::bucket_bytes>("bucket_bytes",
                                  "Bucket size: at optimizer_shard levels 0 to 2, parameters with up to this many "
                                  "bytes of gradients are reduced, updated and gathered together; 0: 32 MiB.")
              .is(FieldKind::bytes)
              .at_least(0),
          field<&P::full_batch>("full_batch",
                                "Each rank reads the whole batch and uses its slice; false: each rank reads only its "
                                "slice."),
          field<&P::head_pieces>(
              "head_pieces",
              "Chunked loss: number of row chunks in which the last matrix product, the loss and their gradients are "
              "computed, so that the full prediction is never in memory; 0: one, or as many as max_memory requires.")
              .at_least(0)
              .at_most(kMaxHeadPieces),
          field<&P::max_memory>("max_memory", "Memory limit per rank; 0: no limit.").is(FieldKind::bytes).at_least(0),
          field<&P::local_steps>(
              "local_steps",
              "DiLoCo: replicas train this many steps on their own parts of the batch, then synchronize their weights "
              "through the outer optimizer; 0: all ranks share every step. Changes the results. See local_steps.md.")
              .at_least(0)
              .at_most(kMaxSize),
          unless_zero<&P::replicas>(
              "replicas",
              "With local_steps: number of replicas, each with launch.ranks / replicas ranks under "
              "the plan that the other fields describe; default: one per host.")
              .at_least(1)
              .at_most(kMaxRanks),
          subsection<&P::outer>("outer", outer_section(), "The outer optimizer of local_steps."),
          subsection<&P::search>("search", search_section(), "Options of auto_parallel.").shorthand("algorithm"),
          field<&P::servers>("servers",
                             "For parameter_server: number of server processes that store the weights, in "
                             "addition to the workers.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::sync>("sync",
                          "For parameter_server: each step uses the gradients of all workers; with tables, the "
                          "workers all_reduce all other gradients. false: each worker runs its own batches, and the "
                          "servers apply each push at once."),
          field<&P::staleness>("staleness",
                               "For sync: false, and for tables: how many rounds (one batch per worker) a worker may "
                               "be ahead of the oldest unfinished batch; 0: synchronous steps.")
              .at_least(0)
              .at_most(kMaxStaleness),
          field<&P::rebalance>(
              "rebalance",
              "With sync: false, assign each batch to the next idle worker. false: each worker processes a fixed "
              "share of the batches."),
          list_field<&P::tables>(
              "tables", FieldKind::any_names,
              "For parameter_server: embedding layers, by name or glob, whose tables are stored only on the servers, "
              "partitioned by rows and updated with each push."),
      }};
  return section;
}

}  // namespace trainctl
