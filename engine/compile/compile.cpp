// Plan -> Program: the list of passes.
#include "engine/compile/compile.h"

#include <algorithm>
#include <array>

#include "engine/compile/passes.h"
#include "engine/compile/verify/verify_programs.h"

namespace trainctl {
namespace {

using enum Pass::Need;

constexpr std::array kPasses = {
    Pass{"lay_out_variables", "buckets, parameters and states, and the buffers that last all steps", required,
         lay_out_variables},
    Pass{"divide_storage", "which rank writes which part of the variables to checkpoints", required, divide_storage},
    Pass{"choose_formats", "which images are stored channels last", optional, choose_formats},
    Pass{"lower_stage", "the stage's tasks as kernels, loads, collectives, sends and recvs", required, lower_stage},
    Pass{"gather_ahead", "gathers of weights start one layer before their use", optional, gather_ahead},
    Pass{"fuse_loss", "a loss and its gradient become one kernel", optional, fuse_loss},
    Pass{"narrow_products", "operands of matrix products are rounded to 8 bits, once for all readers", optional,
         narrow_products},
    Pass{"fuse_products", "a product, add_bias and an activation become one product", optional, fuse_products},
    Pass{"fuse_quantise", "an activation, its slope and a bias's gradient are fused into the rounding to 8 bits",
         optional, fuse_quantise},
    Pass{"fuse_statistics", "the mean and variance of batch_norm become one kernel", optional, fuse_statistics},
    Pass{"join_statistics", "ranks that share a batch exchange the statistics of batch_norm in one call", optional,
         join_statistics},
    Pass{"fuse_relu_grad", "batch_norm's gradient kernels include the gradient of the relu after it", optional,
         fuse_relu_grad},
    Pass{"head_in_pieces", "chunked loss: the last product and the loss run on chunks of rows", optional,
         head_in_pieces},
    Pass{"fuse_update", "plain SGD inside the kernels that compute the gradients", optional, fuse_update},
    Pass{"fuse_bias_grad", "a layer's gradients of weight and bias become one kernel", optional, fuse_bias_grad},
    Pass{"fuse_norm_grads", "a norm's gradients of input and parameters become one kernel", optional, fuse_norm_grads},
    Pass{"fuse_skinny_grads", "gradients of layers with few input features, as adapters have, become one kernel",
         optional, fuse_skinny_grads},
    Pass{"fuse_skinny_products", "products with few columns of the same operand become one kernel", optional,
         fuse_skinny_products},
    Pass{"fuse_elementwise", "chains of element-wise kernels become one", optional, fuse_elementwise},
    Pass{"order_gradients", "gradients that ranks reduce are computed early", optional, order_gradients},
    Pass{"overlap_statistics", "statistics of the backward pass are exchanged while a product runs", optional,
         overlap_statistics},
    Pass{"make_in_pieces", "gradients that are reduced in pieces are computed in pieces", optional, make_in_pieces},
    Pass{"update_early", "updates, and the gathers that follow, start during the backward pass", optional,
         update_early},
    Pass{"group_launches", "kernels that can share a launch are grouped", optional, group_launches},
    Pass{"offload_activations", "activations wait for the backward pass in the memory of the host", optional,
         offload_activations},
    Pass{"order_sends", "which instruction waits for which send", required, order_sends},
    Pass{"reuse_buffers", "an in-place output takes the buffer of an input no longer used", optional, reuse_buffers},
    Pass{"place_buffers", "an arena offset for each buffer", required, place_buffers},
    Pass{"order_streams", "streams, and the waits between them", required, order_streams},
};

}  // namespace

std::span<const Pass> passes() { return kPasses; }

std::span<const Pass> passes_up_to(std::string_view name) {
  const auto found = std::find_if(kPasses.begin(), kPasses.end(), [&](const Pass& pass) { return pass.name == name; });
  if (found == kPasses.end()) return {};
  return {kPasses.begin(), found + 1};
}

void run_passes(std::span<const Pass> list, Compiler& c, const PassObserver& after_each) {
  for (const Pass& pass : list) {
    pass.run(c);
    if (after_each) after_each(pass, c);
  }
}

Program compile(const Graph& graph, const Plan& plan, const CostModel& cost, int rank, const EvaluationOf* of) {
  Compiler c(graph, plan, cost, rank, of);
  run_passes(passes(), c);
  return std::move(c.program);
}

StateCompiler::StateCompiler(const Graph& graph, const Plan& plan, const CostModel& cost)
    : graph_(graph), plan_(plan), cost_(cost), buckets_(plan_buckets(graph, plan)), division_(graph, plan, buckets_) {}

const Program& StateCompiler::compile(int rank) {
  const int home_of = rank < plan_.ranks ? rank / plan_.mesh.size() : plan_.num_stages + rank - plan_.ranks;
  const auto known = homes_.find(home_of);
  if (known == homes_.end()) return homes_.emplace(home_of, lay_out(rank)).first->second.program;
  if (known->second.program.rank != rank) change_to(rank, known->second);
  return known->second.program;
}

StateCompiler::Home StateCompiler::lay_out(int rank) {
  Compiler c(graph_, plan_, cost_, rank);
  c.bucket_plans.swap(buckets_);
  for (void (*const pass)(Compiler&) : {lay_out_variables, place_buffers}) pass(c);
  c.bucket_plans.swap(buckets_);
  division_.divide(c.variable_plans, c.program);
  Home home{std::move(c.program), std::move(c.variable_plans), {}};
  for (const RankBucket& bucket : c.buckets) home.buckets.push_back(bucket.plan);
  return home;
}

/// Changes a program to that of another rank of the same class. Changes the positions of its local shards in whole
/// tensors, its shards of buckets, and the elements that it writes into checkpoints.
void StateCompiler::change_to(int rank, Home& home) const {
  Program& program = home.program;
  program.rank = rank;
  program.rank_in_stage = rank % plan_.mesh.size();
  for (size_t i = 0; i < home.variables.size(); ++i) {
    const Layout& layout = home.variables[i]->layout;
    const bool is_cut = std::any_of(layout.dims.begin(), layout.dims.end(), [](const Axes& a) { return !a.empty(); });
    Variable& v = program.variables[i];
    if (is_cut) v.offset = layout.local_offset(plan_.mesh, v.global_shape, program.rank_in_stage);
  }
  for (size_t b = 0; b < home.buckets.size(); ++b)
    if (program.buckets[b].shards > 1)
      program.buckets[b].shard = home.buckets[b]->shard_index(plan_.mesh, program.stage, program.rank_in_stage);
  division_.divide(home.variables, program);
}

std::vector<Program> compile_all(const Graph& graph, const Plan& plan, const CostModel& cost) {
  std::vector<Program> programs;
  programs.reserve(static_cast<size_t>(plan.processes()));
  for (int rank = 0; rank < plan.processes(); ++rank) programs.push_back(compile(graph, plan, cost, rank));
  RankClasses classes = each_by_itself(std::move(programs));
  require_verified(classes);
  return std::move(classes.programs);
}

}  // namespace trainctl
