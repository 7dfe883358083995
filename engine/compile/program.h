// Plan -> Program: one rank's flat list of instructions, run top to bottom once per step. Plain data: every buffer
// has an offset in one arena, and every collective, byte and wait is explicit.
//
//   arena:  [ parameters | states | gradients | optimizer | scalars | short-lived buffers ]
//
// With parallel.offload the optimizer's states are not in the arena of a GPU but in pinned memory of its host, which
// kernels access over the bus. Activations that wait for the backward pass are copied there and back. Offsets from
// kHostOffset on are offsets in that memory.
//
// Order. On one rank the list is a legal sequential order. `stream` and `waits` say what may overlap: instructions of
// one stream run in list order; across streams only `waits` orders them. send does not block: its buffer belongs to the
// channel until an instruction that lists the send in its `waits` starts. recv and collectives complete before the next
// instruction of their stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/attrs.h"
#include "engine/graph/collective.h"
#include "engine/graph/format.h"
#include "engine/graph/graph.h"
#include "engine/ops/kernel_def.h"

namespace trainctl {

inline constexpr int64_t kHostOffset = int64_t{1} << 46;
constexpr bool is_host_offset(int64_t offset) { return offset >= kHostOffset; }

enum class Opcode : uint8_t {
  kernel,      ///< run kernel `op` on inputs and outputs; in the comm stream if it rounds weights (Purpose::weights)
  load,        ///< copy data set tensor `op` ("data", "label") of this micro-batch into outputs[0]
  collective,  ///< `collective` over `group`: inputs[0] -> outputs[0] (the same range if in place)
  send,        ///< inputs[0] to rank `peer`
  recv,        ///< outputs[0] from rank `peer`; on a CPU, f32 data may be added to outputs[0] (accumulate)
  print,       ///< write inputs[0] to the rank's stdout as tensor `op`
  wait,        ///< only its waits
  copy,        ///< inputs[0] -> outputs[0], of which one is in the memory of the host
};
std::string_view to_string(Opcode opcode);

/// Tells why bytes are moved; for plans, counts and messages.
enum class Purpose : uint8_t {
  none,
  redistribute,
  statistics,  ///< sums inside an op whose inner dim is sharded, and means of running statistics
  pipeline,
  gradient,
  weights,
  clip,
  loss,
  layer,    ///< the collectives that a hybrid_parallel network contains as layers
  offload,  ///< to the memory of the host, and back
  outer     ///< the difference of weights between replicas that train local steps
};
std::string_view to_string(Purpose purpose);

enum class Stream : uint8_t { compute, comm, send, recv, to_host, from_host };
inline constexpr size_t kStreams = 6;
std::string_view to_string(Stream stream);

/// A rank may use its own part of a flat range: such an operand has a different offset on each rank.
enum class OwnPart : uint8_t {
  none,
  shard,   ///< this rank's shard of a bucket's piece; all shards have the same size
  counted  ///< the part that this rank adds to the gradient norm; sizes may differ
};

/// A tensor, or a part of one, in the arena. Contiguous.
struct Operand {
  int64_t offset = 0;  ///< bytes from the arena's start; a multiple of 64 except for ranges inside a bucket
  Shape shape;         ///< this rank's part
  DType dtype = DType::f32;
  Shape global_shape;                ///< the whole tensor, same ndim
  Shape global_offset;               ///< offset of this part in the whole
  Format format = Format::declared;  ///< the order of the dims in these three
  std::string tensor;                ///< name, for display
  bool accumulate = false;           ///< for outputs: adds to the current contents
  OwnPart own =
      OwnPart::none;  ///< if set, global_shape is {the range's elements} and global_offset {this part's first}

  int64_t bytes() const { return num_elements(shape) * byte_size(dtype); }

  /// Bytes that contain this operand on every rank: for an own part the whole range it belongs to, else its own
  /// bytes.
  int64_t reach_begin() const { return own == OwnPart::none ? offset : offset - global_offset[0] * byte_size(dtype); }
  int64_t reach_end() const {
    return own == OwnPart::none ? offset + bytes() : reach_begin() + global_shape[0] * byte_size(dtype);
  }
};

struct Instruction {
  Opcode opcode = Opcode::kernel;
  std::string name;  ///< "layer1.matmul", "all_reduce grad.0"
  std::string op;    ///< KernelDef::name; load, print: tensor name
  Attrs attrs;
  std::vector<Operand> inputs, outputs;
  Phase phase = Phase::forward;
  int micro_batch = -1;           ///< -1: once per step
  int chunk = 0;                  ///< index of the chunk of the stage's layers
  bool weight_gradients = false;  ///< in a task that computes only weight gradients (Schedule::zero_bubble)
  bool recompute = false;         ///< this forward instruction runs again for the backward pass

  Collective collective = Collective::all_reduce;
  int group = -1;  ///< index into Program::groups
  int root = 0;    ///< broadcast: index within the group
  Purpose purpose = Purpose::none;
  int peer = -1;  ///< send, recv: global rank

  /// Kernels with the same number are adjacent and may run as one launch: their buffers share no memory. -1: its
  /// own launch.
  int launch = -1;

  /// Ranks of one class have the same list, but this rank leaves the instruction out. Its outputs are read only by idle
  /// instructions, updated in place, or written by another instruction too.
  bool idle = false;

  Stream stream = Stream::compute;
  std::vector<int> waits;  ///< indices of earlier instructions: those of other streams, and sends

  /// Size of a collective in plans and counts: the larger of one rank's input and output.
  int64_t bytes() const;
};

/// The kernel that it runs; null for other opcodes.
const KernelDef* kernel_of(const Instruction& instruction);
/// True if it is an optimizer step.
bool is_update(const Instruction& instruction);
/// True for collectives, sends and receives.
bool communicates(const Instruction& instruction);

/// The shapes and types of operands, for the functions of a KernelDef.
std::vector<TensorInfo> infos_of(const std::vector<Operand>& operands);

/// One past the last instruction of the launch that starts at `first`; `first` + 1 if it is launched alone.
size_t end_of_launch(const std::vector<Instruction>& instructions, size_t first);

/// A parameter or state in this rank's arena.
struct Variable {
  std::string name;
  TensorKind kind = TensorKind::parameter;
  bool is_cache = false;  ///< Tensor::is_cache
  Init init;
  DType dtype = DType::f32;  ///< dtype of the stored weights; kernels may read a bf16 copy (Bucket::compute_offset)
  Packing packing = Packing::none;  ///< a parameter outside of buckets; shapes count words
  Shape global_shape;
  Shape shape, offset;         ///< this rank's part of the whole (before optimizer sharding)
  int bucket = -1;             ///< parameters: index into Program::buckets; states and packed parameters: -1
  int64_t bucket_element = 0;  ///< first element in the bucket's flat range
  /// Bytes from the arena's start, in f32; -1: a parameter of which the bucket holds only a shard, or no f32
  /// weights at all.
  int64_t arena_offset = -1;
  /// Elements of this rank's part that checkpoints take from this rank, of all that hold the part (divide_storage).
  /// If the bucket is sharded, only elements in this rank's shards count.
  int64_t own_first = 0, own_elements = 0;
};

/// Parameters that are reduced, gathered and updated together, as one flat range:
/// [p0 | p1 | … | padding up to a multiple of shards * 64 bytes of gradients].
/// A single large parameter may be split into pieces: equal, consecutive parts of the range, each reduced, updated
/// and gathered separately. A shard is then a shard of each piece; where only shards are kept, they are stored one
/// after another.
struct Bucket {
  std::string name;
  int64_t elements = 0;       ///< padded
  int reduce_group = -1;      ///< the group that sums gradients once per step; -1: none. Differs from shard_group if it
                              ///< sums shards over hosts
  int shard_group = -1;       ///< the group the optimizer is cut over; -1: not sharded
  int shards = 1, shard = 0;  ///< this rank's: of each piece, elements [shard, shard + 1) * (elements of it) / shards
  int pieces = 1;
  int level = 0;  ///< optimizer_shard level of this bucket (0 if it is smaller than min_kb)
  /// parameter_server: a worker has the whole bucket, pulls its weights and pushes its gradients. A server has only its
  /// shard, as at level 3.
  bool served = false;
  int pushers = 0;  ///< served: the workers whose gradients add up to the whole
  /// The rows of one batch, from a table that the servers own. No instruction moves them: the worker pulls them before
  /// the step, and pushes their gradients after it.
  bool table = false;
  /// f32, what the optimizer updates: the whole range, or this rank's shard (weights_are_cut); -1: bf16 and not updated
  int64_t weights_offset = -1;
  /// bf16, or f16: the copy that kernels read, the whole range, or at level 3 this rank's shard; -1: they read the
  /// weights
  int64_t compute_offset = -1;
  DType compute_type = DType::bf16;
  int64_t gradients_offset = -1;  ///< whole range, or from level 2 on only this rank's shard; -1: forward only
  /// Other buffers use the memory of the gradients, and of their sums, before the first contribution and after the
  /// update. If false, the gradients keep their memory and can be read after the step.
  bool gradients_share_memory = false;
  DType gradient_type = DType::f32;  ///< type in which ranks send and sum gradients
  DType kept_type = DType::f32;      ///< type at gradients_offset: f32 if shards of several micro-batches add up there
  /// f32, the whole range: contributions add up here before they are rounded to gradients_offset; -1: they are
  /// written there directly
  int64_t sums_offset = -1;
  /// Gradients are not stored: the kernels that would compute them update the weights instead (fuse_update).
  bool updated_by_parts = false;
  DType state_type = DType::f32;              ///< f32 or bf16, at optimizer_offsets
  std::vector<std::string> optimizer_states;  ///< OptimizerDef::states: "momentum"; "exp_avg", "exp_avg_sq"
  std::vector<int64_t> optimizer_offsets;     ///< one per state, whole or shard
  /// optimizer.state_type: int8. One per state: the largest magnitude of each block, f32; at optimizer_offsets are the
  /// codes then, a byte per element. Empty: states are of state_type.
  std::vector<int64_t> scale_offsets;
  int64_t average_offset = -1;  ///< f32, whole or shard: the weights' average (kAverageSlot), if there is one

  /// f32, whole or shard: the momentum of parallel.outer, whose weights are at average_offset.
  int64_t outer_momentum_offset = -1;

  /// The update itself computes the average, which is one of its states.
  bool computes_average() const {
    return std::find(optimizer_offsets.begin(), optimizer_offsets.end(), average_offset) != optimizer_offsets.end();
  }
  bool is_summed_twice() const { return level > 0 && reduce_group != shard_group; }
  bool has_compute_copy() const { return compute_offset >= 0; }
  /// At level 3, and in bf16 from level 1 on, where other ranks read the compute copy.
  bool weights_are_cut() const { return level == 3 || (level > 0 && has_compute_copy()); }
  int64_t shard_elements() const { return elements / shards; }

  struct Piece {
    std::string name;                         ///< the bucket's, plus a number if there are several pieces
    int64_t first = 0, elements = 0;          ///< in the bucket's range
    int64_t own_first = 0, own_elements = 0;  ///< this rank's shard of it, in the bucket's range
    int64_t kept_first = 0;                   ///< the same, where only shards are kept
  };
  Piece piece(int index) const;
};

/// State that is stored outside of the ranges of buckets because it has another shape: sums over rows and columns of a
/// parameter (adafactor), codes of blocks (optimizer.state_type: int8), the last gradient norms (train.on_spike).
struct OtherState {
  std::string slot;   ///< "row_squares"
  Variable variable;  ///< `name` is that of the parameter, the shapes are those of the state
};

/// Bytes of the arena that are in use while an instruction runs, without weights and optimizer states.
struct LiveBytes {
  int64_t activations = 0;  ///< tensors of the forward and backward pass
  int64_t gradients = 0;    ///< gradients of parameters, where they add up
  int64_t scratch = 0;      ///< gathered weights, packing, gradients of one micro-batch
};

struct Memory {
  int64_t weights = 0;    ///< parameters as kernels read them, and states
  int64_t master = 0;     ///< bf16: the f32 weights that the optimizer updates
  int64_t gradients = 0;  ///< added to the peak of the activations, whose memory gradients share
  int64_t optimizer = 0;
  int64_t activations = 0;  ///< peak of the tensors of the forward and backward pass
  int64_t buffers = 0;      ///< the rest of the arena: gathered weights, packing, alignment, scalars
  int64_t host = 0;         ///< offloaded state and activations in the memory of the host; no part of the terms below
  int64_t arena() const { return weights + master + gradients + optimizer + activations + buffers; }

  // Outside the arena, for ranks on GPUs; planned by engine/planning/device_memory.h.
  int64_t workspace = 0;     ///< inputs of the steps in flight, and scratch memory of kernels
  int64_t data_set = 0;      ///< kept on the device, if there is room
  int64_t unsent = 0;        ///< the part of workspace that a rank does without if it keeps data_set
  int64_t copy_engines = 0;  ///< flags and pulled data of copied collectives, if the device has room

  int64_t validation = 0;  ///< additional memory of the job's validation; set by make_room_for (compile_job.h)

  /// The device memory that the rank needs in any case. Excludes data_set and copy_engines, which the rank can do
  /// without.
  int64_t total() const { return arena() + workspace + validation; }
};

/// The metric that counts steps whose update was skipped (train.on_nan: skip, train.on_spike, precision: fp16).
inline constexpr const char* kSkippedMetric = "skipped";

/// The metric that counts steps whose gradients were not finite (precision: fp16 with train.on_spike).
inline constexpr const char* kOverflowedMetric = "overflowed";

/// A number that each step reports in addition to the loss.
struct ReportedMetric {
  std::string name;           ///< "accuracy"
  double scale = 1;           ///< times the sum in the arena
  bool of_labels = true;      ///< the sum is over labels; false: one number of the step
  bool adds_to_loss = false;  ///< an auxiliary loss: the step's loss is the sum of the arena's and these sums
};

struct Program {
  int rank = 0;
  int server = -1;  ///< index among the servers; -1: a worker
  int stage = 0;
  int rank_in_stage = 0;
  int replica = 0, replicas = 1;  ///< parallel.local_steps: ranks with weights of their own
  int chunks = 1;                 ///< number of chunks of layers that the stage holds
  int64_t arena_bytes = 0;
  int64_t scalars_offset = 0;  ///< a StepScalars (ops/kernel.h)
  /// f32: the step's loss, followed by the sum of each metric, the same on every rank; -1: forward only. If
  /// updates may be skipped, the last metric is "skipped", 1 if the step changed nothing.
  int64_t loss_offset = -1;
  std::vector<ReportedMetric> metrics;
  Memory memory;
  std::vector<std::vector<int>> groups;  ///< global ranks, in block order; this rank is in each
  std::vector<Variable> variables;
  std::vector<Bucket> buckets;
  std::vector<OtherState> other_states;
  std::vector<Instruction> instructions;
  std::vector<LiveBytes> live;  ///< by instruction; the most activations are Memory::activations
};

/// The training program whose variables a program of an evaluation reads: they have the same buckets and shards.
struct EvaluationOf {
  const Graph& trained;  ///< its ids of tensors are those of the evaluation's graph
  /// The arena is that of the training program: variables have the same offsets in both, and nothing that outlives a
  /// step is overwritten. Else there are only the weights that kernels read.
  bool beside_training = true;
  /// The program runs nothing of the graph, but only one of these.
  enum class Only : uint8_t {
    none,
    exchange,    ///< exchanges the weights with their average: before a validation, and after it
    synchronize  ///< updates the weights of all replicas (parallel.local_steps)
  };
  Only only = Only::none;
};

/// One line per instruction: `trainctl show program`.
std::string to_string(const Program& program);
/// "weights 24.1 GiB, gradients 24.1 GiB, …": the terms of total(); master and workspace only if not zero.
std::string to_string(const Memory& memory);

}  // namespace trainctl
