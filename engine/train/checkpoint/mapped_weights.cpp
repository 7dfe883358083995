// Reads the tensors of a job from another tool's files, according to a name map.
#include "engine/train/checkpoint/mapped_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/base/text.h"
#include "engine/graph/half.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/spec/adapters.h"
#include "engine/train/checkpoint/box_runs.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/checkpoint/read_ahead.h"
#include "engine/train/checkpoint/tiling.h"

namespace trainctl {
namespace {

constexpr int64_t kComparedElements = int64_t{1} << 20;
constexpr int64_t kLoadedElements = int64_t{2} << 20;  ///< so that no buffer is as large as a tensor

std::vector<MappedWeights::Variable> variables_of(const PlannedJob& job) {
  std::vector<MappedWeights::Variable> variables;
  for (const VariablePlan& variable : job.plan.variables) {
    const Tensor& tensor = job.graph.tensors[variable.tensor];
    if (tensor.is_cache || is_adapter_parameter(job.spec, tensor.name)) continue;
    variables.push_back(
        {tensor.name, tensor.kind == TensorKind::parameter, unpacked_shape(variable.global_shape, tensor.packing)});
  }
  return variables;
}

}  // namespace

MappedWeights::MappedWeights(const PlannedJob& job, WeightFiles files, NameMap map)
    : MappedWeights(variables_of(job), numbers_of(job.spec), std::move(files), std::move(map)) {}

MappedWeights::MappedWeights(const std::vector<Variable>& variables, const LayerNumbers& layers, WeightFiles files,
                             NameMap map)
    : files_(std::move(files)), map_(std::move(map)) {
  map_.drop_prefix_unless_used(files_.names());
  std::vector<std::string> names;
  for (const Variable& variable : variables) {
    names.push_back(variable.name);
    expect(variable, layers);
  }
  match_.unused = map_.unused(names);
  // The place of a part of a fused tensor follows from the shapes of the parts before it, so all are known by now.
  for (Source& source : std::exchange(sources_, {})) find(std::move(source));
  for (size_t i = 0; i < sources_.size(); ++i) by_name_[sources_[i].name] = i;
  for (const std::string& name : files_.names())
    if (!used_.contains(name)) add_left_over(name);
}

/// Derives from a tensor of the job the tensors that the files should have.
void MappedWeights::expect(const Variable& variable, const LayerNumbers& layers) {
  std::optional<MappedTensor> mapped = map_.of_ours(variable.name, layers);
  if (!mapped && is_step_statistic(variable.name)) return;
  if (!mapped) {
    match_.missing.push_back(variable.name + " (the map has no pattern for it)");
    return;
  }
  require_own_sources(*mapped);
  const Shape& shape = variable.shape;
  AxisOrder order = mapped->order ? *mapped->order : AxisOrder::same(shape.size());
  Source source{variable.name, variable.is_parameter, shape, std::move(*mapped), std::move(order)};
  source.packing = variable.packing;
  const Shape ordered = source.mapped.ordered_shape(shape);
  try {
    source.sizes = source.order.sizes_from_ours(ordered, source.mapped.sizes);
  } catch (const OrderFault& fault) {
    throw SpecError(source.mapped.pos, "tensors." + source.mapped.pattern,
                    fmt::format("the order does not fit {} {}: {}", source.name, to_string(ordered), fault.message));
  }
  for (size_t i = 0; i < source.mapped.theirs.size(); ++i)
    expected_[source.mapped.theirs[i]] = source.order.theirs_shape(source.sizes, i % source.mapped.ordered_parts());
  sources_.push_back(std::move(source));
}

/// Throws SpecError if the map gives one tensor of theirs to two of ours. A tensor that is tied to another one uses
/// that tensor, which is reported.
void MappedWeights::require_own_sources(const MappedTensor& mapped) {
  for (const std::string& name : mapped.theirs)
    if (const auto [first, is_new] = takers_.emplace(name, mapped.ours); !is_new)
      throw SpecError(mapped.pos, "tensors." + mapped.pattern,
                      fmt::format("{} and {} both map to '{}'", first->second, mapped.ours, name),
                      "if they are the same tensor in the file, give each its own name and tie the names: tied: {name: "
                      "other name}");
}

void MappedWeights::find(Source source) {
  if (!find_theirs(source)) return;
  for (const Rows& rows : source.theirs) used_.insert(rows.name);
  if (const std::string defect = shape_defect(source); !defect.empty())
    match_.reshaped.push_back(defect);
  else
    sources_.push_back(std::move(source));
}

/// Finds the tensors of the file that make up one tensor of the job: by name, as rows of a fused tensor, or by the name
/// of a tied one. Returns false, and records what is missing, if one is absent.
bool MappedWeights::find_theirs(Source& source) {
  std::vector<std::string> absent;
  for (const std::string& name : source.mapped.theirs) {
    const std::optional<std::string> twin = map_.tied_to(name);
    const std::optional<FusedPart> fused = map_.fused_with(name);
    if (files_.find(name) != nullptr) {
      source.theirs.push_back({name});
    } else if (fused && files_.find(fused->whole) != nullptr) {
      Rows rows{.name = fused->whole, .is_part = true};
      for (size_t before = 0; before < fused->index; ++before) {
        const auto sibling = expected_.find(fused->parts[before]);
        if (sibling != expected_.end()) rows.first += sibling->second[0];
      }
      source.theirs.push_back(std::move(rows));
    } else if (twin && files_.find(*twin) != nullptr) {
      source.theirs.push_back({*twin});
      match_.tied.push_back(
          fmt::format("{} uses {}: the file has no {}, which is tied to it", source.name, *twin, name));
    } else {
      absent.push_back(fused ? fused->whole : name);
    }
  }
  if (!absent.empty() && !is_step_statistic(source.name))
    match_.missing.push_back(absent == std::vector{source.name} ? source.name
                                                                : fmt::format("{} ({})", join(absent), source.name));
  return absent.empty();
}

/// Returns "" if the file's tensors make up our tensor, otherwise the defect.
std::string MappedWeights::shape_defect(const Source& source) const {
  std::vector<std::string> found, expected;
  bool fits = true;
  for (size_t part = 0; part < source.theirs.size(); ++part) {
    const Rows& rows = source.theirs[part];
    const Shape& shape = files_.find(rows.name)->shape;
    Shape needed = expected_.at(source.mapped.theirs[part]);
    if (rows.is_part) {
      needed[0] = 0;
      const std::optional<FusedPart> fused = map_.fused_with(source.mapped.theirs[part]);
      for (const std::string& each : fused->parts)
        if (const auto sibling = expected_.find(each); sibling != expected_.end()) needed[0] += sibling->second[0];
    }
    fits = fits && shape == needed;
    found.push_back(fmt::format("{} {}", rows.name, to_string(shape)));
    expected.push_back(to_string(needed));
  }
  if (fits) return "";
  const std::string what =
      fmt::format("{} is {} in the job, but {} in the file", source.name, to_string(source.shape), join(found));
  return source.mapped.order ? fmt::format("{}, expected {}", what, join(expected)) : what;
}

void MappedWeights::add_left_over(const std::string& name) {
  const std::optional<std::string> twin = map_.tied_to(name);
  if (map_.ignores(name)) {
    match_.ignored.push_back(name);
  } else if (twin && used_.contains(*twin)) {
    match_.tied.push_back(fmt::format("{} is {}", name, *twin));
    doubled_.emplace_back(name, *twin);
  } else {
    match_.extra.push_back(name);
  }
}

bool MappedWeights::are_equal(const std::string& a, const std::string& b) const {
  const Shape& shape = files_.find(a)->shape;
  if (shape != files_.find(b)->shape) return false;
  std::vector<float> of_a, of_b;
  const int64_t count = num_elements(shape);
  for (int64_t first = 0; first < count; first += kComparedElements) {
    const int64_t size = std::min(kComparedElements, count - first);
    of_a.resize(static_cast<size_t>(size));
    of_b.resize(static_cast<size_t>(size));
    files_.read_f32(a, first, size, of_a.data());
    files_.read_f32(b, first, size, of_b.data());
    if (std::memcmp(of_a.data(), of_b.data(), of_a.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

void MappedWeights::require_equal_ties(bool partial) {
  for (const auto& [name, twin] : doubled_) {
    if (are_equal(name, twin)) continue;
    std::erase(match_.tied, fmt::format("{} is {}", name, twin));
    match_.extra.push_back(fmt::format("{} (the job ties it to {}, but their values differ)", name, twin));
  }
  require_fit(partial, "");
}

void MappedWeights::require_fit(bool partial, const std::string& remedy) const {
  if (sources_.empty()) throw EnvError(message() + "\nnone of its tensors fits this job");
  if (!match_.fits() && !partial) throw EnvError(message() + (remedy.empty() ? "" : "\n" + remedy));
}

std::string MappedWeights::message() const {
  std::string text = files_.path() + " does not match the network of this job, according to the map:";
  for (const auto& [head, names] :
       {std::pair{"missing in the file", &match_.missing}, std::pair{"missing in the job", &match_.extra},
        std::pair{"different shape", &match_.reshaped}})
    if (!names->empty()) text += fmt::format("\n  {}:\n    {}", head, join(*names, "\n    "));
  return text;
}

std::vector<MappedWeights::Variable> MappedWeights::variables() const {
  std::vector<Variable> variables;
  for (const Source& source : sources_) variables.push_back({source.name, source.is_parameter, source.shape});
  return variables;
}

int64_t MappedWeights::bytes() const {
  int64_t bytes = 0;
  for (const std::string& name : used_) bytes += files_.find(name)->bytes();
  return bytes;
}

const MappedWeights::Source& MappedWeights::source_of(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  check(found != by_name_.end(), "the files have the tensor");
  return sources_[found->second];
}

void MappedWeights::read_floats(const Source& source, const Box& box, float* to) const {
  if (source.mapped.each == 0) return read_ordered(source, 0, box, to);
  Box ordered = box;
  ordered.offset.erase(ordered.offset.begin());
  ordered.shape.erase(ordered.shape.begin());
  for (int64_t i = 0; i < box.shape[0]; ++i)
    read_ordered(source, static_cast<size_t>(box.offset[0] + i) * source.mapped.ordered_parts(), ordered,
                 to + i * num_elements(ordered.shape));
}

namespace {

constexpr int64_t kMostOfGroup = 8;

/// The last dim of a box, as it was before it was widened. If the box has a few elements of each small group, such as
/// every second element, its last dim is widened to whole groups, because reading single elements is slow.
struct WidenedDim {
  std::optional<int64_t> first;
  int64_t count = 0;
};
WidenedDim widen_groups(AxisOrder::Block& block) {
  if (block.shape.empty()) return {};
  const int64_t all = block.shape.back(), first = block.box.offset.back(), count = block.box.shape.back();
  if (count == all || all > kMostOfGroup) return {};
  block.box.offset.back() = 0;
  block.box.shape.back() = all;
  return {first, count};
}

/// Keeps only the elements of the dim before it was widened, out of the elements that were read.
void keep_of_groups(int64_t first, int64_t count, AxisOrder::Block& block, std::vector<float>& elements) {
  const auto all = block.shape.back(), groups = static_cast<int64_t>(elements.size()) / all;
  for (int64_t group = 0; group < groups; ++group)
    std::copy_n(elements.begin() + group * all + first, count, elements.begin() + group * count);
  block.box.offset.back() = first;
  block.box.shape.back() = count;
}

}  // namespace

/// Reads a box of the part of our tensor that the order describes. `first_part` is the index in source.theirs of the
/// order's first tensor.
void MappedWeights::read_ordered(const Source& source, size_t first_part, const Box& box, float* to) const {
  std::vector<float> elements;
  for (AxisOrder::Block block : source.order.blocks_of(source.sizes, box)) {
    const auto [of_group, in_group] = widen_groups(block);
    const Rows& rows = source.theirs[first_part + block.part];
    const Shape& shape = files_.find(rows.name)->shape;
    const int64_t first = rows.first == 0 ? 0 : rows.first * (num_elements(shape) / shape[0]);
    const bool in_place = !of_group && block.is_contiguous();
    if (!in_place) elements.resize(static_cast<size_t>(num_elements(block.box.shape)));
    float* const out = in_place ? to + block.first : elements.data();
    for_each_run(block.box, whole_box(block.shape), block.box, [&](int64_t from, int64_t at, int64_t count) {
      files_.read_f32(rows.name, first + from, count, out + at);
    });
    if (of_group) keep_of_groups(*of_group, in_group, block, elements);
    if (!in_place) block.place(elements.data(), to);
  }
}

void MappedWeights::read_rounded(const Source& source, const Box& box, float* to) const {
  const int64_t block = has_blocks(source.packing) ? kPackedBlock : 1, columns = box.shape.back();
  Box whole = box;
  whole.offset.back() = box.offset.back() / block * block;
  const int64_t before = box.offset.back() - whole.offset.back();
  whole.shape.back() = round_up(before + columns, block);
  std::vector<float> values(static_cast<size_t>(num_elements(whole.shape)));
  read_floats(source, whole, values.data());
  round_as_stored(source.packing, values.data(), static_cast<int64_t>(values.size()));
  for (size_t row = 0; row < values.size(); row += static_cast<size_t>(whole.shape.back()), to += columns)
    std::copy_n(&values[row + static_cast<size_t>(before)], columns, to);
}

void MappedWeights::read(std::string_view name, const Box& box, DType dtype, void* to) const {
  check(dtype != DType::i32, "weights are floats");
  const Source& source = source_of(name);
  const auto floats = [&](float* out) {
    return source.packing == Packing::none ? read_floats(source, box, out) : read_rounded(source, box, out);
  };
  if (dtype == DType::f32) return floats(static_cast<float*>(to));
  std::vector<float> values(static_cast<size_t>(num_elements(box.shape)));
  floats(values.data());
  floats_to_halves(dtype, values.data(), static_cast<int64_t>(values.size()), static_cast<uint16_t*>(to));
}

namespace {

/// Elements of a range; or, if the range is stored in blocks of fewer bits, whole rows of it.
struct LoadedChunk {
  const StoredRange* range;
  int64_t first, count;
};

std::vector<LoadedChunk> chunks_of(const std::vector<StoredRange>& ranges, const MappedWeights& weights) {
  std::vector<LoadedChunk> chunks;
  for (const StoredRange& range : ranges) {
    if (range.slot != kWeightSlot && range.slot != kStateSlot) continue;
    if (range.count == 0 || !weights.has(range.variable->name)) continue;
    const Variable& v = *range.variable;
    int64_t count = range.count, at_a_time = kLoadedElements;
    if (has_blocks(v.packing)) {
      check(range.first == 0 && range.count == num_elements(v.shape), "a packed parameter is stored as a whole");
      count /= v.shape.back();
      at_a_time = std::max<int64_t>(1, kLoadedElements / unpacked_shape(v.shape, v.packing).back());
    }
    for (int64_t at = 0; at < count; at += at_a_time) chunks.push_back({&range, at, std::min(at_a_time, count - at)});
  }
  return chunks;
}

/// The rows of a chunk, rounded to their packed form.
std::vector<std::byte> packed_bytes(const LoadedChunk& chunk, const MappedWeights& weights) {
  const Variable& v = *chunk.range->variable;
  const Shape part = unpacked_shape(v.shape, v.packing), offset = unpacked_shape(v.offset, v.packing);
  const int64_t elements = chunk.count * part.back();
  std::vector<float> values(static_cast<size_t>(elements));
  weights.read(v.name, {{offset[0] + chunk.first, offset[1]}, {chunk.count, part.back()}}, DType::f32, values.data());
  std::vector<std::byte> bytes(static_cast<size_t>(chunk.count * v.shape.back()) * sizeof(uint32_t));
  pack_blocks(v.packing, values.data(), elements / kPackedBlock, reinterpret_cast<uint32_t*>(bytes.data()));
  return bytes;
}

std::vector<std::byte> bytes_of(const LoadedChunk& chunk, const MappedWeights& weights) {
  const StoredRange& range = *chunk.range;
  if (has_blocks(range.variable->packing)) return packed_bytes(chunk, weights);
  const int64_t width = byte_size(range.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(chunk.count * width));
  std::byte* to = bytes.data();
  for (const Box& box : boxes_of(*range.variable, range.first + chunk.first, chunk.count)) {
    weights.read(range.variable->name, box, range.dtype, to);
    to += num_elements(box.shape) * width;
  }
  return bytes;
}

/// Returns the offset in the arena at which a chunk begins.
int64_t offset_of(const LoadedChunk& chunk) {
  const StoredRange& range = *chunk.range;
  const int64_t each = has_blocks(range.variable->packing) ? range.variable->shape.back() : 1;
  return range.offset + chunk.first * each * byte_size(range.dtype);
}

}  // namespace

void load_weights(const Program& program, const MappedWeights& weights, Executor& executor,
                  const std::function<void()>& on_progress) {
  const std::vector<StoredRange> ranges = stored_ranges(program);
  const std::vector<LoadedChunk> chunks = chunks_of(ranges, weights);
  read_ahead(
      chunks.size(), [&](size_t chunk) { return bytes_of(chunks[chunk], weights); },
      [&](size_t chunk, const std::vector<std::byte>& bytes) {
        executor.write(offset_of(chunks[chunk]), bytes.data(), static_cast<int64_t>(bytes.size()));
        if (on_progress) on_progress();
      });
}

}  // namespace trainctl
