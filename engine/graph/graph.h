// The computation of ONE micro-batch with logical (global) shapes: forward, loss, backward, and which
// parameter is updated from which gradient. Knows no devices, ranks or layouts.
//
// A Layer is what the user names and gives a strategy to (the loss is one too). It owns the factors.
// Its nodes, forward and backward, state the dims of their tensors in those factors, so a choice of
// mesh axes per factor decides the layout of every tensor of the layer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/attrs.h"
#include "engine/base/source_pos.h"
#include "engine/graph/dtype.h"
#include "engine/graph/packing.h"
#include "engine/graph/rule.h"
#include "engine/graph/shape.h"

namespace trainctl {

using TensorId = int32_t;
using NodeId = int32_t;
using LayerId = int32_t;

enum class TensorKind : uint8_t {
  input,       ///< comes from the data set: data, label
  parameter,   ///< trained, unless it is frozen
  state,       ///< kept from step to step, not trained (running statistics)
  activation,  ///< produced by a forward node
  gradient,    ///< produced by a backward node
};

/// Initial values of a parameter or state. The value of an element depends only on (seed, tensor name, global
/// element index), so a rank can compute just its slice.
struct Init {
  enum class Kind : uint8_t {
    constant,
    uniform,
    normal,
    row_norms,  ///< the norms of the rows of another parameter, as it starts (`of`)
  } kind = Kind::constant;
  double value = 0.0;   ///< constant: the value; uniform: the bound b of [-b, b); normal: the standard deviation
  std::string of = {};  ///< row_norms: a parameter [rows, columns] of the same layer or one before it
};

/// The position of the rows of the batch in a tensor: dim `dim` is [outer, rows, inner] in row-major order.
struct BatchRows {
  int dim = -1;        ///< -1: none, since no row depends on only one sample, or nothing depends on the batch
  int64_t outer = 1;   ///< more than 1 if a reshape has merged the batch with a dim before it
  int64_t rows = 0;    ///< number of rows of one micro-batch
  uint64_t sized = 0;  ///< bit d: the size of dim d depends on the batch's

  bool is_sized(size_t d) const { return (sized >> d & 1) != 0; }
};

struct Tensor {
  std::string name;  ///< unique: "layer1.weight", "layer1", "layer1.matmul", "grad.layer1.weight"
  Shape shape;       ///< logical
  DType dtype = DType::f32;
  TensorKind kind = TensorKind::activation;
  NodeId producer = -1;  ///< the node that writes it; -1 for input, parameter and state
  Init init;             ///< parameter and state
  bool frozen = false;   ///< parameter: not trained (train.freeze)
  bool is_base = false;  ///< frozen parameter that checkpoints leave out, because the files of `weights` have it
  /// Frozen parameter of fewer bits (packing.h): an op unpacks it for each use. With blocks `shape` counts words and
  /// `dtype` is i32.
  Packing packing = Packing::none;
  bool is_cache = false;  ///< state: of the texts that are being generated; checkpoints do not contain it
  BatchRows batch;        ///< a gradient has the batch of its tensor
};

enum class Phase : uint8_t { forward, backward };

struct Node {
  std::string name;  ///< unique: "layer1.matmul", "layer1.matmul.grad_weight"
  std::string op;    ///< an OpDef's name
  Attrs attrs;
  std::vector<TensorId> inputs;
  std::vector<TensorId> outputs;
  Rule rule;  ///< one TensorRule per input and output, in factors of `layer`
  LayerId layer = -1;
  Phase phase = Phase::forward;
};

struct Layer {
  std::string name;
  std::string type;  ///< its `type` in the job file
  std::vector<Factor> factors;
  /// Tensors that a strategy addresses, in order: data inputs, then parameters (x, weight, bias).
  std::vector<TensorId> inputs;
  std::vector<TensorRule> input_rules;
  std::vector<TensorId> outputs;
  std::vector<TensorRule> output_rules;
  /// Number of rows of the batch that it sees at a time if it computes over them (batch_norm, a sum over dim 0); 0:
  /// each row is independent of the others.
  int64_t mixed_rows = 0;
  SourcePos pos;
};

/// The optimizer's work for one parameter, once per step.
struct Update {
  TensorId parameter = -1;
  /// Gradient contributions of one micro-batch. More than one where several layers share the
  /// parameter; they are summed.
  std::vector<TensorId> gradients;
  int group = -1;  ///< which of optimizer.groups sets its optimizer; -1: none
};

/// A number that each step reports with the loss: its tensor is a sum over this micro-batch's rows, and the sums of all
/// micro-batches and ranks are added up.
struct Metric {
  std::string name;      ///< "accuracy"
  TensorId tensor = -1;  ///< [1]
  double scale = 1;      ///< factor of the whole sum
  /// An auxiliary loss: the loss that is minimized and reported is the sum of graph.loss and these tensors.
  bool adds_to_loss = false;
};

inline constexpr int kMostMetrics = 7;

struct Graph {
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;  ///< a topological order; forward before backward
  std::vector<Layer> layers;
  std::vector<Update> updates;
  TensorId loss = -1;            ///< scalar [1]: this micro-batch's share of the global mean; -1: forward only
  std::vector<Metric> metrics;   ///< computed by the loss's layer
  std::vector<TensorId> prints;  ///< tensors to write to stdout, in the job's order
  /// The graph evaluates the weights as they are: no backward pass, no update (model/evaluation.h).
  bool is_evaluation = false;

  bool has_loss() const { return loss >= 0; }
  bool trains() const { return has_loss() && !is_evaluation; }
  std::optional<TensorId> find_tensor(std::string_view name) const;
  std::optional<LayerId> find_layer(std::string_view name) const;
  /// The place of `tensor` among the numbers that a step reports: 0 the loss, then the metrics; -1: it is none.
  int reported_place(TensorId tensor) const;
  /// Nodes that read `tensor`, in topological order.
  std::vector<NodeId> consumers(TensorId tensor) const;
};

/// One line per tensor, then one line per node: `trainctl show graph`.
std::string to_string(const Graph& graph);

/// Fails (check) unless names are unique, nodes are in topological order, each rule fits its shapes,
/// and each gradient has the shape of its tensor.
void verify_graph(const Graph& graph);

}  // namespace trainctl
