// Data parallelism: levels of optimizer_shard, shards within hosts, buckets, groups of parameters.
#include "tests/equivalence/plan_cases/families.h"
#include "tests/equivalence/plan_cases/overrides.h"

namespace trainctl {

using namespace plan_overrides;

std::vector<PlanCase> data_parallel_cases() {
  return {
      // data_parallel
      {"mlp: one rank, recompute", "mlp", {}, {ranks(1), "parallel.recompute=[relu1, relu2]"}},
      {"mlp: data parallel, 2 ranks", "mlp", {}, {ranks(2), kData}},
      {"mlp: data parallel, 3 ranks", "mlp", {}, {ranks(3), kData}},
      {"mlp: data parallel, 4 ranks, whole batches", "mlp", {}, {ranks(4), kData, kFull}},
      {"mlp: data parallel, 6 ranks, 4 micro-batches", "mlp", {kMicro4}, {ranks(6), kData}},
      {"mlp: data parallel, 8 ranks", "mlp", {}, {ranks(8), kData, kNoFull}},
      {"mlp: data parallel, 12 ranks, level 1", "mlp", {}, {ranks(12), kData, kShard1}},
      {"mlp: data parallel, 4 ranks, level 2, large buckets alone", "mlp", {}, {ranks(4), kData, kShard2Large}},
      {"mlp: data parallel, 3 ranks, level 3, micro-batches", "mlp", {kMicro2}, {ranks(3), kData, kShard3}},
      {"mlp: clipped, 4 ranks, level 2", "mlp", {kClip}, {ranks(4), kData, kShard2}},
      {"mlp: clipped, 4 ranks, level 3", "mlp", {kClip}, {ranks(4), kData, kShard3}},
      {"mlp: adam, 8 ranks, level 1", "mlp", {kAdam001, kMse}, {ranks(8), kData, kShard1}, kAdamTolerance},
      // shards within a host
      {"mlp: level 1 within 2 hosts, 4 ranks", "mlp", {}, {ranks(4), kData, within_host(1), kOnHosts, kHosts2}},
      {"mlp: level 1 within 2 hosts, 8 ranks, adam",
       "mlp",
       {kAdam001, kMse},
       {ranks(8), kData, within_host(1), kOnHosts, kHosts2},
       kAdamTolerance},
      {"mlp: level 2 within 3 hosts, 12 ranks, micro-batches",
       "mlp",
       {kMicro2},
       {ranks(12), kData, within_host(2), kOnHosts, kHosts3}},
      {"mlp: level 3 within 2 hosts, 8 ranks, micro-batches",
       "mlp",
       {"parallel.micro_batches=3"},
       {ranks(8), kData, within_host(3), kOnHosts, kHosts2}},
      {"mlp: groups, clipped, level 1 within 2 hosts",
       "mlp",
       {kGroups},
       {ranks(4), kData, within_host(1), kOnHosts, kHosts2}},
      {"mlp: groups, clipped, level 2 within 2 hosts",
       "mlp",
       {kGroups},
       {ranks(8), kData, within_host(2), kOnHosts, kHosts2}},
      {"mlp: level 3 within 2 hosts, units cut within each",
       "mlp",
       {kClip},
       {ranks(8), kSemi, within_host(3), kOnHosts, kHosts2, "parallel.strategies={layer1: [[4, 1], [2, 1]]}"}},
      {"mlp: level 2 within 2 hosts, 2 stages of a host each",
       "mlp",
       {kMicro2},
       {ranks(8), kSemi, kTwoStages, within_host(2), kOnHosts, kHosts2}},
      {"mlp: level 2 within 4 hosts, 2 stages of 2 hosts each",
       "mlp",
       {kMicro2},
       {ranks(8), kSemi, kTwoStages, within_host(2), kOnHosts, "launch.slurm.nodes=4"}},
      {"classifier: level 3 within 2 hosts, 8 ranks, 3 micro-batches",
       "classifier",
       {"parallel.micro_batches=3"},
       {ranks(8), kData, within_host(3), kOnHosts, kHosts2},
       kAdamTolerance},
      // sizes of buckets
      {"mlp: buckets of 1 byte, 4 ranks", "mlp", {}, {ranks(4), kData, "parallel.bucket_bytes=1"}},
      {"mlp: buckets of 256 bytes, 4 ranks, level 2, micro-batches",
       "mlp",
       {kMicro2},
       {ranks(4), kData, kShard2, "parallel.bucket_bytes=256"}},
      // groups of parameters
      {"mlp: groups, clipped, 4 ranks", "mlp", {kGroups}, {ranks(4), kData}},
      {"mlp: groups, clipped, 4 ranks, level 1", "mlp", {kGroups}, {ranks(4), kData, kShard1}},
      {"mlp: groups, clipped, 4 ranks, level 2, micro-batches", "mlp", {kGroups, kMicro2}, {ranks(4), kData, kShard2}},
      {"mlp: groups, clipped, 4 ranks, level 3", "mlp", {kGroups}, {ranks(4), kData, kShard3}},
      {"mlp: a group beside plain steps, 2 stages", "mlp", {kPlainGroups}, {ranks(2), kSemi, kTwoStages, kMlpStages}},
      {"classifier: groups of adamw, 4 ranks, level 2",
       "classifier",
       {kAdamGroups},
       {ranks(4), kData, kShard2},
       kAdamTolerance},
  };
}

std::vector<PlanCase> small_bucket_cases() {
  return {
      // optimizer_shard with buckets that are too small for it
      {"mlp: level 1, all buckets too small",
       "mlp",
       {},
       {ranks(4), kData, "parallel.optimizer_shard={level: 1, min_kb: 1024}"}},
      {"mlp: level 3, large buckets alone, 6 ranks",
       "mlp",
       {kMicro2},
       {ranks(6), kData, "parallel.optimizer_shard={level: 3, min_kb: 4}"}},
      {"language: level 3 in 2 stages, whole batches",
       "language",
       {kMicro2},
       {ranks(4), kData, kTwoStages, kShard3, kFull},
       kAdamTolerance},
      {"classifier: adamw, 12 ranks in 3 stages, level 3, recompute",
       "classifier",
       {kMicro2},
       {ranks(12), kSemi, "parallel.stages=3", kShard3, "parallel.recompute=['norm*', 'act*', drop]", kGpipe},
       kAdamTolerance},
  };
}

}  // namespace trainctl
