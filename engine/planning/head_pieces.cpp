// In how many pieces of rows the head of a network runs (compile/fuse/head_in_pieces.cpp).
#include "engine/planning/head_pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "engine/base/text.h"
#include "engine/planning/compile_job.h"

namespace trainctl {
namespace {

constexpr int kMostPieces = 64;  ///< most that are chosen: products of fewer rows take longer

class HeadPieces {
 public:
  explicit HeadPieces(PlannedJob& job)
      : job_(job), prediction_(job.graph.nodes[job.graph.tensors[job.graph.loss].producer].inputs[0]) {}

  void choose() {
    const int given = job_.spec.parallel.head_pieces;
    const int64_t limit = job_.spec.parallel.max_memory;
    if (given == 1 || (given == 0 && limit == 0)) return;
    const Program whole = with_pieces(1);
    if (given > 1) {
      report(whole, with_pieces(given));
      return;
    }
    if (whole.memory.total() <= limit) return;
    for (int pieces = 2; pieces <= kMostPieces; pieces *= 2) {
      const Program program = with_pieces(pieces);
      if (rows_in_pieces(program) == 0) break;
      if (program.memory.total() <= limit) return report(whole, program);
    }
    job_.plan.head_pieces = 1;
  }

 private:
  /// Compiles the program of a rank that computes the loss.
  Program with_pieces(int pieces) {
    job_.plan.head_pieces = pieces;
    const Node& loss = job_.graph.nodes[job_.graph.tensors[job_.graph.loss].producer];
    return compile(job_, job_.plan.stage_of(loss) * job_.plan.mesh.size());
  }

  /// Returns the number of rows of the prediction's first piece, found by its name, which ends in the number of the
  /// piece. 0: the prediction is not made in pieces.
  int64_t rows_in_pieces(const Program& program) const {
    const std::string& name = job_.graph.tensors[prediction_].name;
    for (const Instruction& i : program.instructions) {
      if (i.outputs.empty() || i.outputs[0].tensor != name || !i.name.ends_with(".0")) continue;
      return num_elements(i.outputs[0].shape) / i.outputs[0].shape.back();
    }
    return 0;
  }

  /// Adds a note about the chosen number of pieces, or about why the setting has no effect.
  void report(const Program& whole, const Program& pieces) {
    const std::string& name = job_.graph.tensors[prediction_].name;
    if (const int64_t rows = rows_in_pieces(pieces); rows > 0) {
      job_.plan.notes.push_back(fmt::format(
          "chunked loss: {} and the loss run in {} chunks of up to {} rows, because {}: {} per rank instead of {}",
          name, job_.plan.head_pieces, rows,
          job_.spec.parallel.head_pieces > 1 ? "parallel.head_pieces is set" : "parallel.max_memory requires it",
          format_bytes(pieces.memory.total()), format_bytes(whole.memory.total())));
      return;
    }
    job_.plan.head_pieces = 1;
    job_.plan.notes.push_back(fmt::format(
        "parallel.head_pieces has no effect: {} must be the output of a dense or matmul layer, have several rows, "
        "and be read only by the loss and metrics, and gradients must be accumulated in f32",
        name));
  }

  PlannedJob& job_;
  const TensorId prediction_;
};

}  // namespace

void choose_head_pieces(PlannedJob& job) {
  if (job.graph.loss >= 0) HeadPieces(job).choose();
}

}  // namespace trainctl
