// JobSpec -> Graph: the network's layers, the loss, the backward pass and the optimizer's updates.
#pragma once

#include "engine/graph/graph.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// What the graph needs to know about the data: shapes of one sample after the transforms.
struct DataShapes {
  Shape data, label;  ///< without the batch dim
  bool data_is_integer = false, label_is_integer = false;
};

/// The graph of one micro-batch. The batch dim is dataset.batch / parallel.micro_batches (in
/// hybrid_parallel also divided by the ranks of a stage unless parallel.full_batch).
/// Throws SpecError at the layer whose shapes do not fit.
Graph build_graph(const JobSpec& spec, const DataShapes& data);

}  // namespace trainctl
