// Places the samples of a batch: computes the parts of a block that a rank's `load` instructions fill.
#include "engine/train/data/batch_layout.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "engine/base/error.h"
#include "engine/ops/row_order.h"
#include "engine/runtime/parts.h"
#include "engine/train/data/document_order.h"
#include "engine/train/data/elements.h"

namespace trainctl {
namespace {

/// Calls run(in_part, in_whole, length) for each stretch of a load's part that is contiguous in the sample's data,
/// where rows (dim 1) are stored by position. Offsets and lengths are in elements.
template <class Run>
void for_each_stretch(const Instruction& load, Run run) {
  const Operand& part = load.outputs[0];
  const int64_t rows = part.shape.size() > 1 ? part.global_shape[1] : 1;
  const RowOrder order = RowOrder::of(load.attrs, rows);
  if (order.piece == 0) return for_each_run(part.global_shape, part.global_offset, part.shape, run);
  int64_t row = 1;  // Elements of one row.
  for (size_t d = 2; d < part.shape.size(); ++d) {
    check(part.shape[d] == part.global_shape[d], "rows that are not stored by position are whole");
    row *= part.shape[d];
  }
  for (int64_t sample = 0; sample < part.shape[0]; ++sample)
    for (int64_t r = 0; r < part.shape[1];) {
      const int64_t stored = part.global_offset[1] + r;
      const int64_t count = std::min(part.shape[1] - r, order.piece - stored % order.piece);
      run((sample * part.shape[1] + r) * row, ((part.global_offset[0] + sample) * rows + order.position(stored)) * row,
          count * row);
      r += count;
    }
}

}  // namespace

BatchLayout::BatchLayout(const Dataset& set, int64_t batch, const Program& program, const InputLayout& layout,
                         const BatchLayoutOptions& options)
    : set_(set), options_(options), batch_(batch) {
  int64_t end = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (layout.offsets[i] < end) continue;  // not a load, or the same data as an earlier one
    Part part = make_part(program.instructions[i], layout.rows[i] > 0, layout.as_bytes[i], batch);
    part.offset = layout.offsets[i];
    part.staging = staging_bytes_;
    if (part.way == Way::sliced) staging_bytes_ += part.rows * part.sample_elements * byte_size(part.dtype());
    parts_.push_back(part);
    end = layout.offsets[i] + 1;
  }
  find_rows();
  find_documents();
  if (options_.mixing == nullptr) return;
  mixed_samples_ = staging_bytes_;
  const int64_t sample =
      set_.fields()[options_.mixing->field()].bytes() + set_.fields()[options_.mixing->label()].bytes();
  staging_bytes_ += static_cast<int64_t>(rows_.size()) * sample;
}

void BatchLayout::find_documents() {
  for (const Part& part : parts_) {
    if (!part.load->attrs.has(kRowGroups)) continue;
    documents_ = set_.find("documents");
    check(documents_ >= 0 && set_.fields()[static_cast<size_t>(documents_)].type == ElementType::i32,
          "rows that are ordered by documents have documents");
    documents_order_ = RowOrder::of(part.load->attrs, part.load->outputs[0].global_shape[1]);
    const bool is_known =
        std::find(ordered_fields_.begin(), ordered_fields_.end(), part.field) != ordered_fields_.end();
    if (!is_known && part.field != static_cast<size_t>(documents_)) ordered_fields_.push_back(part.field);
  }
}

void BatchLayout::order_documents(Scratch& scratch) const {
  const auto at = static_cast<size_t>(documents_);
  auto* const documents = static_cast<int32_t*>(scratch.to[at]);
  const std::span<int32_t> rows(documents, static_cast<size_t>(set_.fields()[at].elements()));
  const DocumentOrder order(rows, documents_order_);
  for (const size_t field : ordered_fields_) {
    if (scratch.to[field] == nullptr) continue;
    const int64_t bytes = set_.fields()[field].bytes();
    scratch.ordered.resize(std::max(scratch.ordered.size(), static_cast<size_t>(bytes)));
    order.permute(static_cast<std::byte*>(scratch.to[field]), bytes / static_cast<int64_t>(rows.size()),
                  scratch.ordered.data());
  }
  order.permute_documents(rows);
}

/// Computes the part of a batch that one load takes: which rows and elements of which field, and how they get into the
/// block.
BatchLayout::Part BatchLayout::make_part(const Instruction& load, bool by_number, bool as_bytes, int64_t batch) const {
  Part part;
  part.load = &load;
  part.as_bytes = as_bytes;
  const int field = set_.find(load.op);
  check(field >= 0, "a program can load only fields of the samples");
  part.field = static_cast<size_t>(field);
  const SampleField& from = set_.fields()[part.field];
  part.sample_elements = from.elements();
  const Operand& operand = load.outputs[0];
  check((operand.dtype == DType::i32) == from.is_integer, "a load must have the data set's type, or bf16 for its f32");

  // The label may have the prediction's shape, so rows are counted in elements.
  const int64_t elements = num_elements(operand.global_shape);
  check(elements % part.sample_elements == 0, "a micro-batch must have whole samples");
  const int64_t whole_rows = elements / part.sample_elements;
  const int64_t of_replica = batch / options_.replicas;
  check(of_replica / options_.micro_batches == whole_rows, "a load must state the whole micro-batch");

  int64_t begin = elements, end = 0;
  for_each_stretch(load, [&](int64_t, int64_t in_whole, int64_t length) {
    begin = std::min(begin, in_whole);
    end = std::max(end, in_whole + length);
  });
  int64_t first = begin / part.sample_elements;
  part.rows = (end + part.sample_elements - 1) / part.sample_elements - first;
  if (options_.full_batch && !by_number && !as_bytes) {
    first = 0;
    part.rows = whole_rows;
  }
  part.first_element = first * part.sample_elements;
  part.first_row = options_.replica * of_replica + std::max(load.micro_batch, 0) * whole_rows + first;
  const bool whole_samples =
      part.rows * part.sample_elements == num_elements(operand.shape) && !load.attrs.has(kRowOrder);
  check(!as_bytes || (whole_samples && from.type == ElementType::u8), "a device can map only bytes of whole samples");
  part.way = by_number                                         ? Way::by_number
             : !whole_samples                                  ? Way::sliced
             : !as_bytes && !is_same(from.type, operand.dtype) ? Way::converted
                                                               : Way::direct;
  part.is_mixed = options_.mixing != nullptr && options_.mixing->mixes(part.field);
  check(!part.is_mixed || !by_number, "a device cannot store samples that are mixed");
  return part;
}

void BatchLayout::find_rows() {
  for (const Part& part : parts_)
    for (int64_t r = 0; part.way != Way::by_number && r < part.rows; ++r) {
      rows_.push_back(part.first_row + r);
      if (part.is_mixed) rows_.push_back(mixed_with(part.first_row + r, batch_));
    }
  std::sort(rows_.begin(), rows_.end());
  rows_.erase(std::unique(rows_.begin(), rows_.end()), rows_.end());
}

int64_t BatchLayout::sample_bytes() const {
  int64_t bytes = 0;
  for (const SampleField& field : set_.fields()) bytes += field.bytes();
  return bytes;
}

BatchLayout::Scratch BatchLayout::make_scratch() const {
  Scratch scratch;
  set_.prepare(scratch.state);
  for (const SampleField& field : set_.fields()) {
    scratch.fields.emplace_back(static_cast<size_t>(field.bytes()));
    scratch.labels.resize(std::max(scratch.labels.size(), static_cast<size_t>(field.elements())));
    if (options_.mixing != nullptr)
      scratch.mixed.resize(std::max(scratch.mixed.size(), static_cast<size_t>(field.elements())));
  }
  scratch.to.resize(scratch.fields.size());
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

std::byte* BatchLayout::mixed_sample(size_t field, int64_t row, std::byte* staging) const {
  const BatchMixing& mixing = *options_.mixing;
  const int64_t of_field = set_.fields()[mixing.field()].bytes(), of_label = set_.fields()[mixing.label()].bytes();
  const int64_t place = std::lower_bound(rows_.begin(), rows_.end(), row) - rows_.begin();
  return staging + mixed_samples_ + place * (of_field + of_label) + (field == mixing.field() ? 0 : of_field);
}

void* BatchLayout::target(size_t field, int64_t row, Scratch& scratch, std::byte* staging, std::byte* block) const {
  if (options_.mixing != nullptr && options_.mixing->mixes(field)) return mixed_sample(field, row, staging);
  void* at = nullptr;
  for (const Part& part : parts_) {
    if (part.field != field || part.way == Way::by_number || !part.has(row)) continue;
    if (part.way == Way::direct)
      return block + part.offset + (row - part.first_row) * part.sample_elements * part.element_bytes();
    at = scratch.fields[field].data();
  }
  return at;
}

void BatchLayout::spread(size_t field, int64_t row, const void* from, bool no_label, std::byte* staging,
                         std::byte* block) const {
  for (const Part& part : parts_) {
    if (part.field != field || part.way == Way::by_number || part.is_mixed || !part.has(row)) continue;
    const int64_t offset = (row - part.first_row) * part.sample_elements * part.element_bytes();
    std::byte* to = part.way == Way::sliced ? staging + part.staging + offset : block + part.offset + offset;
    if (no_label)
      mark_no_label(part, to);
    else if (part.as_bytes && to != from)
      std::memcpy(to, from, static_cast<size_t>(part.sample_elements));
    else if (to != from)
      load_field(set_.fields()[field], from, part.dtype(), to);
  }
}

void BatchLayout::mark_no_label(const Part& part, std::byte* label) const {
  const auto count = static_cast<size_t>(part.sample_elements);
  if (part.dtype() == DType::i32)
    std::fill_n(reinterpret_cast<int32_t*>(label), count, *options_.no_label);
  else
    std::fill_n(reinterpret_cast<float*>(label), count, std::numeric_limits<float>::quiet_NaN());
}

void BatchLayout::read_row(int64_t row, int64_t sample, bool is_own, Scratch& scratch, std::byte* staging,
                           std::byte* block) const {
  for (size_t field = 0; field < scratch.to.size(); ++field)
    scratch.to[field] = target(field, row, scratch, staging, block);
  if (documents_ >= 0) {
    void*& documents = scratch.to[static_cast<size_t>(documents_)];
    if (documents == nullptr) documents = scratch.fields[static_cast<size_t>(documents_)].data();
  }
  set_.read(sample, scratch.state, scratch.to);
  const StageTimer timer(scratch.state.seconds, ReadStage::copy);
  if (documents_ >= 0) order_documents(scratch);
  for (size_t field = 0; field < scratch.to.size(); ++field) {
    if (scratch.to[field] == nullptr) continue;
    const std::vector<std::string>& labels = options_.labels;
    const bool no_label = !is_own && options_.no_label &&
                          std::find(labels.begin(), labels.end(), set_.fields()[field].name) != labels.end();
    try {
      spread(field, row, scratch.to[field], no_label, staging, block);
    } catch (const EnvError& error) {
      throw EnvError(set_.where(sample) + ": " + set_.fields()[field].name + ": " + error.what());
    }
  }
}

void BatchLayout::mix_rows(const Part& part, const std::optional<BatchMixing::Drawn>& mix, Scratch& scratch,
                           std::byte* staging, std::byte* block) const {
  const BatchMixing& mixing = *options_.mixing;
  for (int64_t r = 0; r < part.rows; ++r) {
    const int64_t row = part.first_row + r;
    const auto* own = reinterpret_cast<const float*>(mixed_sample(part.field, row, staging));
    const auto* other = reinterpret_cast<const float*>(mixed_sample(part.field, mixed_with(row, batch_), staging));
    std::byte* to = (part.way == Way::sliced ? staging + part.staging : block + part.offset) +
                    r * part.sample_elements * byte_size(part.dtype());
    float* out = part.dtype() == DType::f32 ? reinterpret_cast<float*>(to) : scratch.mixed.data();
    if (!mix)
      std::copy_n(own, part.sample_elements, out);
    else if (part.field == mixing.field())
      mixing.mix_field(*mix, own, other, out);
    else
      mixing.mix_label(*mix, own, other, out);
    if (part.dtype() != DType::f32) convert_elements(out, ElementType::f32, part.sample_elements, part.dtype(), to);
  }
}

void BatchLayout::finish(const std::optional<BatchMixing::Drawn>& mix, Scratch& scratch, std::byte* staging,
                         std::byte* block) const {
  for (const Part& part : parts_) {
    if (part.is_mixed) mix_rows(part, mix, scratch, staging, block);
    if (part.way != Way::sliced) continue;
    const int64_t element = byte_size(part.load->outputs[0].dtype);
    for_each_stretch(*part.load, [&](int64_t in_part, int64_t in_whole, int64_t length) {
      std::memcpy(block + part.offset + in_part * element,
                  staging + part.staging + (in_whole - part.first_element) * element,
                  static_cast<size_t>(length * element));
    });
  }
}

}  // namespace trainctl
