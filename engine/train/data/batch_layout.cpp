// See the header.
#include "engine/train/data/batch_layout.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "engine/base/error.h"
#include "engine/graph/bf16.h"
#include "engine/runtime/parts.h"

namespace trainctl {
namespace {

constexpr int64_t kElementBytes = 4;  ///< of the set's samples, both f32 and i32

}  // namespace

void convert_samples(const std::byte* from, DType to_type, int64_t elements, std::byte* to) {
  if (to_type != DType::bf16) {
    std::memcpy(to, from, static_cast<size_t>(elements * kElementBytes));
    return;
  }
  const auto* values = reinterpret_cast<const float*>(from);
  std::transform(values, values + elements, reinterpret_cast<uint16_t*>(to), to_bf16);
}

BatchLayout::BatchLayout(const Dataset& set, int64_t batch, const Program& program, const InputLayout& layout,
                         const BatchLayoutOptions& options)
    : set_(set), options_(options) {
  int64_t end = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (layout.offsets[i] < end) continue;  // not a load, or the same data as an earlier one
    Part part = make_part(program.instructions[i], layout.rows[i] > 0, batch);
    part.offset = layout.offsets[i];
    part.staging = staging_bytes_;
    if (part.way == Way::sliced) staging_bytes_ += part.rows * part.sample_elements * kElementBytes;
    parts_.push_back(part);
    end = layout.offsets[i] + 1;
  }
  find_rows();
}

BatchLayout::Part BatchLayout::make_part(const Instruction& load, bool by_number, int64_t batch) const {
  Part part;
  part.load = &load;
  part.which = data_tensor(load.op);
  part.sample_elements = set_.elements(part.which);
  const Operand& operand = load.outputs[0];
  const bool integer = part.which == DataTensor::data ? set_.shapes().data_is_integer : set_.shapes().label_is_integer;
  check((operand.dtype == DType::i32) == integer, "a load must have the data set's type, or bf16 for its f32");

  // The label may have the prediction's shape, so rows are counted in elements.
  const int64_t elements = num_elements(operand.global_shape);
  check(elements % part.sample_elements == 0, "a micro-batch must have whole samples");
  const int64_t whole_rows = elements / part.sample_elements;
  check(batch / options_.micro_batches == whole_rows, "a load must state the whole micro-batch");

  int64_t begin = elements, end = 0;
  for_each_run(operand.global_shape, operand.global_offset, operand.shape,
               [&](int64_t, int64_t in_whole, int64_t length) {
                 begin = std::min(begin, in_whole);
                 end = std::max(end, in_whole + length);
               });
  int64_t first = begin / part.sample_elements;
  part.rows = (end + part.sample_elements - 1) / part.sample_elements - first;
  if (options_.full_batch && !by_number) {
    first = 0;
    part.rows = whole_rows;
  }
  part.first_element = first * part.sample_elements;
  part.first_row = std::max(load.micro_batch, 0) * whole_rows + first;
  const bool whole_samples = part.rows * part.sample_elements == num_elements(operand.shape);
  part.way = by_number                       ? Way::by_number
             : !whole_samples                ? Way::sliced
             : operand.dtype == DType::bf16  ? Way::converted
                                             : Way::direct;
  return part;
}

void BatchLayout::find_rows() {
  for (const Part& part : parts_)
    for (int64_t r = 0; part.way != Way::by_number && r < part.rows; ++r) rows_.push_back(part.first_row + r);
  std::sort(rows_.begin(), rows_.end());
  rows_.erase(std::unique(rows_.begin(), rows_.end()), rows_.end());
}

int64_t BatchLayout::sample_bytes() const {
  return (set_.elements(DataTensor::data) + set_.elements(DataTensor::label)) * kElementBytes;
}

BatchLayout::Scratch BatchLayout::make_scratch() const {
  Scratch scratch;
  set_.prepare(scratch.state);
  scratch.state.labels.resize(static_cast<size_t>(set_.elements(DataTensor::label)));
  scratch.data.resize(static_cast<size_t>(set_.elements(DataTensor::data) * kElementBytes));
  scratch.label.resize(static_cast<size_t>(set_.elements(DataTensor::label) * kElementBytes));
  return scratch;
}

void BatchLayout::write_numbers(std::span<const int64_t> samples, std::byte* block) const {
  for (const Part& part : parts_) {
    if (part.way != Way::by_number) continue;
    const auto first = samples.begin() + part.first_row;
    std::transform(first, first + part.rows, reinterpret_cast<int32_t*>(block + part.offset),
                   [](int64_t sample) { return static_cast<int32_t>(sample); });
  }
}

std::byte* BatchLayout::target(DataTensor which, int64_t row, std::byte* scratch, std::byte* block) const {
  std::byte* at = nullptr;
  for (const Part& part : parts_) {
    if (part.which != which || part.way == Way::by_number || !part.has(row)) continue;
    if (part.way == Way::direct)
      return block + part.offset + (row - part.first_row) * part.sample_elements * kElementBytes;
    at = scratch;
  }
  return at;
}

void BatchLayout::spread(DataTensor which, int64_t row, const std::byte* from, std::byte* staging,
                         std::byte* block) const {
  for (const Part& part : parts_) {
    if (part.which != which || part.way == Way::by_number || !part.has(row)) continue;
    const int64_t element = (row - part.first_row) * part.sample_elements;
    const DType type = part.load->outputs[0].dtype;
    std::byte* to = part.way == Way::sliced ? staging + part.staging + element * kElementBytes
                                            : block + part.offset + element * byte_size(type);
    if (to != from) convert_samples(from, part.way == Way::converted ? type : DType::f32, part.sample_elements, to);
  }
}

void BatchLayout::mark_no_label(std::byte* label) const {
  const auto count = static_cast<size_t>(set_.elements(DataTensor::label));
  if (set_.shapes().label_is_integer)
    std::fill_n(reinterpret_cast<int32_t*>(label), count, *options_.no_label);
  else
    std::fill_n(reinterpret_cast<float*>(label), count, std::numeric_limits<float>::quiet_NaN());
}

void BatchLayout::read_row(int64_t row, int64_t sample, bool is_own, Scratch& scratch, std::byte* staging,
                           std::byte* block) const {
  std::byte* data = target(DataTensor::data, row, scratch.data.data(), block);
  std::byte* label = target(DataTensor::label, row, scratch.label.data(), block);
  set_.read(sample, scratch.state, {data, label});
  if (label != nullptr && !is_own && options_.no_label) mark_no_label(label);
  if (data != nullptr) spread(DataTensor::data, row, data, staging, block);
  if (label != nullptr) spread(DataTensor::label, row, label, staging, block);
}

void BatchLayout::finish(const std::byte* staging, std::byte* block) const {
  for (const Part& part : parts_) {
    if (part.way != Way::sliced) continue;
    const Operand& operand = part.load->outputs[0];
    for_each_run(operand.global_shape, operand.global_offset, operand.shape,
                 [&](int64_t in_part, int64_t in_whole, int64_t length) {
                   convert_samples(staging + part.staging + (in_whole - part.first_element) * kElementBytes,
                                   operand.dtype, length, block + part.offset + in_part * byte_size(operand.dtype));
                 });
  }
}

}  // namespace trainctl
