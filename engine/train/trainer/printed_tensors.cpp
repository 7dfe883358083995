// The positions of the local shards that `print:` shows within the full tensors of the global batch.
#include "engine/train/trainer/printed_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/plan/hybrid/local_shards.h"

namespace trainctl {
namespace {

/// The dim along which micro-batches follow each other; -1: none, or the batch is merged with a dim before it.
int batch_dim(const Tensor& tensor) { return tensor.batch.outer == 1 ? tensor.batch.dim : -1; }

/// "32..63 of 64"; for a whole dim "0..9".
std::string range_text(int64_t first, int64_t size, int64_t whole) {
  std::string text = fmt::format("{}..{}", first, first + size - 1);
  return size == whole ? text : text + fmt::format(" of {}", whole);
}

}  // namespace

PrintedTensors::PrintedTensors(const PlannedJob& job, const Program& program) : job_(job), program_(program) {
  if (job.graph.prints.empty()) return;
  for (const Instruction& i : program.instructions) {
    if (i.opcode != Opcode::print || tensors_.contains(i.op)) continue;
    const std::optional<TensorId> tensor = job.graph.find_tensor(i.op);
    check(tensor.has_value(), "a printed tensor is one of the graph: " + i.op);
    Known known = find(*tensor, i.inputs[0]);
    known.batch_dim = batch_dim(job.graph.tensors[*tensor]);
    tensors_.emplace(i.op, std::move(known));
  }
}

PrintedTensors::Known PrintedTensors::find(TensorId tensor, const Operand& printed) const {
  Known found{printed.global_shape, printed.global_offset};
  if (job_.plan.hybrid()) {
    found.whole = printed.shape;
    found.first.assign(printed.shape.size(), 0);
    place_by_hand(tensor, found);
    return found;
  }
  const Node& node = job_.graph.nodes[job_.graph.tensors[tensor].producer];
  const auto output = std::find(node.outputs.begin(), node.outputs.end(), tensor) - node.outputs.begin();
  Layout layout = output_layout(job_.graph, job_.plan, node, static_cast<int>(output));
  layout.partial.clear();  // it is summed before it is printed
  const Mesh& mesh = job_.plan.mesh;
  check(layout.local_shape(mesh, found.whole) == printed.shape,
        "a tensor must be printed in the layout in which it "
        "is produced: " +
            printed.tensor);
  if (job_.plan.divides_micro_batches()) return found;  // each rank prints micro-batches of its own
  const Axes replicas = layout.replica_axes(mesh);
  found.first_holder = std::all_of(replicas.begin(), replicas.end(),
                                   [&](Axis axis) { return mesh.coordinate(program_.rank_in_stage, axis) == 0; });
  return found;
}

/// The parts make a tensor if there is one for each place, and ranks with the same place have the same values.
void PrintedTensors::place_by_hand(TensorId tensor, Known& found) const {
  const LocalShards local = local_shards(job_.graph, job_.plan, job_.spec.parallel.full_batch)[tensor];
  const auto own = static_cast<size_t>(program_.rank_in_stage);
  std::map<std::vector<int64_t>, int> values;  // by place
  int64_t places = 1;
  for (size_t r = 0; r < local.of_rank.size(); ++r) {
    const LocalShard& part = local.of_rank[r];
    std::vector<int64_t> place;
    int64_t ways = 1;
    for (const Block& block : part.dims) {
      place.push_back(block.index);
      ways *= block.ways;
    }
    if (r == 0) places = ways;
    const bool alike = part.traced && part.term.ways == 1 && ways == places;
    const auto [entry, is_new] = values.try_emplace(std::move(place), local.values[r]);
    if (!alike || entry->second != local.values[r]) found.known = false;
    if (r == own) found.first_holder = is_new;
  }
  found.known = found.known && static_cast<int64_t>(values.size()) == places;
  if (!found.known) return;
  for (size_t d = 0; d < found.whole.size(); ++d) {
    const Block& block = local.of_rank[own].dims[d];
    found.first[d] = block.index * found.whole[d];
    found.whole[d] *= block.ways;
  }
}

PrintedPart PrintedTensors::part(const Operand& printed, int micro_batch) const {
  const Known& known = tensors_.at(printed.tensor);
  PrintedPart part{printed.shape, known.first, known.whole, known.known, known.known ? known.first_holder : true};
  const int64_t micro_batches = job_.plan.micro_batches, index = std::max(micro_batch, 0);
  if (known.batch_dim >= 0) {
    const auto d = static_cast<size_t>(known.batch_dim);
    part.first[d] += index * known.whole[d];
    part.whole[d] *= micro_batches;
  } else if (micro_batches > 1) {
    part.shape.insert(part.shape.begin(), 1);
    part.first.insert(part.first.begin(), index);
    part.whole.insert(part.whole.begin(), micro_batches);
  }
  return part;
}

std::string part_text(const PrintedPart& part) {
  if (part.shape == part.whole) return "whole";
  std::vector<std::string> dims;
  for (size_t d = 0; d < part.shape.size(); ++d)
    dims.push_back(range_text(part.first[d], part.shape[d], part.whole[d]));
  if (dims.size() > 2) return "[" + join(dims) + "]";
  if (dims.size() == 2) dims[1] = "cols " + dims[1];
  dims[0] = "rows " + dims[0];
  return join(dims);
}

}  // namespace trainctl
