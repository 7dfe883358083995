// optimizer.state_type: optimizer states that are stored in bf16, or as int8 codes with one f32 scale per block.
#include "engine/compile/lower/packed_states.h"

#include <algorithm>

#include "engine/base/round_up.h"
#include "engine/ops/pack_states/packed_state.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

constexpr int64_t kCodesPerWord = 4;

/// States that are means or sums of squares are never negative.
bool are_squares(std::string_view state) {
  constexpr std::string_view kSquares[] = {"v", "max_v", "sum", "square_avg"};
  return std::find(std::begin(kSquares), std::end(kSquares), state) != std::end(kSquares);
}

int64_t blocks_of(int64_t elements) { return (elements + kStateBlock - 1) / kStateBlock; }

/// The elements of the bucket whose states this rank stores: [begin, end).
std::pair<int64_t, int64_t> own_range(const Bucket& bucket) {
  if (bucket.level == 0) return {0, bucket.elements};
  return {bucket.shard * bucket.shard_elements(), (bucket.shard + 1) * bucket.shard_elements()};
}

/// Returns whether this rank saves its codes in checkpoints: it is the first of the ranks that store the same elements.
bool saves_codes(const Compiler& c, const BucketPlan& plan, const BucketParameter& p) {
  Axes replicas = p.gradient_layout.replica_axes(c.plan.mesh);
  const Axes more = plan.level == 0 ? plan.sum_axes : plan.across_axes();
  replicas.insert(replicas.end(), more.begin(), more.end());
  return (plan.level > 0 || c.stage == plan.stages.front()) &&
         std::all_of(replicas.begin(), replicas.end(),
                     [&](Axis axis) { return c.plan.mesh.coordinate(c.rank_in_stage, axis) == 0; });
}

/// Index of element 0 of this rank's part in the whole parameter.
int64_t first_element(const Compiler& c, const BucketParameter& p, const Shape& shape) {
  const Shape offset = p.gradient_layout.local_offset(c.plan.mesh, shape, c.rank_in_stage);
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + offset[d];
  return at;
}

/// A state of a piece in the form in which it is stored between steps: bf16, or words of codes.
View stored_state(const Lowering& l, int b, const Bucket::Piece& piece, size_t state) {
  const RankBucket& buffers = l.c.buckets[static_cast<size_t>(b)];
  const std::string name = l.c.optimizer_of(*buffers.plan).states()[state] + "." + piece.name;
  if (buffers.scales.empty())
    return l.c.flat(buffers.optimizer[state], piece.kept_first, piece.own_elements, name, DType::bf16);
  return l.c.flat(buffers.optimizer[state], 0, piece.own_elements / kCodesPerWord, name, DType::i32);
}

/// The scales of a state that is stored as codes: [elements / kStateBlock].
View stored_scales(const Lowering& l, int b, const Bucket::Piece& piece, size_t state) {
  const RankBucket& buffers = l.c.buckets[static_cast<size_t>(b)];
  return l.c.flat(buffers.scales[state], 0, piece.own_elements / kStateBlock,
                  l.c.optimizer_of(*buffers.plan).states()[state] + "_scales." + piece.name);
}

/// The kernel that packs or unpacks `state`, which is number `index` of its optimizer.
Instruction conversion(const Lowering& l, int b, const std::string& verb, const View& state, size_t index,
                       const KernelDef& kernel) {
  Instruction i = once_per_step(Opcode::kernel, verb + " " + state.operand.tensor, &kernel);
  const RankBucket& buffers = l.c.buckets[static_cast<size_t>(b)];
  if (!buffers.scales.empty() && are_squares(l.c.optimizer_of(*buffers.plan).states()[index]))
    i.attrs.set("squares", true);
  return i;
}

}  // namespace

bool keeps_codes(const OptimizerSpec& spec, const Shape& shape) {
  return spec.state_type == StateType::int8 && num_elements(shape) >= kLeastPackedElements;
}

std::vector<std::pair<std::string, Shape>> coded_states(const std::string& state, const Shape& shape) {
  const int64_t blocks = blocks_of(num_elements(shape));
  return {{state + "_codes", {blocks * (kStateBlock / kCodesPerWord)}}, {state + "_scales", {blocks}}};
}

bool has_whole_blocks(const Layout& layout, const Mesh& mesh, const Shape& shape) {
  size_t leading = 0;
  while (leading + 1 < shape.size() && shape[leading] == 1) ++leading;
  bool is_cut = false;
  for (size_t d = 0; d < layout.dims.size(); ++d) {
    if (layout.dims[d].empty()) continue;
    if (d != leading) return false;  // the local shard is not one contiguous range of the parameter's elements
    is_cut = true;
  }
  return !is_cut || num_elements(layout.local_shape(mesh, shape)) % kStateBlock == 0;
}

/// Records for each parameter and state two tensors: the codes and the scales of this rank's part. Offsets and sizes
/// are divided by the number of elements that a code word or a scale covers.
void record_codes(Compiler& c, const BucketPlan& plan, const Bucket& bucket, const RankBucket& buffers,
                  const std::vector<std::string>& states) {
  const auto [begin, end] = own_range(bucket);
  for (const BucketParameter& p : plan.parameters) {
    const Tensor& tensor = c.trained.tensors[static_cast<size_t>(p.tensor)];
    const int64_t first = std::max(begin, p.first_element);
    const int64_t last = std::min(end, p.first_element + round_up(p.elements, kStateBlock));
    if (first >= last) continue;
    const int64_t first_in_parameter = first_element(c, p, tensor.shape) + first - p.first_element;
    for (size_t s = 0; s < states.size(); ++s) {
      const auto record = [&](const std::pair<std::string, Shape>& whole, DType type, int64_t elements_of_one,
                              BufferId buffer) {
        OtherState state{whole.first, {}};
        Variable& v = state.variable;
        v.name = tensor.name;
        v.kind = TensorKind::state;
        v.dtype = type;
        v.global_shape = whole.second;
        v.shape = {(last - first) / elements_of_one};
        v.offset = {first_in_parameter / elements_of_one};
        if (saves_codes(c, plan, p)) v.own_elements = v.shape[0];
        c.program.other_states.push_back(std::move(state));
        c.other_states.emplace_back(buffer, (first - begin) / elements_of_one * byte_size(type));
      };
      const auto whole = coded_states(states[s], tensor.shape);
      record(whole[0], DType::i32, kCodesPerWord, buffers.optimizer[s]);
      record(whole[1], DType::f32, kStateBlock, buffers.scales[s]);
    }
  }
}

View unpack_state(Lowering& l, int b, const Bucket::Piece& piece, size_t state) {
  const View from = stored_state(l, b, piece, state);
  const BufferId buffer = l.c.new_buffer(BufferKind::scratch, piece.own_elements * byte_size(DType::f32));
  const View to = l.c.flat(buffer, 0, piece.own_elements, from.operand.tensor);
  std::vector<View> inputs = {from};
  if (from.operand.dtype == DType::i32) inputs.push_back(stored_scales(l, b, piece, state));
  l.c.emit(conversion(l, b, "unpack", from, state, unpack_states_kernel), std::move(inputs), {to});
  return to;
}

void pack_state(Lowering& l, int b, const Bucket::Piece& piece, size_t state, const View& unpacked,
                const std::optional<View>& norm) {
  const View to = stored_state(l, b, piece, state);
  Instruction i = conversion(l, b, "pack", to, state, pack_states_kernel);
  std::vector<View> inputs = {unpacked}, outputs = {to};
  if (to.operand.dtype == DType::i32) {
    outputs.push_back(stored_scales(l, b, piece, state));
    // With skip_not_finite, the kernel leaves the codes unchanged if this norm is not finite.
    if (norm) inputs.push_back(*norm);
    if (l.c.plan.numerics.optimizer.skips_not_finite) i.attrs.set("skip_not_finite", true);
  } else {
    // Rounding to bf16 is stochastic. Its random numbers depend on the state and on the element's place in its
    // parameter, so that they are the same under every plan.
    i.attrs.set("state", static_cast<int64_t>(state));
    place_parameters(l, b, piece.own_first, i.attrs);
  }
  l.c.emit(std::move(i), std::move(inputs), std::move(outputs));
}

}  // namespace trainctl
