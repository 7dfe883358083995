// JobSpec -> Graph: the network's layers, the loss, the backward pass and the optimizer's updates.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// One tensor of a sample after the transforms, as the network reads it.
struct DataField {
  std::string name;
  Shape shape;              ///< without the batch dim
  bool is_integer = false;  ///< i32; else f32, or bf16 in a job of that precision
  bool operator==(const DataField&) const = default;
};

/// The properties of the data that the graph needs: the fields of a sample, which layers name. The loss compares with
/// `label`; `data` means the first of the others.
struct DataShapes {
  std::vector<DataField> fields;

  /// Null: there is no such field.
  const DataField* find(std::string_view name) const;
  bool operator==(const DataShapes&) const = default;
};

/// A set with only the fields `data` and `label`.
DataShapes data_and_label(Shape data, Shape label, bool data_is_integer = false, bool label_is_integer = false);

/// The graph of one micro-batch. The batch dim is dataset.batch / parallel.micro_batches (in
/// hybrid_parallel also divided by the ranks of a stage unless parallel.full_batch).
/// Throws SpecError at the layer whose shapes do not fit.
Graph build_graph(const JobSpec& spec, const DataShapes& data);

}  // namespace trainctl
