// The loss as the graph's last layer, with the metrics, which read the same prediction and label.
#pragma once

#include "engine/graph/graph.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

struct DataShapes;

/// The scale of the loss, and the label for a prediction.
struct LossContext {
  Graph& graph;
  const JobSpec& spec;
  const DataShapes& data;
  int64_t batch = 1;  ///< batch size of the graph
  double shares = 1;  ///< micro-batches (in hybrid_parallel times the ranks of a stage)
  double copies = 1;  ///< ranks that add the loss of the same rows: with parallel.full_batch, all ranks of a stage
  // For a loss that compares the network with its start (LossDef::margins).
  TensorId reference = -1;  ///< prediction of the start
  TensorId targets = -1;
};

/// Returns whether the loss of this name compares the network with its start.
bool needs_reference(const std::string& loss);

/// A loss of the job and the outputs that it reads.
struct LossOutputs {
  const LossSpec* spec;
  std::vector<TensorId> outputs;
};

/// Appends layer and tensor "loss" [1]: this micro-batch's share of the mean over the global batch. Before it the layer
/// computes graph.metrics, each as "loss.<its name>": the job's metrics, then its auxiliary losses. Creates input
/// "label", and other fields that are labels, if no layer reads them yet. Throws ShapeError, or SpecError at a metric
/// or a loss.
TensorId build_loss(LossContext context, const std::vector<LossOutputs>& losses);

}  // namespace trainctl
